"""The host's own checks run within their time, and what came of it and when is a report that is accepted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.checks.model import HostReport, Profile
from gpucluster.node_agent.facts import questions
from gpucluster.verdict import reports


def _program(folder: Path, code: str) -> dict[str, Any]:
    """A double of gpucluster-agent: a program that does this."""
    file = folder / "agent"
    file.write_text(f"#!{sys.executable}\nimport sys, time, json\n{code}\n")
    file.chmod(0o755)
    return {"program": str(file), "profile": "quick", "seconds": 600, "alone": False}


def _check(checks: dict[str, Any]) -> Any:
    return json.loads(json.dumps(questions.agent_check(checks, checks["program"])))


def test_a_report_of_now_is_accepted_with_the_arguments_that_the_agent_has(tmp_path: Path) -> None:
    report = HostReport("n1", Profile.QUICK, 0.0, 0.1, "b00t", ()).to_dict()
    code = (
        'assert sys.argv[1:] == ["check", "--profile", "quick", "--output", "json"], sys.argv\n'
        f"print(json.dumps({{**{report!r}, 'started': time.time()}}))\nsys.exit(3)"
    )
    found = _check(_program(tmp_path, code))
    assert found["exit_status"] == 3
    assert reports.read(found, "n1", Profile.QUICK).boot_id == "b00t"


def test_a_program_that_hangs_is_ended_whatever_it_does_with_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "KILL_SECONDS", 1)
    code = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('{', flush=True)\ntime.sleep(600)"
    found = _check({**_program(tmp_path, code), "seconds": 1})
    with pytest.raises(reports.ReportError, match="no report within"):
        reports.read(found, "n1", Profile.QUICK)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("sys.exit('/etc/gpucluster/checks.json does not state what this host should have')", "does not state what"),
        ("sys.stderr.write('usage: gpucluster-agent [--version] COMMAND ...\\n'); sys.exit(2)", "gpucluster apply"),
        ("print('[' + '1,' * (1 << 20))", "cut off or damaged"),
    ],
)
def test_what_the_program_prints_instead_is_passed_on(tmp_path: Path, code: str, reason: str) -> None:
    found = _check(_program(tmp_path, code))
    assert len(found["output"]) <= questions.REPORT_BYTES
    with pytest.raises(reports.ReportError, match=reason):
        reports.read(found, "n1", Profile.QUICK)


def test_a_host_without_the_agent_has_no_report(tmp_path: Path) -> None:
    found = _check({"program": str(tmp_path / "none"), "profile": "quick", "seconds": 5, "alone": False})
    with pytest.raises(reports.ReportError, match=r"none.*No such file"):
        reports.read(found, "n1", Profile.QUICK)


def test_checks_that_need_the_node_leave_jobs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = {**_program(tmp_path, "sys.exit('they ran')"), "profile": "full", "alone": True}
    monkeypatch.setattr(questions, "runs_jobs", lambda: True)
    found = _check(checks)
    with pytest.raises(reports.ReportError, match="jobs run on it"):
        reports.read(found, "n1", Profile.FULL)
    monkeypatch.setattr(questions, "runs_jobs", lambda: False)
    assert "they ran" in _check(checks)["error"]
    assert "they ran" in _check({**checks, "alone": False})["error"]
