"""Programs and measurements that hang, flood, die or dump core, as real processes: the limits hold."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpucluster.node_agent import programs
from gpucluster.node_agent.checks import side_by_side
from gpucluster.node_agent.checks.model import Missing
from gpucluster.node_agent.checks.side_by_side import Task
from tests.doubles.clock import LateTime
from tests.waiting import PATIENCE_S, hang, wait_for

#: Seconds that a program of these tests may take that ends by itself.
LONG = 10 * PATIENCE_S
LIMIT = 30.0


def alive(pid: int) -> bool:
    try:
        # A killed process whose parent has not waited for it is gone, too.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_gone(pid: int) -> None:
    wait_for(f"process {pid} is gone", lambda: not alive(pid))


class Note(NamedTuple):
    """A file in which a process writes its number when it is where a test wants it."""

    file: Path

    def code(self) -> str:
        """For a program in Python."""
        return f"open({str(self.file)!r}, 'w').write(str(os.getpid()) + chr(10))"

    def write(self) -> None:
        self.file.write_text(f"{os.getpid()}\n")

    def is_written(self) -> bool:
        return self.file.exists() and self.file.read_text().endswith("\n")

    def pid(self) -> int:
        return int(self.file.read_text())


@pytest.fixture
def note(tmp_path: Path) -> Iterator[Note]:
    made = Note(tmp_path / "pid")
    yield made
    if made.is_written():
        with contextlib.suppress(ProcessLookupError):
            _kill(made.pid(), signal.SIGKILL)


# Some tests replace it.
_kill = os.kill


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_an_answer_is_whole() -> None:
    done = programs.ask(["sh", "-c", "echo out; echo err >&2; exit 3"], LONG, 1000)
    assert done == (3, b"out\n", b"err\n", "")


def test_a_large_answer_is_whole() -> None:
    done = programs.ask(["head", "-c", "3000000", "/dev/zero"], LONG, 3000000)
    assert (done.status, len(done.output), done.fault) == (0, 3000000, "")


def test_a_program_that_is_not_there() -> None:
    assert programs.ask(["no-such-program"], LONG, 10).fault == "no-such-program is not installed"
    assert "can't be started: " in programs.ask(["/etc/hostname"], LONG, 10).fault


@pytest.mark.parametrize(
    "code",
    ["pass", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", "os.close(1); os.close(2)", "print('half', flush=True)"],
    ids=["sleeps", "ignores SIGTERM", "closes its output", "stops in the middle"],
)
def test_a_program_that_hangs_is_killed(code: str, note: Note, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "time", LateTime(note.is_written))
    done = programs.ask(python(f"import os, signal; {code}; {note.code()}; signal.pause()"), 3, 1000)
    assert done.fault.endswith("gave no answer within 3 s")
    until_gone(note.pid())


def test_a_limit_is_in_seconds() -> None:
    """By the real clock, and with a program that may not even have begun."""
    assert programs.ask(["sleep", "600"], 0.1, 1000).fault == "sleep gave no answer within 0.1 s"


def test_its_children_are_killed_with_it(note: Note) -> None:
    done = programs.ask(["sh", "-c", f"sleep 600 & echo $! > {note.file}; echo done"], LONG, 1000)
    assert (done.output, done.fault) == (b"done\n", ""), "the program itself has ended well"
    until_gone(note.pid())


def test_a_descendant_that_left_the_group_is_not_awaited(note: Note, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    left = f"setsid sh -c 'echo $$ > {note.file}; echo > {tmp_path}/go; exec sleep 600'"
    done = programs.ask(["sh", "-c", f"{left} & read _ < {tmp_path}/go; echo done"], LONG, 1000)
    assert (done.output, done.fault) == (b"done\n", "")
    assert alive(note.pid())


def test_a_program_that_the_kernel_does_not_end_is_not_awaited(monkeypatch: pytest.MonkeyPatch, note: Note) -> None:
    # What a process in uninterruptible sleep does with a signal: nothing.
    monkeypatch.setattr(os, "killpg", lambda _group, _signal: None)
    monkeypatch.setattr(programs, "time", LateTime(note.is_written))
    done = programs.ask(["sh", "-c", f"echo $$ > {note.file}; exec sleep 600"], 3, 1000)
    assert (done.status, done.fault) == (None, "sh gave no answer within 3 s")
    assert alive(note.pid())


def test_a_program_that_floods_is_killed() -> None:
    done = programs.ask(["yes"], LONG, 100_000)
    assert done.fault == "yes printed more than 100000 bytes"
    assert len(done.output) == 100_000
    errors = programs.ask(["sh", "-c", "head -c 5000000 /dev/zero >&2; echo good"], LONG, 1000)
    assert (errors.output, errors.fault) == (b"good\n", "")
    assert len(errors.errors) < 10_000


def test_a_program_that_dies() -> None:
    assert programs.ask(["sh", "-c", "kill -SEGV $$"], LONG, 1000).status == -signal.SIGSEGV


def test_a_caller_that_ignores_the_end_of_children_gets_an_answer() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        done = programs.ask(["echo", "good"], LONG, 1000)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert (done.output, done.fault) == (b"good\n", "")


def dies(_seconds: float) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def hanging(note: Note) -> Task:
    """A measurement that never ends. In its process a real clock goes on, and ends it some time after its limit."""

    def measure(_seconds: float) -> None:
        note.write()
        hang()

    return Task(measure, LIMIT)


def test_measurements_are_made_side_by_side_each_within_its_limit(monkeypatch: pytest.MonkeyPatch, note: Note) -> None:
    monkeypatch.setattr(side_by_side, "time", LateTime(note.is_written, step=5))
    found = side_by_side.run(
        {
            "sleeps": hanging(note),
            "dies": Task(dies, 1e6),
            "good": Task(lambda seconds: {"seconds": seconds, "list": [1]}, 1e6),
            "missing": Task(lambda _seconds: Missing("no tool"), 1e6),
            "large": Task(lambda _seconds: "x" * 1_000_000, 1e6),
            "strange": Task(lambda _seconds: {1, 2}, 1e6),
        }
    )
    assert found.pop("large") == "x" * 1_000_000
    assert found == {
        "sleeps": Missing(f"sleeps gave no answer within {LIMIT:g} s"),
        "dies": Missing("the measurement ended without an answer"),
        "good": {"seconds": 1e6, "list": [1]},
        "missing": Missing("no tool"),
        "strange": Missing("the measurement ended without an answer"),
    }
    until_gone(note.pid())


def test_a_tool_that_hangs_does_not_outlive_the_measurement_that_asked_it(
    monkeypatch: pytest.MonkeyPatch, note: Note
) -> None:
    """On a busy node the measurement is ended before it has noticed its own limit."""
    monkeypatch.setattr(side_by_side, "time", LateTime(note.is_written, step=5))
    tool = ["sh", "-c", f"sleep 600 & echo $! > {note.file}; wait"]
    found = side_by_side.run({"tool": Task(lambda _seconds: programs.ask(tool, LONG, 1000), LIMIT)})
    assert found == {"tool": Missing(f"tool gave no answer within {LIMIT:g} s")}
    until_gone(note.pid())


def test_a_limit_of_a_measurement_is_in_seconds() -> None:
    found = side_by_side.run({"sleeps": Task(lambda _seconds: hang(), 0.1)})
    # Its own process may have noticed it first.
    assert isinstance(found["sleeps"], Missing)


def test_a_measurement_that_the_kernel_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch, note: Note) -> None:
    monkeypatch.setattr(os, "kill", lambda _pid, _signal: None)
    monkeypatch.setattr(side_by_side, "time", LateTime(note.is_written, step=5))
    assert isinstance(side_by_side.run({"sleeps": hanging(note)})["sleeps"], Missing)
    assert alive(note.pid())


def test_a_measurement_holds_no_file_of_its_caller(note: Note) -> None:
    # What slurmd does: it reads the output of its program to the end.
    code = f"""
import os, signal, time
from gpucluster.node_agent.checks import side_by_side
class LateTime:
    now, sleep = 0.0, staticmethod(time.sleep)
    def monotonic(self):
        self.now += 5.0 * os.path.exists({str(note.file)!r})
        return self.now
def sleeps(seconds):
    {note.code()}
    signal.pause()
kill, os.kill = os.kill, lambda pid, number: None
side_by_side.time = LateTime()
side_by_side.run({{"sleeps": side_by_side.Task(sleeps, {LIMIT})}})
print("done")
"""
    done = programs.ask([sys.executable, "-c", code], LONG, 1000)
    assert (done.output, done.fault) == (b"done\n", ""), done.errors
    wait_for("the measurement has written its number", note.is_written)
    assert alive(note.pid())
