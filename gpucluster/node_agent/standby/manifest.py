"""What a host has of the common part of its system, and how two hosts differ."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from gpucluster.node_agent.standby import scope

#: Kind, mode, owner, group; of a file size and time of change in seconds as well, of a link its target.
Entry = list[Union[str, int]]
FILE, FOLDER, LINK = "f", "d", "l"


@dataclass(frozen=True)
class Differences:
    """What the standby has to get, and to remove. Both are sorted: a folder comes before what is in it."""

    send: tuple[str, ...]
    remove: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """All of it."""
        return tuple(sorted((*self.send, *self.remove)))


def compare(source: Mapping[str, Any], target: Mapping[str, Any]) -> Differences:
    """What differs in `target` from `source`, by path. Pure."""
    send = [path for path, entry in source.items() if list(target.get(path, ())) != list(entry)]
    gone = sorted(path for path in target if path not in source and scope.is_exact(path))
    return Differences(tuple(sorted(send)), tuple(gone))


def listing(root: Path = Path("/")) -> dict[str, Entry]:
    """The common part of this host's system. Mounted file systems are left out: the volume and the shares are some.

    Args:
        root: of the host's file system; another one for tests.
    """
    found: dict[str, Entry] = {}
    device = root.stat().st_dev
    for name in scope.ROOTS:
        top = root / name.lstrip("/")
        if top.is_dir() and not top.is_symlink():
            found.update(_below(top, name, device))
    return found


def _below(folder: Path, name: str, device: int) -> Iterator[tuple[str, Entry]]:
    waiting = [(str(folder), name)]
    while waiting:
        at, path = waiting.pop()
        try:
            entries = list(os.scandir(at))
        except OSError:
            continue  # it has gone meanwhile
        for each in entries:
            below = f"{path}/{each.name}"
            if scope.is_own(below):
                continue
            try:
                status = each.stat(follow_symlinks=False)
                entry = _entry(each.path, status)
            except OSError:
                continue
            is_folder = stat.S_ISDIR(status.st_mode)
            if entry is None or (is_folder and status.st_dev != device):
                continue
            if is_folder:
                waiting.append((each.path, below))
            yield below, entry


def _entry(path: str, status: os.stat_result) -> Entry | None:
    """Sockets, pipes and devices belong to programs that run: None."""
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode):
        return [FILE, mode, status.st_uid, status.st_gid, status.st_size, int(status.st_mtime)]
    if stat.S_ISDIR(status.st_mode):
        return [FOLDER, mode, status.st_uid, status.st_gid]
    if stat.S_ISLNK(status.st_mode):
        return [LINK, 0, status.st_uid, status.st_gid, os.readlink(path)]
    return None
