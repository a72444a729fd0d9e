"""Cached folders of files that take long to download or build. A folder is complete, or does not exist."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpucluster.paths import write_private


@contextmanager
def assembling(folder: Path, index: str, content: Mapping[str, object]) -> Iterator[Path]:
    """A scratch folder that is renamed to `folder` at the end. The file `index` with `content` is written last.

    Raises:
        OSError: the disk is full, or the folder can't be written. Nothing is left behind.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as name:
        scratch = Path(name) / folder.name
        scratch.mkdir()
        yield scratch
        write_private(scratch / index, json.dumps(content, indent=2) + "\n")
        try:
            os.rename(scratch, folder)
        except OSError:
            if not (folder / index).exists():  # another run was faster; the content is the same
                raise


def link(source: Path, target: Path) -> None:
    """A hard link to a file; a copy if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def copy_whole(file: Path, target: Path) -> None:
    """Copy a file atomically."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as scratch:
        copy = Path(scratch) / target.name
        shutil.copyfile(file, copy)
        copy.replace(target)


def delete_old(root: Path, pattern: str, keep: int) -> None:
    """Delete the folders that match a pattern, except the `keep` that were used last."""
    folders = sorted(root.glob(pattern), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in folders[keep:]:
        shutil.rmtree(folder, ignore_errors=True)


def key_of(what: Sequence[object] | Mapping[str, object]) -> str:
    """A short name for JSON values. Equal values have the same."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
