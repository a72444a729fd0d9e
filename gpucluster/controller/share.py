"""Folders of ours on the home share: users read there, and root of any host writes, for nothing squashes root.

    gpucluster-agent share put SHARE FOLDER NAME    standard input as a file in a folder below SHARE, for all to read
    gpucluster-agent share remove SHARE FOLDER      delete the folder

The two commands are for `gpucluster verify`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpucluster.node_agent.errors import AgentError, Failed, of_system
from gpucluster.node_agent.foreign_folder import Folder

_NAME = "gpucluster-agent share"


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


def put(share: Path, folder: str, name: str) -> None:
    """Write standard input to a file, which all users may read.

    Raises:
        Failed: the share is not mounted, or others than root can write to the folder.
    """
    with opened(share, share / folder) as place:
        place.remove(name)
        with place.create(name, 0o644) as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
            file.flush()
            os.fsync(file.fileno())


def remove(share: Path, folder: str) -> None:
    """Delete a folder with all that is in it; none there is no error."""
    with Folder.open(share) as place:
        place.remove(folder)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog=_NAME, description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, names in (("put", ("folder", "name")), ("remove", ("folder",))):
        command = verbs.add_parser(verb)
        command.add_argument("share", type=Path)
        for name in names:
            command.add_argument(name)
    options = parser.parse_args(argv)
    try:
        if options.verb == "put":
            put(options.share, options.folder, options.name)
        else:
            remove(options.share, options.folder)
    except (OSError, AgentError) as error:
        failure = of_system(error) if isinstance(error, OSError) else error
        sys.stderr.write(f"{_NAME}: {failure.message}\n")
        return failure.status
    return 0
