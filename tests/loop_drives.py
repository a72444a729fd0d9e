"""Blank drives: loop devices over sparse files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpucluster import process

#: The smallest file system that mkfs.xfs makes has 300 MB.
_BYTES = 400 * 1024 * 1024


def blank_file(file: Path) -> None:
    """Make a sparse file without content that a file system fits into, or empty the one that is there."""
    with file.open("wb") as blank:
        blank.truncate(_BYTES)


@contextmanager
def blank_drive(folder: Path) -> Iterator[str]:
    """A block device for the time of a `with`. Skips the test where this machine has none to spare."""
    file = folder / "blank"
    blank_file(file)
    done = process.run(["losetup", "--find", "--show", str(file)], check=False)
    if done.returncode != 0:
        pytest.skip(f"this host has no loop device to spare: {done.stderr.strip()}")
    device = done.stdout.strip()
    try:
        yield device
    finally:
        process.run(["losetup", "--detach", device], check=False)
