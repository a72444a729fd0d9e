"""Files that are written as a whole or not at all, and are on the disk afterwards."""

from __future__ import annotations

import os
from pathlib import Path


def replace(file: Path, text: str, *, mode: int = 0o640, durable: bool = True) -> None:
    """Write a file as a whole, or not at all.

    Args:
        durable: it is on the disk when this returns.
    """
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    with new.open("w") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(text)
        if durable:
            stream.flush()
            os.fsync(stream.fileno())
    new.replace(file)
    if durable:
        sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Put the entries of a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
