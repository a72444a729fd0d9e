"""Decisions that are carried out: with reports on disk, and a double of Slurm that can be killed at any point."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucluster.controller.health import metrics
from gpucluster.controller.health.control import Control, Outlook
from gpucluster.controller.health.policy import PolicySettings, RecordKind
from gpucluster.controller.health.settings import HealthSettings
from gpucluster.controller.health.store import ReportStore
from gpucluster.node_agent.checks.model import Finding, Profile, Status
from gpucluster.node_agent.errors import Failed, Refused
from tests.controller.health.doubles import DRAINS, ControllerClock, KilledError, SlurmDouble, nodes, report

BAD, GOOD = {"gpu": Status.FAIL}, {"gpu": Status.PASS}


class Site:
    """A controller with ten nodes. `restart` is a new process on the same folder."""

    def __init__(self, folder: Path, settings: PolicySettings) -> None:
        self.folder, self.settings = folder, settings
        self.clock, self.slurm = ControllerClock(), SlurmDouble(nodes(10))
        self.said: list[str] = []
        self.restart()
        for name in list(self.slurm.state)[1:]:
            self.store.keep(name, report(name, GOOD), self.clock())

    def restart(self) -> None:
        self.slurm.killed = ""
        self.store = ReportStore(self.folder, interval=300)
        self.control = Control(
            self.store, self.slurm, self.settings, drains=DRAINS, moment=self.clock, say=self.said.append
        )

    def send(self, results: dict[str, Status], name: str = "compute-1", **more: object) -> Outlook:
        self.clock.pass_(1)
        self.store.keep(name, report(name, results, **more), self.clock())  # type: ignore[arg-type]
        return self.control.run()

    def kinds(self) -> list[RecordKind]:
        return [record.kind for record in self.store.journal.read()]

    @property
    def node(self) -> tuple[bool, str]:
        found = self.slurm.state["compute-1"]
        return found.drained, found.reason


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, PolicySettings())


def test_from_failure_to_repair(site: Site) -> None:
    assert site.control.is_quiet()
    site.send(BAD)
    assert site.node == (True, "gpucluster: check failed: gpu: gpu is fail")
    assert site.kinds() == [RecordKind.DRAIN, RecordKind.DONE]
    assert not site.control.is_quiet()
    site.send(BAD)
    assert len(site.slurm.changes) == 1
    site.send(GOOD)
    assert site.node == (False, "")
    assert site.control.is_quiet()
    # The same node again: an operator decides, whatever it reports.
    site.send(BAD)
    assert site.node[1].startswith("gpucluster: check failed again, a person decides: gpu")
    site.send(GOOD)
    assert site.node[0]


@pytest.mark.parametrize("killed", ["before", "after"])
def test_a_drain_that_is_interrupted_converges(site: Site, killed: str) -> None:
    site.slurm.killed = killed
    with pytest.raises(KilledError):
        site.send(BAD)
    site.restart()
    site.control.run()
    site.control.run()
    assert site.node[0]
    assert site.kinds() == [RecordKind.DRAIN, RecordKind.DONE]
    assert len(site.slurm.changes) == 1
    site.send(GOOD)
    assert not site.node[0]


@pytest.mark.parametrize("killed", ["before", "after"])
def test_an_undrain_that_is_interrupted_converges(site: Site, killed: str) -> None:
    site.send(BAD)
    site.slurm.killed = killed
    with pytest.raises(KilledError):
        site.send(GOOD)
    site.restart()
    site.control.run()
    site.control.run()
    assert not site.node[0]
    assert site.kinds()[-1] is RecordKind.ENDED
    assert site.control.is_quiet()


def test_a_drain_that_was_interrupted_and_is_no_longer_due_is_forgotten(site: Site) -> None:
    site.slurm.killed = "before"
    with pytest.raises(KilledError):
        site.send(BAD)
    site.restart()
    site.send(GOOD)
    site.clock.pass_(700)
    site.send(GOOD)
    assert not site.node[0]
    assert site.kinds() == [RecordKind.DRAIN, RecordKind.ENDED]


def test_an_operator_is_faster(site: Site) -> None:
    """Drained by an operator after the node was read: their reason stays."""
    theirs = nodes(10, flags=frozenset({"IDLE", "DRAIN"}))["compute-1"]
    read: Callable[..., object] = site.slurm.nodes

    def nodes_then_person(*names: str) -> object:
        if names:
            site.slurm.state["compute-1"] = theirs
        return read(*names)

    site.slurm.nodes = nodes_then_person  # type: ignore[assignment,method-assign]
    outlook = site.send(BAD)
    assert [each.succeeded for each in outlook.carried] == [False]
    assert site.slurm.changes == []


def test_without_an_answer_of_slurm_nothing_is_written(site: Site) -> None:
    site.slurm.down = True
    with pytest.raises(Failed):
        site.send(BAD)
    assert site.kinds() == []


def test_shadow_mode_writes_once_and_does_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, PolicySettings(shadow=True))
    for _ in range(3):
        site.send(BAD)
    assert site.kinds() == [RecordKind.SHADOW]
    assert site.slurm.changes == []
    assert len(site.said) == 1


def test_reports_of_an_earlier_boot_and_of_a_silent_node_blame_no_node(site: Site) -> None:
    site.slurm.down = True
    with pytest.raises(Failed):
        site.send({"disk": Status.FAIL}, profile=Profile.BOOT)
    site.slurm.down = False
    site.clock.pass_(4000)
    site.control.run()
    assert site.slurm.changes == []
    site.send(GOOD, boot="second")
    site.control.run()
    assert site.slurm.changes == []


def test_the_boot_report_counts_until_the_next_boot(site: Site) -> None:
    site.slurm.state["compute-1"] = nodes(1, flags=frozenset({"IDLE", "POWERING_UP"}))["compute-1"]
    site.send({"disk": Status.FAIL}, profile=Profile.BOOT)
    site.slurm.state["compute-1"] = nodes(1)["compute-1"]
    site.send(GOOD)
    assert "disk" in site.node[1]


def _fail(node: str, check: str = "nccl_pair", status: Status = Status.FAIL) -> Finding:
    return Finding(check, node, status, "31 of 350 GB/s")


def test_findings_of_verify_drain_and_undrain(site: Site) -> None:
    outlook = site.control.react([_fail("compute-1"), _fail("compute-2", status=Status.PASS)], shadow=False)
    assert [each.to_dict() for each in outlook.carried] == [
        {
            "node": "compute-1",
            "action": "drain",
            "done": True,
            "reason": "gpucluster: check failed: nccl_pair: 31 of 350 GB/s",
            "checks": ["nccl_pair"],
        }
    ]
    # The node's own report has no result of this check.
    site.send(GOOD)
    assert site.node[0]
    site.restart()
    outlook = site.control.react([_fail("compute-1", status=Status.PASS)], shadow=False)
    assert [each.decision.action.value for each in outlook.carried] == ["undrain"]
    assert not site.node[0]


def test_verify_in_shadow_leaves_no_trace(site: Site) -> None:
    outlook = site.control.react([_fail("compute-1"), _fail("compute-2", status=Status.PASS)], shadow=True)
    assert [each.decision.action.value for each in outlook.carried] == ["shadow"]
    assert site.kinds() == []
    assert not (site.folder / "findings.json").exists()


def test_one_breaker_for_both(site: Site) -> None:
    site.send(BAD)
    outlook = site.control.react(
        [*(_fail(f"compute-{number}", f"check_{number}") for number in range(2, 6))], shadow=False
    )
    assert [each.decision.action.value for each in outlook.carried] == ["drain", "none", "none", "none"]
    assert "the breaker is open" in outlook.carried[1].decision.reason


@pytest.mark.parametrize("status", [Status.UNKNOWN, Status.WARN, Status.SKIP])
def test_a_finding_that_is_neither_good_nor_bad_is_refused(site: Site, status: Status) -> None:
    with pytest.raises(Refused):
        site.control.react([_fail("compute-1", status=status)], shadow=False)


def test_a_damaged_file_is_as_good_as_none(site: Site) -> None:
    site.send(BAD)
    for file in (site.folder / "reports").glob("*.json"):
        file.write_text(file.read_text()[:30])
    (site.folder / "findings.json").write_text("[]")
    site.restart()
    assert site.control.run().carried == ()
    assert site.node[0]


def test_the_status_and_the_metrics_report_the_same(site: Site) -> None:
    site.send(BAD)
    settings = HealthSettings(
        slurm=True, interval=300, max_drained_percent=20, shadow=False, networks=(), pools={"compute": tuple(nodes(10))}
    )
    now = site.clock()
    content = json.loads(json.dumps(metrics.status(site.store, settings, DRAINS, now, site.slurm.nodes())))
    first = content["nodes"][0]
    assert (first["node"], first["status"], first["stale"], first["person"]) == ("compute-1", "fail", False, False)
    assert first["drained"].startswith("gpucluster: check failed")
    assert content["breakers"] == [{"pool": "compute", "drained": 1, "limit": 2, "open": False}]
    metrics.write(site.store, settings, DRAINS, now)
    text = (site.folder / "metrics.prom").read_text()
    assert 'gpucluster_health_check{node="compute-1",check="gpu",status="fail"} 1' in text
    assert 'gpucluster_health_drained{node="compute-1",kind="drain"} 1' in text
    assert 'gpucluster_health_drains_last_hour{pool="compute"} 1' in text
    assert text.count("gpucluster_health_report_timestamp_seconds{") == len(site.slurm.state)
    # A wall clock that jumped makes no report old.
    site.clock.wall += 86400
    later = metrics.status(site.store, settings, DRAINS, site.clock(), {})
    assert not any(row["stale"] for row in later["nodes"])
