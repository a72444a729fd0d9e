"""The script with which the role makes Slurm read its configuration again, when slurmctld has stopped answering.

`scontrol` and `systemctl` are doubles that only know whether slurmctld answers. A slurmctld that was really stopped is
in tests/e2e/test_changes.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpucluster.paths import ansible_dir

SCRIPT = ansible_dir() / "roles" / "slurm" / "files" / "gpucluster-reconfigure"
#: `blocked` has the number of requests that get no answer.
SCONTROL = """\
#!/bin/sh
echo "$1" >> calls
[ ! -e refused ] || [ "$1" = ping ] || exit 1
left=$(cat blocked) && [ "$left" -gt 0 ] && echo $((left - 1)) > blocked && exit 1
exit 0
"""
SYSTEMCTL = """\
#!/bin/sh
echo "$1" >> calls
[ "$1" != restart ] || [ -e broken ] || echo 0 > blocked
"""


def run(folder: Path, *, blocked: int = 0, patience: int = 0) -> tuple[int, str]:
    """The exit code, and what was called."""
    for name, text in {"scontrol": SCONTROL, "systemctl": SYSTEMCTL}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "blocked").write_text(f"{blocked}\n")
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PATIENCE": str(patience)}
    ended = subprocess.run(["sh", "-c", SCRIPT.read_text()], cwd=folder, env=environment, check=False)
    return ended.returncode, " ".join((folder / "calls").read_text().split())


def test_a_slurmctld_that_answers_is_asked_once(tmp_path: Path) -> None:
    assert run(tmp_path) == (0, "reconfigure")


def test_a_slow_one_is_asked_again_and_stays(tmp_path: Path) -> None:
    assert run(tmp_path, blocked=2, patience=60) == (0, "reconfigure ping ping reconfigure")


def test_a_blocked_one_is_ended_and_the_next_one_is_asked(tmp_path: Path) -> None:
    assert run(tmp_path, blocked=9999) == (0, "reconfigure ping kill restart ping reconfigure")


def test_one_that_refuses_stays_and_the_task_fails(tmp_path: Path) -> None:
    (tmp_path / "refused").touch()
    assert run(tmp_path) == (1, "reconfigure ping reconfigure ping reconfigure ping")


def test_one_that_cannot_start_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken").touch()
    assert run(tmp_path, blocked=9999) == (1, "reconfigure ping kill restart ping")
    assert "ending it, and starting another" in capfd.readouterr().err


def test_shellcheck_finds_nothing() -> None:
    program = Path(sys.executable).with_name("shellcheck")
    subprocess.run([program, SCRIPT], check=True)
