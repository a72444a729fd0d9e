"""Processes of tests that are watched from outside: whether one lives, and when it is where a test needs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tests.waiting import PATIENCE_S, wait_for

#: Seconds that a program of these tests may take that ends by itself.
LONG = 10 * PATIENCE_S
LIMIT = 30.0


def alive(pid: int) -> bool:
    try:
        # A killed process whose parent has not waited for it is gone, too.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_gone(pid: int) -> None:
    wait_for(f"process {pid} is gone", lambda: not alive(pid))


class Note(NamedTuple):
    """A file in which a process writes its number when it is where a test wants it."""

    file: Path

    def code(self) -> str:
        """For a program in Python."""
        return f"open({str(self.file)!r}, 'w').write(str(os.getpid()) + chr(10))"

    def write(self) -> None:
        self.file.write_text(f"{os.getpid()}\n")

    def is_written(self) -> bool:
        return self.file.exists() and self.file.read_text().endswith("\n")

    def pid(self) -> int:
        return int(self.file.read_text())


# Some tests replace it.
kill = os.kill
