"""The service: who may report what, over a real socket. munge is a double; test_people.py has the real one."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import job_records
from gpucluster.controller.health import service
from gpucluster.controller.health.control import Control
from gpucluster.controller.health.service import HealthDaemon, Listener
from gpucluster.controller.health.settings import HealthSettings
from gpucluster.controller.health.store import ReportStore
from gpucluster.node_agent.checks.model import HostReport, Profile, Status
from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.health import client, credentials
from gpucluster.node_agent.record import sending
from gpucluster.node_agent.watch import message
from gpucluster.node_agent.watch.kept import ObservedJob
from tests.controller.health.doubles import DRAINS, ControllerClock, SlurmDouble, nodes, report
from tests.doubles.clock import LateTime
from tests.waiting import PATIENCE_S, wait_for

HOME = "127.0.0.1"
BAD, GOOD = {"gpu": Status.FAIL}, {"gpu": Status.PASS}


def unseal(credential: str) -> tuple[int, str]:
    """A double of munge: the uid, a space, and the text."""
    uid, _, text = credential.partition(" ")
    if not uid.isdigit():
        raise Refused("munge refuses the credential")
    return int(uid), text


class Site:
    """A service with a socket: this host is compute-1, and 10.9.0.7 the address of an elastic node in service."""

    def __init__(self, folder: Path, records: Path | None = None, **changed: Any) -> None:
        present = {**nodes(4), **nodes(1, "gpu-e")}
        self.slurm = SlurmDouble(present, {"10.9.0.7": "gpu-e-1"})
        values: dict[str, Any] = {
            "slurm": True,
            "interval": 300,
            "max_drained_percent": 20,
            "shadow": False,
            "networks": ("10.9.0.0/16",),
            "hosts": {HOME: "compute-1", "10.9.0.2": "compute-2"},
            "pools": {"compute": tuple(nodes(4))},
            "elastic": {"gpu": "gpu-e-[1-9]"},
        }
        self.settings = HealthSettings(**{**values, **changed})
        self.clock = ControllerClock()
        self.store = ReportStore(folder, interval=300)
        self.control = Control(
            self.store, self.slurm, self.settings.policy, drains=DRAINS, fixable={"gpu"}, moment=self.clock,
            say=lambda _words: None,
        )  # fmt: skip
        self.service = HealthDaemon(
            self.settings, self.store, self.slurm, self.control, drains=DRAINS, moment=self.clock, unseal=unseal,
            records=job_records.JobRecordFolder(records) if records else None,
        )  # fmt: skip
        self.store.keep("compute-2", report("compute-2", GOOD), self.clock())
        self.listener = Listener(self.service, HOME, 0)
        self.thread = threading.Thread(target=self.listener.serve, daemon=True)
        self.thread.start()

    def said(self, data: bytes) -> dict[str, Any]:
        with socket.create_connection((HOME, self.listener.port), timeout=PATIENCE_S) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        found: dict[str, Any] = json.loads(answer)
        return found

    def send(self, sent: HostReport, address: str = HOME, uid: int = 0) -> client.HealthAnswer:
        answer = self.service.receive(address, f"{uid} {json.dumps(sent.to_dict())}")
        assert isinstance(answer, client.HealthAnswer)
        return answer


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    yield found
    found.listener.close()
    found.thread.join(PATIENCE_S)


def test_a_report_is_kept_and_a_failure_drains(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "seal", lambda text: f"0 {text}")
    assert client.send(report("compute-1", GOOD), HOME, site.listener.port, PATIENCE_S) == client.HealthAnswer(
        False, ""
    )
    assert site.slurm.changes == []
    answer = client.send(report("compute-1", BAD), HOME, site.listener.port, PATIENCE_S)
    assert answer == client.HealthAnswer(True, "gpucluster: check failed: gpu: gpu is fail")
    assert site.slurm.state["compute-1"].drained
    # It stays so for a second job, and ends with the repair.
    assert client.send(report("compute-1", BAD), HOME, site.listener.port, PATIENCE_S).drained
    assert client.send(report("compute-1", GOOD), HOME, site.listener.port, PATIENCE_S) == client.HealthAnswer(
        False, "passed since: gpu"
    )
    assert ReportStore(site.store.folder, interval=300).reports()["compute-1"]["periodic"].report.status is Status.PASS


@pytest.mark.parametrize(
    ("uid", "address", "host"),
    [
        (1000, HOME, "compute-1"),
        (0, HOME, "compute-2"),
        (0, "10.9.0.2", "compute-1"),
        (0, "10.9.0.7", "compute-1"),
        (0, "10.9.0.8", "compute-1"),
        (0, "10.9.0.8", "gpu-e-1"),
        (0, "192.0.2.7", "compute-1"),
        (0, "10.9.0.7", "../../compute-1"),
    ],
    ids=["no root", "another node", "another address", "elastic", "nobody", "nobody's boot", "abroad", "a path"],
)
def test_a_node_reports_about_itself_alone(site: Site, uid: int, address: str, host: str) -> None:
    before = dict(site.store.reports())
    with pytest.raises(Refused):
        site.send(report(host, BAD), address, uid)
    assert site.store.reports() == before
    assert site.slurm.changes == []


def watched(node: str) -> str:
    return json.dumps(message.written(node, [ObservedJob("7", "hung", 0.0)], 60.0))


def test_what_a_watcher_reports_is_taken_of_its_own_node_and_root_alone(tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []

    class Ear:
        def hear(self, node: str, said: list[message.ReportedJob]) -> None:
            heard.append((node, said[0].job_id))

    site = Site(tmp_path)
    assert site.service.receive(HOME, f"0 {watched('compute-1')}") == service.Receipt(False)
    site.service._reactions = Ear()  # type: ignore[assignment]
    assert site.service.receive(HOME, f"0 {watched('compute-1')}") == service.Receipt(True)
    assert site.service.receive("10.9.0.7", f"0 {watched('gpu-e-1')}") == service.Receipt(True)
    for address, uid, node in ((HOME, 1000, "compute-1"), (HOME, 0, "compute-2"), ("10.9.0.8", 0, "gpu-e-1")):
        with pytest.raises(Refused):
            site.service.receive(address, f"{uid} {watched(node)}")
    assert heard == [("compute-1", "7"), ("gpu-e-1", "7")]


def test_a_operator_s_drain_does_not_fail_the_prolog(site: Site) -> None:
    site.slurm.state["compute-1"] = nodes(1, flags=frozenset({"IDLE", "DRAIN"}))["compute-1"]
    assert not site.send(report("compute-1", BAD)).drained
    assert site.slurm.changes == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"0 ",
        b"0 null",
        b"0 []",
        b"0 {}",
        b'0 {"host": "compute-1"}',
        b"0 " + b"[" * 50_000,
        b"\xff\xfe\x00" * 100,
        b"0 " + json.dumps({**report("compute-1", BAD).to_dict(), "findings": [1] * 501}).encode(),
        b"0 " + json.dumps({**report("compute-1", BAD).to_dict(), "started": "soon"}).encode(),
        b"0 " + b" " * (service.LONGEST + 1),
    ],
    ids=range(12),
)
def test_what_is_not_a_report_is_refused_and_the_service_goes_on(site: Site, data: bytes) -> None:
    try:
        assert "error" in site.said(data)
    except OSError:  # closed before all was sent
        assert len(data) > service.LONGEST
    assert site.said(f"0 {json.dumps(report('compute-1', GOOD).to_dict())}".encode()) == {
        "drained": False,
        "reason": "",
    }


def test_one_address_has_few_connections_and_slow_ones_end(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: dict[int, int] = {}

    def looked() -> None:
        looks[threading.get_ident()] = looks.get(threading.get_ident(), 0) + 1

    clock = LateTime(looked)
    monkeypatch.setattr(service, "time", clock)
    monkeypatch.setattr(service, "_SECONDS", 0.2)  # how often it looks whether a client's time is over
    idle = [socket.create_connection((HOME, site.listener.port), timeout=PATIENCE_S) for _ in range(9)]
    # The ninth is closed at once, the others when their time is over.
    assert idle[-1].recv(10) == b""
    # The first look of each thread begins its client's time.
    wait_for("the time of the eight runs", lambda: sum(each > 1 for each in list(looks.values())) == 8)
    clock.now += 0.3
    assert b"did not end" in idle[0].recv(1000)
    for connection in idle:
        connection.close()
    wait_for("all are closed", lambda: not site.listener._of)
    assert not site.send(report("compute-1", GOOD)).drained


def test_slurm_that_does_not_answer_takes_no_job_down(site: Site) -> None:
    site.slurm.down = True
    answer = site.send(report("compute-1", BAD))
    assert not answer.drained
    assert "not decided" in answer.reason
    site.slurm.down = False
    site.service.tick()
    assert site.slurm.state["compute-1"].drained
    assert (site.store.folder / "metrics.prom").stat().st_mode & 0o777 == 0o644


def test_an_elastic_node_that_boots_accuses_only_its_address(site: Site) -> None:
    boot = report("gpu-e-2", BAD, Profile.BOOT)
    answer = site.send(boot, "10.9.0.9")
    assert answer.drained
    kept = json.loads((site.store.folder / "booting" / "10.9.0.9.json").read_text())
    assert (kept["address"], kept["node"]) == ("10.9.0.9", "gpu-e-2")
    assert "gpu is fail" in kept["reason"]
    assert "gpu-e-2" not in site.store.reports()
    # It was repaired, or is good at the next try.
    assert not site.send(report("gpu-e-2", GOOD, Profile.BOOT), "10.9.0.9").drained
    assert json.loads((site.store.folder / "booting" / "10.9.0.9.json").read_text())["reason"] == ""
    # Once Slurm knows it, the file has no meaning.
    site.slurm.where["10.9.0.9"] = "gpu-e-2"
    site.send(report("gpu-e-2", GOOD), "10.9.0.9")
    assert not (site.store.folder / "booting" / "10.9.0.9.json").exists()
    with pytest.raises(Refused):
        site.send(report("gpu-e-3", BAD), "10.9.0.10")
    with pytest.raises(Refused):
        site.send(report("compute-3", BAD, Profile.BOOT), "10.9.0.10")


def test_shadow_mode_holds_no_elastic_node(tmp_path: Path) -> None:
    site = Site(tmp_path, shadow=True)
    assert not site.send(report("gpu-e-2", BAD, Profile.BOOT), "10.9.0.9").drained
    assert json.loads((tmp_path / "booting" / "10.9.0.9.json").read_text())["reason"] == ""
    assert not site.send(report("compute-1", BAD)).drained
    site.listener.close()


def test_without_slurm_reports_are_kept(tmp_path: Path) -> None:
    site = Site(tmp_path, slurm=False)
    assert not site.send(report("compute-1", BAD)).drained
    assert site.store.reports()["compute-1"]["periodic"].report.status is Status.FAIL
    assert site.slurm.changes == []
    site.listener.close()


# --- the side of the node -----


# --- records of jobs -----


def _record(**changed: Any) -> dict[str, Any]:
    return {
        "job_id": "12", "node": "compute-1", "started": 1000.0, "devices": [], "changes": [], "notes": [], **changed,
    }  # fmt: skip


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[tuple[Site, Path]]:
    folder = tmp_path / "records"
    folder.mkdir()
    found = Site(tmp_path / "health", records=folder)
    yield found, folder
    found.listener.close()
    found.thread.join(PATIENCE_S)


def test_the_record_of_a_job_is_kept(keeping: tuple[Site, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "seal", lambda text: f"0 {text}")
    site, folder = keeping
    assert sending.to(HOME, site.listener.port)(json.dumps(_record()))
    assert [each["node"] for each in job_records.of_job("12", folder)] == ["compute-1"]
    # No report: nothing is judged.
    assert site.slurm.changes == []
    assert "compute-1" not in site.store.reports()


@pytest.mark.parametrize(
    ("uid", "record"),
    [
        (1000, _record()), (0, _record(node="compute-2")), (0, None), (0, _record(job_id="../../x")),
        (0, _record(notes=["x" * 200_000])),
    ],
    ids=["no root", "another node", "none", "a path", "too long"],
)  # fmt: skip
def test_a_record_that_is_none_is_refused_for_good(keeping: tuple[Site, Path], uid: int, record: Any) -> None:
    site, folder = keeping
    answer = site.said(f"{uid} {json.dumps({'job_record': record})}".encode())
    assert answer["refused"] is True
    assert list(folder.iterdir()) == []


def test_where_no_records_are_kept_they_wait_on_their_node(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "seal", lambda text: f"0 {text}")
    assert not sending.to(HOME, site.listener.port)(json.dumps(_record()))


def test_a_full_disk_of_the_controller_loses_no_record(keeping: tuple[Site, Path]) -> None:
    site, folder = keeping
    folder.rmdir()
    answer = site.said(f"0 {json.dumps({'job_record': _record()})}".encode())
    assert answer["refused"] is False


@pytest.fixture
def rebooting(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path, reboots=True)
    yield found
    found.listener.close()
    found.thread.join(PATIENCE_S)


def test_a_node_that_waits_for_its_reboot_takes_no_job(rebooting: Site) -> None:
    site = rebooting
    assert site.send(report("compute-1", BAD)).drained
    # This report begins the reboot. Its prolog fails as before.
    assert site.send(report("compute-1", BAD)).drained
    assert [change[0] for change in site.slurm.changes] == ["drain", "reboot"]
    # Still so in its next boot: it is given up, and takes no job.
    assert site.send(report("compute-1", BAD, boot="second")).drained
    assert [change[0] for change in site.slurm.changes] == ["drain", "reboot", "drain"]


def test_what_slurmd_drained_takes_no_job_when_a_report_begins_its_reboot(rebooting: Site) -> None:
    site = rebooting
    site.send(report("compute-1", GOOD))
    node = site.slurm.state["compute-1"]
    site.slurm.state["compute-1"] = replace(node, flags=node.flags | {"DRAIN"}, reason="Kill task failed")
    site.service.tick()
    assert site.send(report("compute-1", GOOD)).drained
    assert [change[0] for change in site.slurm.changes] == ["drain", "reboot"]


def test_what_slurmd_drained_is_seen_without_a_report_of_it(rebooting: Site, site: Site) -> None:
    for each, changes in ((rebooting, ["drain"]), (site, [])):
        node = each.slurm.state["compute-2"]
        each.slurm.state["compute-2"] = replace(node, flags=node.flags | {"DRAIN"}, reason="Kill task failed")
        each.service.tick()
        assert [change[0] for change in each.slurm.changes] == changes
