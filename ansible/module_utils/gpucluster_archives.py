"""Tar archives from elsewhere: unpacked into one directory and nowhere else, whatever they say."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

# Never from an archive: programs that run as their owner.
MODE = 0o755


class UnsafeArchive(Exception):
    """It wants something outside of its directory, or something that is no file."""


def inside(root: str, path: str) -> bool:
    """Whether a path, its links followed, is below `root`."""
    real = os.path.realpath(path)
    return real == root or real.startswith(root + os.sep)


def checked(member: tarfile.TarInfo, root: str) -> Path:
    """Where a member goes.

    Raises:
        UnsafeArchive: nowhere.
    """
    target = os.path.join(root, member.name)
    if member.name.startswith("/") or ".." in Path(member.name).parts or not inside(root, os.path.dirname(target)):
        raise UnsafeArchive(f"{member.name} lies outside")
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise UnsafeArchive(f"{member.name} is neither a file nor a directory nor a link")
    if member.issym() and (
        member.linkname.startswith("/") or not inside(root, os.path.join(os.path.dirname(target), member.linkname))
    ):
        raise UnsafeArchive(f"{member.name} leads to {member.linkname}, outside")
    if member.islnk() and (
        member.linkname.startswith("/")
        or ".." in Path(member.linkname).parts
        or not inside(root, os.path.join(root, member.linkname))
    ):
        raise UnsafeArchive(f"{member.name} is linked to {member.linkname}, outside")
    return Path(target)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack into a directory that is there. What comes belongs to root, and nobody else may write to it.

    Raises:
        UnsafeArchive: see there; what was unpacked so far is left.
        OSError, tarfile.TarError, EOFError: it is broken, or the disk is full.
    """
    root = os.path.realpath(folder)
    with tarfile.open(archive, mode="r:*") as tar:
        for member in tar:
            target = checked(member, root)
            if member.isdir():
                target.mkdir(mode=MODE, parents=True, exist_ok=True)
                continue
            target.parent.mkdir(mode=MODE, parents=True, exist_ok=True)
            if target.is_symlink() or target.is_file():
                target.unlink()
            if member.issym():
                target.symlink_to(member.linkname)
            elif member.islnk():
                os.link(os.path.join(root, member.linkname), target, follow_symlinks=False)
            else:
                write(tar, member, target)


def write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """The content of one file."""
    source = tar.extractfile(member)
    if source is None:
        raise UnsafeArchive(f"{member.name} has no content")
    with source, target.open("wb") as out:
        shutil.copyfileobj(source, out)
    target.chmod(member.mode & MODE | 0o600)


def take(archive: Path, folder: Path, prefixes: tuple[str, ...], suffix: str) -> Iterator[Path]:
    """Take the files out of an archive whose names begin and end so, whatever folders they lie in.

    Args:
        folder: is made; it gets the files by their bare names.
    """
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive, mode="r:*") as tar:
        for member in tar:
            name = os.path.basename(member.name)
            if member.isfile() and name.startswith(prefixes) and name.endswith(suffix):
                write(tar, member, folder / name)
                yield folder / name
