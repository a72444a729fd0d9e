"""The commands of the health service on the controller: what `status` and `react` print, and what they refuse."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.health import __main__ as program
from gpucluster.controller.health.store import ReportStore, now
from gpucluster.node_agent.checks.model import Finding, Status
from tests.controller.health.doubles import report
from tests.controller.health.test_settings import RAW
from tests.doubles.commands import Commands

IDLE = "NodeName=compute-1 Arch=x86_64 NodeAddr=10.0.0.1 State=IDLE ThreadsPerCore=1 Boards=1"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    commands = Commands(tmp_path, monkeypatch)
    commands.prints("scontrol", IDLE)
    return commands


@pytest.fixture
def words(tmp_path: Path, slurm: Commands, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments that lead to a cluster with the node compute-1, whose disk failed at the present moment."""
    present = now()
    monkeypatch.setattr(program, "now", lambda: present)
    (tmp_path / "health.json").write_text(json.dumps(RAW))
    store = ReportStore(tmp_path / "kept", interval=300)
    store.keep("compute-1", report("compute-1", {"disk": Status.FAIL, "gpu": Status.PASS}), present)
    return [f"--settings={tmp_path / 'health.json'}", f"--folder={tmp_path / 'kept'}"]


def react(request: Any, words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(request if isinstance(request, str) else json.dumps(request)))
    return program.main(["react", *words])


def finding(check: str, status: Status) -> dict[str, Any]:
    return Finding(check, "compute-1", status, "seen by verify").to_dict()


def test_the_status_is_a_line_for_each_node(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["status", *words]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "node"
    assert row.startswith("compute-1            fail      0 s ago      disk: disk is fail")


def test_the_status_as_json_has_the_same(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["status", "--output=json", *words]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [(row["node"], row["status"]) for row in content["nodes"]] == [("compute-1", "fail")]
    assert content["problems"] == []


def test_a_slurm_without_an_answer_is_a_problem_and_no_failure(
    slurm: Commands, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.prints("scontrol", "", 1, "slurm_load_node error: Unable to contact slurm controller")
    assert program.main(["status", *words]) == 0
    assert "Unable to contact slurm controller" in capsys.readouterr().out.splitlines()[-1]


def test_a_host_without_a_service_reports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["status", f"--folder={tmp_path / 'none'}"]) == 1
    errors = capsys.readouterr().err
    assert "no health service runs here" in errors
    assert "Run: gpucluster apply" in errors


@pytest.mark.parametrize(
    "request_text",
    ["", "[", "[]", "{}", '{"findings": 7}', '{"findings": [{}]}', '{"findings": [], "shadow": "no"}'],
)
def test_what_is_not_a_request_is_refused(
    request_text: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert react(request_text, words, monkeypatch) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert 'Give {"findings": [...], "shadow": false}' in errors
    assert "Traceback" not in errors


def test_nothing_found_decides_nothing(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert react({"findings": []}, words, monkeypatch) == 0
    assert json.loads(capsys.readouterr().out) == {"decisions": []}


def test_a_finding_that_fails_drains_its_node(
    slurm: Commands, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert react({"findings": [finding("root_file_system", Status.FAIL)], "shadow": False}, words, monkeypatch) == 0
    (decision,) = json.loads(capsys.readouterr().out)["decisions"]
    assert (decision["node"], decision["action"]) == ("compute-1", "drain")
    assert any("nodename=compute-1 state=drain" in call for call in slurm.calls("scontrol"))


def test_in_shadow_mode_it_is_decided_and_not_done(
    slurm: Commands, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert react({"findings": [finding("root_file_system", Status.FAIL)], "shadow": True}, words, monkeypatch) == 0
    capsys.readouterr()
    assert not any("state=drain" in call for call in slurm.calls("scontrol"))


def test_all_that_is_out_of_order_is_named() -> None:
    content = {
        "maintenance": None,
        "nodes": [
            {"node": "a", "status": "unknown", "age_s": None, "stale": True, "failing": [], "warnings": [],
             "drained": ""},
            {"node": "b", "status": "fail", "age_s": 1000.4, "stale": True, "drained": "gpucluster: check failed: gpu",
             "failing": [{"check": "gpu", "message": "lost"}, {"check": "disk", "message": "full"}],
             "warnings": [{"check": "clock", "message": "off by 1 s"}]},
        ],
        "breakers": [
            {"pool": "gpu", "drained": 2, "limit": 2, "open": True},
            {"pool": "cpu", "drained": 1, "limit": 2, "open": False},
        ],
        "suspects": [{"pool": "gpu", "check": "gpu", "nodes": 7}],
        "shadow": True,
        "problems": ["Slurm does not answer"],
    }  # fmt: skip
    _head, *lines = program._text(content).splitlines()
    assert lines == [
        "a                    unknown   never        -",
        "b                    fail      1000 s ago (stale) gpu: lost; disk: full; clock: off by 1 s",
        "                     drained: gpucluster: check failed: gpu",
        "breaker of pool gpu: 2 of 2 drains within an hour",
        "check gpu fails on 7 nodes of pool gpu and passes on none: "
        "the check itself is the suspect, and drains nothing",
        "shadow mode: nothing is drained",
        "Slurm does not answer",
    ]
