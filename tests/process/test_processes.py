"""Which process is which: identities, and the children of a run that is dead."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gpucluster import process
from tests.waiting import wait_for


def test_identity_tells_a_process_from_its_successor(tmp_path: Path) -> None:
    pid = process.spawn_daemon(["sleep", "600"], log=tmp_path / "d.log")
    try:
        assert process.identity(pid) is not None
        assert process.identity(os.getpid()) != process.identity(pid)
        assert (tmp_path / "d.log").stat().st_mode & 0o777 == 0o600
    finally:
        os.kill(pid, signal.SIGINT)
    wait_for("the program ends", lambda: process.identity(pid) is None)


def test_marked_finds_the_children_of_a_dead_run(tmp_path: Path) -> None:
    mark = f"mark-{os.getpid()}"
    env = {**os.environ, "GPUCLUSTER_TEST_MARK": mark}
    pid = process.spawn_daemon(["sleep", "600"], log=tmp_path / "d.log", env=env)
    try:
        # A process that execve has just begun has no environment in /proc for a moment: the kernel closes the files of
        # the old program, for which our Popen waits, before it has laid out the new one.
        pids = wait_for("it has begun", lambda: process.pids_with_variable("GPUCLUSTER_TEST_MARK", mark))
        assert pids == (pid,)
        assert process.pids_with_variable("GPUCLUSTER_TEST_MARK", mark + "x") == ()
    finally:
        os.kill(pid, signal.SIGINT)
