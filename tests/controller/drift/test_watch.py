"""What the controller's timer writes. tests/e2e/test_drift.py runs it on a controller."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster.controller.drift import cluster, watch
from gpucluster.controller.drift.__main__ import main
from gpucluster.controller.host_commands import Answer, ReachableHosts
from gpucluster.controller.users.config import HostLogins
from gpucluster.node_agent.errors import Failed

FILE = {"kind": "file", "name": "/etc/x", "expected": "as apply left it", "seen": "other content"}
CLEAN: dict[str, Any] = {"recorded": 1.0, "findings": []}


class Hosts:
    """The hosts of a cluster. It proves nothing of ssh."""

    here = "head"
    permanent = ("compute-1", "compute-2", "compute-3", "head")

    def ask(self, names: Sequence[str], words: Sequence[str], *_: Any) -> Mapping[str, Answer]:
        assert (list(names), list(words)) == (["compute-1", "compute-2", "compute-3"], ["drift"])
        return {
            "compute-1": Answer(json.dumps({"recorded": 1.0, "findings": [FILE, FILE]}), ""),
            "compute-2": Answer("", "timed out"),
            "compute-3": Answer("", "no route to host"),
        }

    def off(self, silent: Mapping[str, str]) -> list[str]:
        assert set(silent) == {"compute-2", "compute-3"}
        return ["compute-3"]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(watch, "Config", SimpleNamespace(load=lambda _file: SimpleNamespace(hosts=None)))
    monkeypatch.setattr(ReachableHosts, "permanent_of", lambda _logins: Hosts())
    monkeypatch.setattr(watch, "of_host", lambda: CLEAN)
    answer = {"slurm": {"findings": [FILE]}, "directory": {"error": "it does not answer"}}
    monkeypatch.setattr(cluster, "look", lambda: answer)
    return tmp_path


def test_findings_and_what_is_not_known_are_metrics(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--metrics", str(site)]) == 0
    text = (site / watch.METRICS_FILE).read_text()
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert {name.partition("{")[0] for name in samples} == set(watch.METRICS)
    counted = {name: value for name, value in samples.items() if name.startswith("gpucluster_drift_findings")}
    assert counted == {
        'gpucluster_drift_findings{area="hosts",host="compute-1"}': "2",
        'gpucluster_drift_findings{area="hosts",host="head"}': "0",
        'gpucluster_drift_findings{area="slurm",host=""}': "1",
    }
    unknown = [name for name, value in samples.items() if name.startswith("gpucluster_drift_unknown") and value == "1"]
    assert unknown == [
        'gpucluster_drift_unknown{area="directory",host=""}',
        'gpucluster_drift_unknown{area="hosts",host="compute-2"}',
    ]
    # A node that Slurm has given up is neither.
    assert "compute-3" not in text
    assert (site / watch.METRICS_FILE).stat().st_mode & 0o777 == 0o644
    said = capsys.readouterr().out
    assert "compute-1: file /etc/x: expected as apply left it, seen other content" in said
    assert "compute-2: not known: timed out" in said


def test_an_answer_that_can_not_be_read_is_not_known(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hosts, "permanent", ("compute-1", "head"))
    monkeypatch.setattr(Hosts, "ask", lambda *_: {"compute-1": Answer("[]", "")})
    monkeypatch.setattr(Hosts, "off", lambda *_: [])
    assert watch.look()["hosts", "compute-1"] == {"error": "its answer can't be read"}


def test_one_look_at_this_host_or_the_cluster(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster"]) == 0
    assert json.loads(capsys.readouterr().out)["slurm"] == {"findings": [FILE]}


def test_a_failure_ends_with_its_status(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_logins: Any) -> Any:
        raise Failed("the configuration can't be read")

    monkeypatch.setattr(ReachableHosts, "permanent_of", fails)
    assert main(["watch", "--metrics", str(site)]) == 1
    assert "can't be read" in capsys.readouterr().err
    assert not (site / watch.METRICS_FILE).exists()


def test_elastic_nodes_and_slurm_are_not_asked_for() -> None:
    logins = {"head": "debian", "compute-1": "debian", "burst-e[1-8]": "opc", socket.gethostname(): "debian"}
    found = ReachableHosts.permanent_of(HostLogins(logins))
    assert set(found.permanent) == {"head", "compute-1", socket.gethostname().split(".")[0]}
    assert found.here not in found.logins
