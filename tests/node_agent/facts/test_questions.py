"""What programs of a host answer: Prometheus, Slurm's commands, ssh. tests/verdict/test_reports_of_hosts.py has its own
checks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.facts import questions
from tests.doubles.commands import Commands


def _program(folder: Path, code: str) -> str:
    """A double of gpucluster-agent: a program that does this."""
    file = folder / "agent"
    file.write_text(f"#!{sys.executable}\nimport sys, time, json\n{code}\n")
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("print(json.dumps({'prometheus': True, 'up': 3}))", {"prometheus": True, "up": 3}),
        ("print(json.dumps({'prometheus': False, 'why': 'down'}))", {"prometheus": False, "why": "down"}),
        ("sys.exit('no such command')", {"error": "no such command"}),
        ("print('no json')", {"error": "no json"}),
        ("pass", {"error": "no answer within the time limit"}),
    ],
)
def test_what_prometheus_scrapes_is_what_the_agent_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, found: dict[str, Any]
) -> None:
    monkeypatch.setattr(questions, "_PROMETHEUS_AGAIN_SECONDS", 0)
    monkeypatch.setattr(questions, "_PROMETHEUS_TRIES", 2)
    assert "--wait=75" in str(questions.monitoring({"wait": 75}, _program(tmp_path, "print(sys.argv)")))
    assert questions.monitoring({"wait": 75}, _program(tmp_path, code)) == found


def test_a_prometheus_that_has_just_started_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "_PROMETHEUS_AGAIN_SECONDS", 0)
    code = (
        f"from pathlib import Path\nfile = Path({str(tmp_path / 'asked')!r})\n"
        "before = file.exists()\nfile.touch()\nprint(json.dumps({'prometheus': before}))"
    )
    assert questions.monitoring({"wait": 75}, _program(tmp_path, code)) == {"prometheus": True}


@pytest.mark.parametrize(("status", "error"), [(0, ""), (1, "slurm_load_partitions: Unable to contact")])
def test_slurm_s_commands_get_an_answer_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, error: str
) -> None:
    Commands(tmp_path, monkeypatch).prints("sinfo", "", status, error)
    assert questions.slurm_error() == error


@pytest.mark.parametrize(
    ("text", "status", "groups"),
    [
        ("port 22\nallowgroups admins operators\n", 0, ["admins", "operators"]),
        ("port 22\n", 0, []),
        ("", 255, None),
    ],
)
def test_the_groups_that_ssh_lets_in_are_those_of_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int, groups: Any
) -> None:
    Commands(tmp_path, monkeypatch).prints("sshd", text, status)
    assert questions.ssh_groups() == groups


def test_a_user_logs_in_to_the_next_host_without_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(tmp_path, monkeypatch)
    commands.prints("runuser", "n2\n", 0, " a warning\n")
    assert questions.hop({"user": "alice", "next": "n2"}) == {"next": "n2", "reached": "n2", "error": "a warning"}
    assert commands.calls("runuser") == ["-u alice -- ssh -o BatchMode=yes -o ConnectTimeout=10 n2 hostname"]


def test_a_program_that_is_missing_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert questions.slurm_error() == "sinfo is not installed"
    assert questions.ssh_groups() is None
