"""What several steps of a backup share: time limits, checksums, and progress messages."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from pathlib import Path

CHUNK = 1 << 20
#: Seconds for a daemon that starts or stops (systemd itself gives up before), and for a program that reads or writes a
#: whole database.
UNIT_SECONDS, DATA_SECONDS = 300.0, 6 * 3600.0


def digest(file: Path) -> str:
    """The SHA-256 of a file."""
    checksum = hashlib.sha256()
    with file.open("rb") as stream:
        for chunk in iter(lambda: stream.read(CHUNK), b""):
            checksum.update(chunk)
    return checksum.hexdigest()


def note(words: str) -> None:
    """Report progress on standard error. The last line there is the error, if there is one."""
    with contextlib.suppress(OSError):
        sys.stderr.write(words + "\n")
        sys.stderr.flush()
