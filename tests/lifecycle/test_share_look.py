"""The look at a share as a host carries it out: the command that ssh gets, the agent, mount(8) and the local cloud's
mount.nfs, in mount namespaces of this machine. Real NFS is not met, nor ssh."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import gpucluster
from gpucluster import process
from gpucluster.lifecycle.data_guard import ShareLook, UserFiles
from gpucluster.paths import ClusterPaths
from gpucluster.process import Completed
from gpucluster.ssh import SshClient
from gpucluster.workspace.saved_state import SavedHost

ROOTFS = Path(gpucluster.__file__).parent / "localcloud" / "image" / "image_files" / "rootfs"
# A host's /run and /usr/sbin, for one command: an overlay needs upper folders that are no overlay themselves.
HOST = """
set -e
mount -t tmpfs none "$1" && mkdir "$1/upper" "$1/work"
mount -t overlay overlay -o "lowerdir=/usr/sbin,upperdir=$1/upper,workdir=$1/work" /usr/sbin
cp "$2/usr/sbin/mount.nfs" /usr/sbin/ && chmod 755 /usr/sbin/mount.nfs
printf '#!/bin/sh\\nshift\\nexec "$@"\\n' >/usr/sbin/sudo && chmod 755 /usr/sbin/sudo
mkdir -p /run && mount -t tmpfs none /run && mkdir -p /run/localcloud/exports
mount --bind "$3" /run/localcloud/exports
shift 3
PATH=/usr/sbin:$PATH
eval "$1"
"""


def _namespaces() -> bool:
    if os.geteuid() != 0:
        return False
    done = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    )
    return done.returncode == 0


pytestmark = pytest.mark.skipif(not _namespaces(), reason="it needs root, who may mount")


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The share that a host with the local cloud's mount.nfs has at 10.0.0.2:/mnt/home."""
    exports, scratch = tmp_path / "exports", tmp_path / "scratch"
    (exports / "fs1" / "alice").mkdir(parents=True)
    scratch.mkdir()
    (exports / "index.json").write_text(json.dumps({"10.0.0.2": {"/mnt/home": "fs1"}}))
    original = process.run

    def on_host(argv: Sequence[str], **options: Any) -> Completed:
        assert argv[0] == "ssh"
        host = ["unshare", "--mount", "sh", "-c", HOST, "host", str(scratch), str(ROOTFS), str(exports), argv[-1]]
        return original(host, **options)

    monkeypatch.setattr(process, "run", on_host)
    return exports / "fs1"


def _look(tmp_path: Path, *sources: str) -> UserFiles | str:
    hosts = (SavedHost("demo-controller", "10.77.0.2", None),)
    return ShareLook(lambda *, refresh=False: hosts, tuple, lambda: SshClient(ClusterPaths(tmp_path), None))(sources)


def test_a_host_counts_the_files_on_a_share_and_leaves_nothing_behind(share: Path, tmp_path: Path) -> None:
    before = set(Path("/tmp").iterdir())
    assert _look(tmp_path, "10.0.0.2:/mnt/home") == UserFiles({})
    (share / "alice" / "work").write_text("yes")
    os.chown(share / "alice" / "work", 4_000_001, 4_000_001)
    assert _look(tmp_path, "10.0.0.9:/mnt/home", "10.0.0.2:/mnt/home") == UserFiles({"4000001": 1})
    left = {path.name for path in set(Path("/tmp").iterdir()) - before}
    assert not [name for name in left if name.startswith("gpucluster-look-")]


def test_a_share_that_can_not_be_mounted_is_not_an_empty_one(share: Path, tmp_path: Path) -> None:
    answer = _look(tmp_path, "10.0.0.9:/mnt/home")
    assert isinstance(answer, str)
    assert "Connection timed out for 10.0.0.9:/mnt/home" in answer
