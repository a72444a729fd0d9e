"""Stopping a process with SIGSTOP.

kill(2) returns before the process has stopped: the signal is given to one thread, which stops the others when it runs
next. On a busy machine they work on in between, and answer.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from tests.waiting import wait_for


def stop(pid: int) -> None:
    """Stop a process of this machine, and wait until none of its threads runs any more."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(f"process {pid} is stopped", lambda: all_stopped(_statuses(pid)))


def all_stopped(statuses: str) -> bool:
    """Whether all of these threads are stopped.

    Args:
        statuses: what the files `/proc/PID/task/*/status` contain.
    """
    states = [line.split()[1] for line in statuses.splitlines() if line.startswith("State:")]
    return bool(states) and set(states) == {"T"}


def _statuses(pid: int) -> str:
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found.append(file.read_text())
    return "".join(found)
