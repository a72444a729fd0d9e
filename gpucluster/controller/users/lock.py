"""The lock that every change of the directory holds. The restore of a backup holds it, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpucluster.controller import file_lock
from gpucluster.node_agent.errors import Failed

FILE = Path("/run/gpucluster-directory.lock")
#: Longer than any change takes, except for an import of thousands of users.
SECONDS = 300.0


@contextmanager
def held(file: Path = FILE, seconds: float = SECONDS) -> Iterator[None]:
    """Hold the lock; wait for it at most this long. The kernel releases it when the process ends, however it ends.

    Raises:
        Failed: another process held it for the whole time.
    """
    # Any user who can open the file can lock it, even for reading only: so only root can open it.
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(handle, 0o600)
        if not file_lock.acquire(handle, seconds):
            raise Failed("another change of the directory runs", "Wait until it has ended, and try again")
        yield
    finally:
        os.close(handle)
