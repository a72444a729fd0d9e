"""Programs that hang, flood, die or dump core, as real processes: the limits hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpucluster.node_agent import programs
from tests.doubles.clock import LateTime
from tests.node_agent.processes import LIMIT, LONG, Note, alive, until_gone
from tests.waiting import wait_for


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


# --- programs that end together -----


def test_a_program_of_a_group_has_its_input_and_its_status() -> None:
    done = programs.ProgramGroup().run(["sh", "-c", "cat; echo err >&2; exit 3"], LONG, b"word\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, "word\n", "err\n")
    missing = programs.ProgramGroup().run(["no-such-program"], LONG)
    assert (missing.returncode, missing.stderr) == (programs.MISSING, "no-such-program is not installed")


def test_a_program_of_a_group_that_is_late_is_killed_with_its_children(
    note: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock by which communicate() judges; what it waits for in between is real.
    monkeypatch.setattr(subprocess, "_time", LateTime(note.is_written, step=5).monotonic)
    script = f"sleep 600 & echo $! > {note.file}; wait"
    done = programs.ProgramGroup().run(["sh", "-c", script], 1)
    assert (done.returncode, done.stderr) == (programs.OUT_OF_TIME, "sh did not end within 1 s")
    until_gone(note.pid())


@pytest.mark.parametrize(
    ("code", "seconds"),
    [("pass", LONG), ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", 0.1)],
    ids=["ends", "ignores SIGTERM"],
)
def test_a_group_that_is_stopped_ends_what_runs_and_starts_nothing(code: str, seconds: float, note: Note) -> None:
    group = programs.ProgramGroup()
    argv = python(f"import os, signal; {code}; {note.code()}; signal.pause()")
    ended: list[programs.Completed[str]] = []
    waiting = threading.Thread(target=lambda: ended.append(group.run(argv, LONG)))
    waiting.start()
    wait_for("it runs", note.is_written)
    group.stop(seconds)
    waiting.join()
    until_gone(note.pid())
    assert ended[0].returncode < 0
    assert group.stopped
    assert "is not wanted any more" in group.run(["true"], LONG).stderr
