"""Programs and measurements that hang, flood, die or dump core, as real processes: the limits hold."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.agent import programs
from gpucluster.agent.checks import side_by_side
from gpucluster.agent.checks.model import Missing
from gpucluster.agent.checks.side_by_side import Task

LIMIT = 1.5
#: The limit, the wait for a killed program, and a slow machine. A hang would last until the test's own limit.
SOON = 60.0


def alive(pid: int) -> bool:
    try:
        # A killed process that nobody has waited for is gone, too.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int) -> bool:
    end = time.monotonic() + SOON
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not alive(pid)


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


@pytest.fixture
def children() -> Iterator[list[int]]:
    """Processes to end after the test."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_an_answer_is_whole() -> None:
    done = programs.ask(["sh", "-c", "echo out; echo err >&2; exit 3"], 30, 1000)
    assert done == (3, b"out\n", b"err\n", "")


def test_a_large_answer_is_whole() -> None:
    done = programs.ask(["head", "-c", "3000000", "/dev/zero"], 30, 3000000)
    assert (done.status, len(done.output), done.fault) == (0, 3000000, "")


def test_a_program_that_is_not_there() -> None:
    assert programs.ask(["no-such-program"], 1, 10).fault == "no-such-program is not installed"
    assert "can't be started: " in programs.ask(["/etc/hostname"], 1, 10).fault


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(600)",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
        "import os, time; os.close(1); os.close(2); time.sleep(600)",
        "import sys, time; print('half', flush=True); time.sleep(600)",
    ],
    ids=["sleeps", "ignores SIGTERM", "closes its output", "stops in the middle"],
)
def test_a_program_that_hangs_is_killed(code: str, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    begin = time.monotonic()
    done = programs.ask(python(f"import os; open({str(note)!r}, 'w').write(str(os.getpid())); {code}"), 2 * LIMIT, 1000)
    assert time.monotonic() - begin < SOON
    assert done.fault.endswith("gave no answer within 3 s")
    assert gone(int(note.read_text()))


def test_its_children_are_killed_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    done = programs.ask(["sh", "-c", f"sleep 600 & echo $! > {note}; echo done"], 30, 1000)
    assert (done.output, done.fault) == (b"done\n", ""), "the program itself has ended well"
    assert gone(int(note.read_text()))


def test_nobody_waits_for_a_descendant_that_left_the_group(tmp_path: Path, children: list[int]) -> None:
    note = tmp_path / "pid"
    begin = time.monotonic()
    done = programs.ask(["sh", "-c", f"setsid sleep 600 & echo $! > {note}; echo done"], 30, 1000)
    assert (done.output, done.fault) == (b"done\n", "")
    assert time.monotonic() - begin < SOON
    children.append(int(note.read_text()))


def test_nobody_waits_for_a_program_that_the_kernel_does_not_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, children: list[int]
) -> None:
    note = tmp_path / "pid"
    # What a process in uninterruptible sleep does with a signal: nothing.
    monkeypatch.setattr(os, "killpg", lambda _group, _signal: None)
    begin = time.monotonic()
    done = programs.ask(["sh", "-c", f"echo $$ > {note}; exec sleep 600"], LIMIT, 1000)
    assert (done.status, done.fault) == (None, f"sh gave no answer within {LIMIT:g} s")
    assert time.monotonic() - begin < SOON
    children.append(int(note.read_text()))
    assert alive(children[0])


def test_a_program_that_floods_is_killed() -> None:
    done = programs.ask(["yes"], 600, 100_000)
    assert done.fault == "yes printed more than 100000 bytes"
    assert len(done.output) == 100_000
    errors = programs.ask(["sh", "-c", "head -c 5000000 /dev/zero >&2; echo good"], 600, 1000)
    assert (errors.output, errors.fault) == (b"good\n", "")
    assert len(errors.errors) < 10_000


def test_a_program_that_dies() -> None:
    assert programs.ask(["sh", "-c", "kill -SEGV $$"], 30, 1000).status == -signal.SIGSEGV


def test_a_caller_that_ignores_the_end_of_children_gets_an_answer() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        done = programs.ask(["echo", "good"], 30, 1000)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert (done.output, done.fault) == (b"good\n", "")


def sleeps(_seconds: float) -> Any:
    time.sleep(600)


def dies(_seconds: float) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def test_measurements_are_made_side_by_side_each_within_its_limit() -> None:
    begin = time.monotonic()
    found = side_by_side.run(
        {
            "sleeps": Task(sleeps, LIMIT),
            "dies": Task(dies, 30),
            "good": Task(lambda seconds: {"seconds": seconds, "list": [1]}, 30),
            "missing": Task(lambda _seconds: Missing("no tool"), 30),
            "large": Task(lambda _seconds: "x" * 1_000_000, 30),
            "strange": Task(lambda _seconds: {1, 2}, 30),
        }
    )
    assert time.monotonic() - begin < SOON
    assert found.pop("large") == "x" * 1_000_000
    assert found == {
        "sleeps": Missing(f"sleeps gave no answer within {LIMIT:g} s"),
        "dies": Missing("the measurement ended without an answer"),
        "good": {"seconds": 30, "list": [1]},
        "missing": Missing("no tool"),
        "strange": Missing("the measurement ended without an answer"),
    }


def test_a_measurement_that_the_kernel_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", lambda _pid, _signal: None)
    begin = time.monotonic()
    assert isinstance(side_by_side.run({"sleeps": Task(sleeps, LIMIT)})["sleeps"], Missing)
    assert time.monotonic() - begin < SOON


def test_a_measurement_holds_no_file_of_its_caller(tmp_path: Path, children: list[int]) -> None:
    # What slurmd does: it reads the output of its program to the end.
    code = f"""
import os, time
from gpucluster.agent.checks import side_by_side
def sleeps(seconds):
    open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
    time.sleep(600)
kill, os.kill = os.kill, lambda pid, number: None
side_by_side.run({{"sleeps": side_by_side.Task(sleeps, {LIMIT})}})
print("done")
"""
    begin = time.monotonic()
    done = programs.ask([sys.executable, "-c", code], 60, 1000)
    assert (done.output, done.fault) == (b"done\n", ""), done.errors
    assert time.monotonic() - begin < SOON
    children.append(int((tmp_path / "pid").read_text()))
