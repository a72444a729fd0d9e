"""The files of kept lines: FOLDER/HOST/DAY.gz, of the day (UTC) on which they were collected, and how far each host is.

Each round adds a member to the file of its day; `zcat` reads them. The record of a host is replaced after the lines are
on disk, and has the size of the file: what a round that was interrupted had added is cut off by the next one, which
asks for the same lines again. So no line is lost, and none is kept twice.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from gpucluster.node_agent import bounded
from gpucluster.node_agent.durable_file import replace

#: Names of hosts, which become names of folders.
HOST = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_DAY_FILE = re.compile(r"\d{4}-\d{2}-\d{2}\.gz")
_RECORD = "position.json"


def stamp(seconds: float) -> str:
    """A time as lines of journals begin, in UTC: 2026-11-30T02:03:28."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


def day(seconds: float) -> str:
    """The day of a time, in UTC: 2026-11-30."""
    return stamp(seconds).partition("T")[0]


@dataclass(frozen=True)
class Position:
    """How far the lines of a host are kept.

    Args:
        cursor: journald's, of the last line; empty where nothing was kept.
        collected: when that was, in seconds since 1970; 0 for never.
        day: that of the file in which it ends; `size`: of that file, in bytes.
    """

    cursor: str = ""
    collected: float = 0.0
    day: str = ""
    size: int = 0


class KeptFile(NamedTuple):
    """One file of kept lines."""

    day: str
    size: int
    path: Path


class LogStore:
    """Kept lines in a folder that root alone reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hosts(self) -> list[str]:
        """Of which hosts there are lines."""
        if not self.folder.is_dir():
            return []
        return sorted(each.name for each in self.folder.iterdir() if each.is_dir() and HOST.fullmatch(each.name))

    def position(self, host: str) -> Position:
        """How far the lines of a host are kept. Where its record can't be read, lines may be there twice."""
        try:
            found = bounded.load(self.folder / host / _RECORD)
            return Position(str(found["cursor"]), float(found["collected"]), str(found["day"]), int(found["size"]))
        except (OSError, ValueError, KeyError, TypeError):
            return Position()

    def add(self, host: str, lines: Sequence[str], cursor: str, now: float) -> None:
        """Keep lines that follow those that are kept.

        Args:
            now: in seconds since 1970.

        Raises:
            OSError: the disk is full, or another reason of the system.
        """
        before = self.position(host)
        home = self.folder / host
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        end, size = before.day, before.size
        if lines:
            packed = gzip.compress("".join(f"{line}\n" for line in lines).encode(errors="replace"))
            end = day(now)
            size = _append(home / f"{end}.gz", packed, before.size if before.day == end else 0)
        record = {"cursor": cursor, "collected": now, "day": end, "size": size}
        replace(home / _RECORD, json.dumps(record) + "\n", mode=0o600)

    def files(self, host: str) -> list[KeptFile]:
        """The files of a host, the oldest first."""
        home = self.folder / host
        if not home.is_dir():
            return []
        found = (each for each in home.iterdir() if _DAY_FILE.fullmatch(each.name))
        return sorted(KeptFile(each.name[:-3], each.stat().st_size, each) for each in found)

    def lines(self, host: str, *, since_day: str = "") -> Iterator[str]:
        """The lines of a host in the order in which they were collected.

        Args:
            since_day: without the files of earlier days.
        """
        for file in self.files(host):
            if file.day >= since_day:
                yield from _lines(file.path)

    def remove_old(self, first_day: str, most_bytes: int) -> int:
        """Remove what is older than a day, then the oldest files until the others are small enough. Returns their size.

        The newest file of a host stays, whatever its size: its record is about it.
        """
        files = sorted(each for host in self.hosts() for each in self.files(host))
        total = sum(each.size for each in files)
        newest = {each.path.parent: each.path for each in files}
        for each in files:
            old = each.day < first_day
            if not old and (total <= most_bytes or newest[each.path.parent] == each.path):
                continue
            each.path.unlink(missing_ok=True)
            total -= each.size
        for host in self.hosts():
            # A host of which nothing is left and that has given nothing since.
            if not self.files(host) and self.position(host).day < first_day:
                shutil.rmtree(self.folder / host, ignore_errors=True)
        return total


def _append(file: Path, data: bytes, size: int) -> int:
    """Write behind the first `size` bytes of a file, and wait until it is on disk. Returns the new size."""
    with open(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "r+b") as stream:
        size = min(size, os.fstat(stream.fileno()).st_size)
        stream.truncate(size)
        stream.seek(size)
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    return size + len(data)


def _lines(file: Path) -> Iterator[str]:
    try:
        with gzip.open(file, "rt", errors="replace") as stream:
            for line in stream:
                yield line.rstrip("\n")
    except (EOFError, OSError):
        return  # what a round that was interrupted has left, or a damaged file: it ends there
