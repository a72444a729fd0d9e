"""Programs that go on when we are killed, and stop signals that reach them once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpucluster import process
from tests.waiting import wait_for

# Programs that must come to their own end

# Reports "ready", counts what it gets of SIGINT, and comes to its end when a test lets it: `_let_go`.
_CAREFUL = """
import signal
told = 0
def stop(*_):
    global told
    told += 1
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
open("go").read()
print(f"saved after {told} signals", flush=True)
"""


# Follows the program above, in a process that is killed; `sys.argv` has the file and the folder.
_FOLLOWER = f"""
import sys
from pathlib import Path
from gpucluster import process
with open(sys.argv[1], "w+b", buffering=0) as output:
    process.follow(
        [sys.executable, "-c", {_CAREFUL!r}], output=output, errors=output,
        on_line=lambda line: print(line, flush=True),
        on_stop=lambda number: print("stop", number, flush=True), interrupts_file=Path(sys.argv[2]) / "told",
        env={{"PROGRAM_OF_A_TEST": sys.argv[2]}}, cwd=Path(sys.argv[2]),
    )
"""


def _follower(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """One that follows, when its program is ready."""
    output = folder / "output"
    os.mkfifo(folder / "go")
    argv = [sys.executable, "-c", _FOLLOWER, str(output), str(folder)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child, output


def _let_go(folder: Path) -> None:
    (folder / "go").write_text("")


def test_a_program_writes_on_when_we_are_killed(tmp_path: Path) -> None:
    with _follower(tmp_path)[0] as child:
        child.kill()
    (pid,) = process.pids_with_variable("PROGRAM_OF_A_TEST", str(tmp_path))
    process.interrupt_once(pid, tmp_path / "told")
    _let_go(tmp_path)
    wait_for("the program ends", lambda: process.identity(pid) is None)
    assert (tmp_path / "output").read_text() == "ready\nsaved after 1 signals\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_stop_signal_is_passed_on_once_and_the_program_ends_by_itself(tmp_path: Path, number: int) -> None:
    child, output = _follower(tmp_path)
    with child:
        assert child.stdout is not None
        child.send_signal(number)
        assert child.stdout.readline() == "stop 1\n"
        child.send_signal(number)
        assert child.stdout.readline() == "stop 2\n"
        _let_go(tmp_path)
        said = child.stdout.read()
    assert said.startswith("saved after 1 signals\n"), said
    assert "KeyboardInterrupt" in said
    assert output.read_text() == "ready\nsaved after 1 signals\n"


def test_a_program_that_was_told_to_stop_is_not_told_again_by_the_next_run(tmp_path: Path) -> None:
    child, output = _follower(tmp_path)
    with child:
        assert child.stdout is not None
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "stop 1\n"
        child.kill()
    (pid,) = process.pids_with_variable("PROGRAM_OF_A_TEST", str(tmp_path))
    process.interrupt_once(pid, tmp_path / "told")
    _let_go(tmp_path)
    wait_for("the program ends", lambda: process.identity(pid) is None)
    assert output.read_text() == "ready\nsaved after 1 signals\n"


def test_an_error_of_ours_waits_for_the_program(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")

    def let_go() -> None:
        wait_for("the program is told", (tmp_path / "told").exists)
        _let_go(tmp_path)

    def fail(_line: str) -> None:
        threading.Thread(target=let_go, daemon=True).start()
        raise OSError("the terminal is gone")

    with process.in_memory("test") as output, pytest.raises(OSError, match="terminal"):
        process.follow(
            [sys.executable, "-c", _CAREFUL],
            output=output, errors=output, on_line=fail, on_stop=lambda _: None, interrupts_file=tmp_path / "told",
            env={}, cwd=tmp_path,
        )  # fmt: skip
    assert process.identity(int((tmp_path / "told").read_text().partition(":")[0])) is None
