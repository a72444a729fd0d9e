"""The folder for the sockets of shared connections.

A user who can put a socket where ssh looks for one receives what is meant for the host: commands, passwords, files. ssh
does not check who made it. So the folder must be ours alone, and so must every folder above it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

#: The longest path of the folder. A socket's address has 108 bytes with its final zero. ssh appends a slash, 40 digits
#: (%C), and, until the socket is ready, a point and 16 random characters.
LONGEST = 108 - 1 - 1 - 40 - 17


class Sockets:
    """The folder with the sockets of one cluster.

    Args:
        root: the cluster's state folder, which tells it from other clusters.
    """

    def __init__(self, root: Path) -> None:
        self._digest = hashlib.sha256(str(root).encode()).hexdigest()[:8]

    def folder(self, *, make: bool = True) -> Path | None:
        """The folder; None if no place is safe. Ask again before each use.

        Args:
            make: it is made if it is missing. Otherwise None: a cluster that has no connection needs none.
        """
        for base in self._bases(os.environ):
            folder = _private(base / "gpucluster" / self._digest, make=make)
            if folder is not None:
                return folder
        return None

    def present(self) -> Iterator[Path]:
        """The sockets that are there."""
        folder = self.folder(make=False)
        return iter(()) if folder is None else folder.iterdir()

    def remove(self) -> None:
        """Remove the folder, which must be empty by now."""
        folder = self.folder(make=False)
        if folder is not None:
            folder.rmdir()

    @staticmethod
    def _bases(environment: Mapping[str, str]) -> Iterator[Path]:
        runtime = Path(environment.get("XDG_RUNTIME_DIR", ""))
        if runtime.is_absolute() and _is_ours(runtime):
            yield runtime
        yield Path("~/.cache").expanduser()


def _private(folder: Path, *, make: bool) -> Path | None:
    """This folder without links in its path; None if others could have a hand in it, or if it is missing and not to be
    made.
    """
    try:
        # Links above it may be there (/home may be one); what they lead to is checked.
        if make:
            folder.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        base = folder.parent.parent.resolve(strict=True)
        if not _out_of_reach(base):
            return None
        folder = base / folder.parent.name / folder.name
        if make:
            folder.parent.mkdir(mode=0o700, exist_ok=True)
        if folder.parent.is_symlink() or not _out_of_reach(folder.parent):
            return None
        if make:
            folder.mkdir(mode=0o700, exist_ok=True)
        ours = _is_ours(folder) and all(entry.lstat().st_uid == os.geteuid() for entry in folder.iterdir())
    except (OSError, RuntimeError):  # a loop of links
        return None
    return folder if ours and _fits(str(folder)) else None


def _fits(folder: str) -> bool:
    """Whether ssh, its configuration and a shell read this path as it is."""
    return len(folder) <= LONGEST and re.fullmatch(r"[A-Za-z0-9_./@+, -]+", folder) is not None


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder, and no link, that belongs to us and is closed to all others."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _out_of_reach(folder: Path) -> bool:
    """Whether no other user but root can rename or replace this folder, or one above it, as the path has them."""
    return all(_kept(step.lstat()) for step in (folder, *folder.parents))


def _kept(status: os.stat_result) -> bool:
    """Whether others can't exchange what is in this folder. In a folder like /tmp, only an entry's owner can; the
    entry that is ours is checked on its own."""
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.geteuid())
    return mine and (not status.st_mode & 0o022 or bool(status.st_mode & stat.S_ISVTX))
