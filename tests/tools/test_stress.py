"""What `make stress` does to a machine, and that it takes it back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, wait_for
from tools import stress

pytestmark = pytest.mark.slow


def processes_of(marker: str) -> list[str]:
    listed = subprocess.run(["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if marker in line and "ps -ww" not in line]


def children(marker: str) -> list[str]:
    """Processes that this one has started."""
    argv = ["ps", "-ww", "-o", "pid,args", "--ppid", str(os.getpid())]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if marker in line]


def test_busy_loops_end_with_the_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python-of-this-test"
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    with stress.busy(2):
        wait_for("both run", lambda: len(processes_of(str(python))) == 2)
    assert processes_of(str(python)) == []


def test_busy_loops_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    python = tmp_path / "python-of-this-test"
    python.symlink_to(sys.executable)
    code = (
        f"import signal, sys; from tools import stress; sys.executable = {str(python)!r}\n"
        "with stress.busy(1): print('busy', flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=stress._SOURCE.parents[1], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"busy\n"
        run.kill()
    wait_for("nothing is left", lambda: not processes_of(str(python)))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is installed by `make stress`")
def test_fsync_is_slow_in_programs(tmp_path: Path) -> None:
    code = "import os, time; b = time.monotonic(); os.fsync(1); print(time.monotonic() - b)"
    with stress.slow_fsync(tmp_path) as variables, (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", code], env=variables, stdout=out, check=True, timeout=PATIENCE_S)
    assert float((tmp_path / "out").read_text()) >= 0.02


def test_memory_is_taken_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    available = stress._available_gib()
    monkeypatch.setattr(stress, "_available_gib", lambda: available)  # others take memory, too
    with stress.little_memory(available - 0.5):
        assert len(children("tools.stress --take")) == 1
    assert children("tools.stress --take") == []


def test_a_clock_that_did_not_jump_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[float] = []
    monkeypatch.setattr(stress, "_move_clock", moved.append)
    with stress.clock_jump(400, after=3600):
        pass
    assert moved == []
    with stress.clock_jump(400, after=0):
        wait_for("the clock moves", lambda: moved)
    assert moved == [400, -400]
