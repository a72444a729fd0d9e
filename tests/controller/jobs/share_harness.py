"""A home share of a test's own: a real file system of some size, with the home of a user who is not root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpucluster.node_agent.accounts import Account, account

# Any account that is not root will do, and this one is on every system.
USER = "nobody"


@contextmanager
def share(size: str) -> Iterator[Path]:
    """A mounted tmpfs, which users may reach."""
    if os.geteuid() != 0:
        pytest.skip("the program is root's")
    folder = Path(tempfile.mkdtemp(prefix="gpucluster-share-"))
    folder.chmod(0o755)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        folder.rmdir()
        pytest.skip("this machine mounts no tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def home(share: Path) -> Account:
    """The user, with a home on the share."""
    of = account(USER)._replace(home=str(share / USER))
    Path(of.home).mkdir(mode=0o700)
    os.chown(of.home, of.uid, of.gid)
    return of
