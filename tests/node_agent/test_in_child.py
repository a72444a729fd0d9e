"""Work in a child process: its result, its limits, and that nothing of it runs on."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from gpucluster.node_agent import in_child
from tests.node_agent.processes import LONG, Note, until_gone
from tests.waiting import wait_for


def test_the_result_comes_back_whole() -> None:
    assert in_child.bytes_of(lambda: b"x" * (1 << 20), LONG) == b"x" * (1 << 20)
    assert in_child.text_of(lambda: "für", LONG) == "für"


def test_an_error_is_no_result(capfd: pytest.CaptureFixture[str]) -> None:
    assert in_child.bytes_of(lambda: str(1 // 0).encode(), LONG) == b""
    assert capfd.readouterr().err == ""


def test_work_that_hangs_is_killed_with_what_it_started(note: Note, monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> bytes:
        program = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
        note.file.write_text(f"{program.pid}\n")
        signal.pause()
        return b""

    class LateAnswer:
        """Of poll(2): nothing, when the work is where this test needs it, however long it took to come there."""

        def register(self, *_arguments: int) -> None: ...

        def poll(self, _milliseconds: float) -> list[tuple[int, int]]:
            wait_for("the work hangs", note.is_written)
            return []

    monkeypatch.setattr("gpucluster.node_agent.in_child.select.poll", LateAnswer)
    with pytest.raises(TimeoutError, match=r"within 60 s"):
        in_child.bytes_of(work, 60.0)
    until_gone(note.pid())


def test_a_limit_is_in_seconds() -> None:
    """By the real clock, and with work that may not even have begun."""

    def work() -> bytes:
        signal.pause()
        return b""

    with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
        in_child.bytes_of(work, 0.1)


def test_a_result_that_is_too_large_is_refused() -> None:
    assert in_child.bytes_of(lambda: b"12345", LONG, most=5) == b"12345"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        in_child.bytes_of(lambda: b"12345", LONG, most=4)


def test_a_child_is_reaped_once() -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    assert not in_child.reap(child, 0.0)
    in_child.kill(child)
    assert in_child.reap(child, LONG)
    assert in_child.reap(child, 0.0)
