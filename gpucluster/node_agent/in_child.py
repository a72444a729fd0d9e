"""Work in a child process that may hang in the kernel: the caller stops waiting for it at a time limit."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Callable


def text_of(work: Callable[[], str], seconds: float) -> str:
    """What `work` returns in a child process.

    Raises:
        TimeoutError: it did not end in time, and was killed.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()
            os.close(read)
            text = work().encode()
            while text:
                text = text[os.write(write, text) :]
            status = 0
        finally:
            # Neither what the parent would do at its end, nor a traceback, which no program reads.
            os._exit(status)
    os.close(write)
    try:
        return _read_until_end(read, seconds)
    finally:
        os.close(read)
        kill(child)
        # A child that hangs in the kernel ends when it can; this program ends now.
        os.waitpid(child, os.WNOHANG)


def kill(pid: int) -> None:
    """Kill a process, and the group that it leads; one that has just been started may lead none yet."""
    for one in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            one(pid, signal.SIGKILL)


def _read_until_end(descriptor: int, seconds: float) -> str:
    until = time.monotonic() + seconds
    parts: list[bytes] = []
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            raise TimeoutError(f"they did not end within {seconds:g} s")
        part = os.read(descriptor, 65536)
        if not part:
            return b"".join(parts).decode(errors="replace")
        parts.append(part)
