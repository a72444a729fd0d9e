"""Folders of ours on the home share: users read there, and root of any host writes, for nothing squashes root."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.foreign_folder import Folder


@contextlib.contextmanager
def opened(share: Path, *folders: Path, create: bool = True) -> Iterator[Folder]:
    """Open the last of some folders on the share, each in the one before it.

    Args:
        create: those that are missing are created, as root's own.

    Raises:
        Failed: the share is not mounted, or others than root can write to one of the folders.
        FileNotFoundError: one is missing, and is not created.
    """
    if not share.is_mount():
        raise Failed(f"{share} is not mounted here", "Run: gpucluster apply")
    with contextlib.ExitStack() as until_end:
        last = until_end.enter_context(Folder.open(share))
        for name in folders[0].parent.relative_to(share).parts:
            last = until_end.enter_context(last.folder(name))
        for folder in folders:
            last = until_end.enter_context(_own(last, folder, create=create))
        yield last


def _own(parent: Folder, folder: Path, *, create: bool) -> Folder:
    if create:
        with contextlib.suppress(FileExistsError):
            return parent.make(folder.name)
    try:
        directory = parent.folder(folder.name)
    except NotADirectoryError:  # nor a link
        raise _of_others(folder) from None
    status = directory.status()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        directory.close()
        raise _of_others(folder)
    return directory


def _of_others(folder: Path) -> Failed:
    return Failed(f"{folder} is not a directory that only root can write to", "Move it away, and run the command again")


def put(share: Path, folder: str, name: str, content: bytes) -> None:
    """Write a file in a folder of ours, which all users may read.

    Raises:
        Failed: the share is not mounted, or others than root can write to the folder.
    """
    with opened(share, share / folder) as place:
        place.remove(name)
        with place.create(name, 0o644) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def remove(share: Path, folder: str) -> None:
    """Delete a folder with all that is in it; none there is no error."""
    with Folder.open(share) as place:
        place.remove(folder)
