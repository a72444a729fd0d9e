"""One at a time: whoever changes the directory holds the lock. A restore of a backup takes it from here, too."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from directory.errors import Failed

FILE = Path("/run/gpucluster-directory.lock")
#: Longer than any change but an import of thousands takes.
SECONDS = 300.0
_LOOK_SECONDS = 0.05


@contextmanager
def held(file: Path = FILE, seconds: float = SECONDS) -> Iterator[None]:
    """Have the lock, and wait for it no longer than so many seconds. It ends with the process, however that ends.

    Raises:
        Failed: somebody else has it all the time.
    """
    # Whoever can open the file can lock it, even if they may only read: root alone can.
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(handle, 0o600)
        _take(handle, time.monotonic() + seconds)
        yield
    finally:
        os.close(handle)


def _take(handle: int, until: float) -> None:
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise Failed("another change of the directory is under way", "Wait for it, and try again") from None
        time.sleep(_LOOK_SECONDS)
