"""Faults of this machine, through the command: each is told as what it is, with what to do, and never as a bug."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucluster.paths import ClusterPaths
from gpucluster.spec import template
from gpucluster.ssh import Host, SshClient
from gpucluster.workspace.saved_state import SavedState
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow


def _run(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "gpucluster", "--file", str(folder / "cluster.yml"), *words]
    environment = {**os.environ, "GPUCLUSTER_HOME": str(folder / "cloud"), **env}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def _a_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


# id: (the command, what is wrong, words of the message)
ROWS: dict[str, tuple[tuple[str, ...], Callable[[Path], None], tuple[str, ...]]] = {
    "a file in place of our folder": (
        ("plan",),
        lambda folder: _a_file(folder / ".gpucluster"),
        ("can't make the folder: File exists", "Move it away: mv "),
    ),
    "a folder in place of a file": (
        ("plan",),
        lambda folder: (folder / ".gpucluster" / "lock.json").mkdir(parents=True),
        ("can't open the lock: Is a directory", "lock.json"),
    ),
    "a file in place of the local cloud": (
        ("preflight",),
        lambda folder: _a_file(folder / "cloud"),
        ("can't make the folder: File exists", "/cloud"),
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_fault_is_told_as_one(row: str, tmp_path: Path) -> None:
    command, break_it, words = ROWS[row]
    (tmp_path / "cluster.yml").write_text(template(name="demo", provider="local"))
    break_it(tmp_path)
    done = _run(tmp_path, *command)
    assert done.returncode == 5, done.stderr
    assert not [word for word in words if word not in done.stderr], done.stderr
    assert "bug" not in done.stderr


def test_an_output_without_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / "zoë"
    folder.mkdir()
    (folder / "cluster.yml").write_text(template(name="demo", provider="local"))
    done = _run(folder, "validate", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "zo?/cluster.yml is valid" in done.stdout


def test_a_missing_ssh_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "cluster.yml").write_text(template(name="demo", provider="local"))
    paths = ClusterPaths.of(tmp_path / "cluster.yml")
    paths.create()
    host = Host("demo-controller", "127.100.255.254", "debian", "ocid1.instance.local..c")
    SavedState(paths).save_hosts([host], {host.instance_id})
    client = SshClient(paths, None)
    client.write([host])
    client.close()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh-keygen").symlink_to(shutil.which("ssh-keygen") or "")
    done = _run(tmp_path, "ssh", PATH=str(tmp_path / "bin"))
    assert done.returncode == 5, done.stderr
    assert "the program ssh was not found. Install it: apt install openssh-client" in done.stderr
