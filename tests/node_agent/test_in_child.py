"""Work in a child process: its result, its limits, and that nothing of it runs on."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from gpucluster.node_agent import in_child
from tests.waiting import wait_for


def test_the_result_comes_back_whole() -> None:
    assert in_child.bytes_of(lambda: b"x" * (1 << 20), 60.0) == b"x" * (1 << 20)
    assert in_child.text_of(lambda: "für", 60.0) == "für"


def test_an_error_is_no_result(capfd: pytest.CaptureFixture[str]) -> None:
    assert in_child.bytes_of(lambda: str(1 // 0).encode(), 60.0) == b""
    assert capfd.readouterr().err == ""


def test_work_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    started = tmp_path / "pid"

    def work() -> bytes:
        started.write_text(str(subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL).pid))
        signal.pause()
        return b""

    with pytest.raises(TimeoutError, match=r"within 0\.5 s"):
        in_child.bytes_of(work, 0.5)
    pid = int(started.read_text())
    wait_for("the program has ended", lambda: not Path(f"/proc/{pid}/exe").exists() or _is_zombie(pid))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_result_that_is_too_large_is_refused() -> None:
    assert in_child.bytes_of(lambda: b"12345", 60.0, most=5) == b"12345"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        in_child.bytes_of(lambda: b"12345", 60.0, most=4)


def test_a_child_is_reaped_once() -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    assert not in_child.reap(child, 0.0)
    in_child.kill(child)
    assert in_child.reap(child, 60.0)
    assert in_child.reap(child, 0.0)
