"""Work in a child process that may hang in the kernel: the caller stops waiting for it at a time limit.

Programs are not for this: `programs` starts them, with their own limits.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Callable

# Seconds for which the end of a killed process is waited for.
_BURIAL_S = 0.2


def text_of(work: Callable[[], str], seconds: float) -> str:
    """What `work` returns in a child process.

    Raises:
        TimeoutError: it did not end in time, and was killed.
    """
    return bytes_of(lambda: work().encode(), seconds).decode(errors="replace")


def bytes_of(work: Callable[[], bytes], seconds: float, most: int | None = None) -> bytes:
    """What `work` returns in a child process; nothing where it raises an error. The child leads a session of its own,
    which ends with it: nothing that it started runs on.

    Args:
        seconds: for the whole of it.
        most: bytes of the result.

    Raises:
        TimeoutError: it did not end in time, and was killed.
        ValueError: it has a larger result.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()
            os.close(read)
            result = work()
            while result:
                result = result[os.write(write, result) :]
            status = 0
        finally:
            # Neither what the parent would do at its end, nor a traceback, which no program reads.
            os._exit(status)
    os.close(write)
    try:
        return _read_until_end(read, seconds, most)
    finally:
        os.close(read)
        kill(child)
        # A child that hangs in the kernel ends when it can; this program ends now.
        reap(child, _BURIAL_S)


def kill(pid: int) -> None:
    """Kill a process, and the group that it leads; one that has just been started may lead none yet."""
    for one in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            one(pid, signal.SIGKILL)


def reap(pid: int, seconds: float) -> bool:
    """Whether a child has ended; waits for it at most so long."""
    until = time.monotonic() + seconds
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.002)


def _read_until_end(descriptor: int, seconds: float, most: int | None) -> bytes:
    until = time.monotonic() + seconds
    result = bytearray()
    # Not select(), which takes no descriptor above 1023.
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    while most is None or len(result) <= most:
        left = until - time.monotonic()
        if left <= 0 or not waiting.poll(left * 1000):
            raise TimeoutError(f"they did not end within {seconds:g} s")
        part = os.read(descriptor, 65536)
        if not part:
            return bytes(result)
        result += part
    raise ValueError(f"the result has more than {most} bytes")
