"""Folders of ours on the home share, which users read and only root writes."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from gpucluster.agent.errors import Failed


def prepare(share: Path, *folders: Path) -> None:
    """Create folders on the share, each after its parent, as root's own.

    Raises:
        Failed: the share is not mounted, or others can write there.
    """
    if not share.is_mount():
        raise Failed(f"{share} is not mounted here", "Run: gpucluster apply")
    for folder in folders:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o755)
            folder.chmod(0o755)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise Failed(
                f"{folder} is not a directory that only root can write to",
                "Move it away, and run the command again",
            )
