"""Private folders and files, and what is reported when they can't be written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault
from gpucluster.paths import ClusterPaths, fault_of, make_private


def test_the_folders_are_private(tmp_path: Path) -> None:
    paths = ClusterPaths(tmp_path / ".gpucluster")
    paths.root.mkdir(mode=0o755)
    paths.create()
    assert {folder.stat().st_mode & 0o777 for folder in (paths.root, paths.runs, paths.ansible, paths.ssh)} == {0o700}


def test_a_folder_that_can_not_be_written() -> None:
    with pytest.raises(EnvironmentFault, match="can't make the folder") as caught:
        make_private(Path("/sys/kernel/gpucluster"))
    assert caught.value.exit_code == 5
    assert caught.value.hint


def test_a_full_disk() -> None:
    with pytest.raises(OSError, match="No space") as caught, open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")
    fault = fault_of(caught.value)
    assert fault is not None
    assert fault.exit_code == 5
    assert "Free some space" in fault.hint


def test_an_error_that_may_be_ours_stays_one() -> None:
    assert fault_of(OSError(errno.EINVAL, "Invalid argument")) is None
