"""Untrusted tar archives: unpacked into one directory and nowhere else."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

# Never taken from an archive: set-uid and set-gid bits.
MODE = 0o755


class UnsafeArchive(Exception):
    """A member is outside of the directory, or is not a file."""


def inside(root: str, path: str) -> bool:
    """Whether a path, its links followed, is below `root`."""
    real = os.path.realpath(path)
    return real == root or real.startswith(root + os.sep)


def checked(member: tarfile.TarInfo, root: str) -> Path:
    """The path of a member.

    Raises:
        UnsafeArchive: it is outside of the root, or not a file, directory or link.
    """
    target = os.path.join(root, member.name)
    if member.name.startswith("/") or ".." in Path(member.name).parts or not inside(root, os.path.dirname(target)):
        raise UnsafeArchive(f"{member.name} is outside of the directory")
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise UnsafeArchive(f"{member.name} is neither a file nor a directory nor a link")
    if member.issym() and (
        member.linkname.startswith("/") or not inside(root, os.path.join(os.path.dirname(target), member.linkname))
    ):
        raise UnsafeArchive(f"{member.name} points to {member.linkname}, outside of the directory")
    if member.islnk() and (
        member.linkname.startswith("/")
        or ".." in Path(member.linkname).parts
        or not inside(root, os.path.join(root, member.linkname))
    ):
        raise UnsafeArchive(f"{member.name} is linked to {member.linkname}, outside of the directory")
    return Path(target)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack into an existing directory. The files belong to root, and only root can write to them.

    Raises:
        UnsafeArchive: see `checked`; what was unpacked so far stays.
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
    """Extract the files of an archive whose names have a prefix and suffix, from any folder.

    Args:
        folder: is created; it gets the files under their bare names.
    """
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive, mode="r:*") as tar:
        for member in tar:
            name = os.path.basename(member.name)
            if member.isfile() and name.startswith(prefixes) and name.endswith(suffix):
                write(tar, member, folder / name)
                yield folder / name
