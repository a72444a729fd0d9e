"""Locks of files that at most one process holds: a backup, an import of an image, a change of the directory.

The kernel releases a lock when its process ends, however it ends. Imports nothing else of the controller's programs.
"""

from __future__ import annotations

import fcntl
import time

_POLL_SECONDS = 0.05


def acquire(descriptor: int, seconds: float = 0.0) -> bool:
    """Lock an open file; returns whether it was free, or became free.

    Args:
        seconds: for which it waits for another process. It is tried at least once.

    Raises:
        OSError: the file system has no locks.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
        else:
            return True
        time.sleep(_POLL_SECONDS)
