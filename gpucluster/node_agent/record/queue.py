"""Records on their way to the controller: one file each, until the controller has it.

The epilog only writes the file. A process of its own sends it, together with what could not be sent before: no job and
no node waits for a controller that is away.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from gpucluster.node_agent.durable_file import replace
from gpucluster.node_agent.errors import AgentError, Refused

FOLDER = Path("/var/lib/gpucluster/job-record-queue")
#: Records, their bytes, and their age in seconds.
MOST, MOST_BYTES, OLDEST_S = 500, 32 << 20, 7 * 86400.0
#: Seconds for which one process tries, and between two tries: a job on a thousand nodes ends on all of them at once.
_SECONDS, _WAIT = 30.0, (1.0, 5.0)


def put(record: Mapping[str, Any], folder: Path = FOLDER) -> None:
    """Add a record. The oldest go when there are too many.

    Raises:
        OSError: the disk is full.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"{time.time_ns():020d}-{os.getpid()}.json"
    replace(folder / name, json.dumps(record, separators=(",", ":")), mode=0o600, durable=False)
    size = 0
    for number, file in enumerate(sorted(folder.glob("*.json"), reverse=True)):
        size += file.stat().st_size if file.exists() else 0
        if number >= MOST or size > MOST_BYTES:
            file.unlink(missing_ok=True)


def send_all(send: Callable[[str], bool], folder: Path = FOLDER, *, seconds: float = _SECONDS) -> int:
    """Send what waits, the oldest first; returns how much still does. One process at a time does this.

    Args:
        send: sends one record; whether the controller has kept it. Raises Refused if it never will.
    """
    until = time.monotonic() + seconds
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        while True:
            waiting = sorted(folder.glob("*.json"))
            if _sent(waiting, send, until) or time.monotonic() > until:
                break
            time.sleep(min(random.uniform(*_WAIT), max(0.0, until - time.monotonic())))  # noqa: S311 - no secret
    return len(list(folder.glob("*.json")))


def _sent(waiting: list[Path], send: Callable[[str], bool], until: float) -> bool:
    """Whether all could be sent; else the rest is tried later."""
    for file in waiting:
        if time.monotonic() > until:
            return False
        try:
            if time.time() - file.stat().st_mtime < OLDEST_S and not send(file.read_text()):
                return False
        except Refused:
            pass  # The controller never takes it.
        except (AgentError, OSError):
            return False
        file.unlink(missing_ok=True)
    return True


def in_background(work: Callable[[], object]) -> None:
    """Do this in a process that the caller does not wait for, with nothing of ours open."""
    if os.fork():
        return
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        os.closerange(3, 256)
        work()
    finally:
        os._exit(0)
