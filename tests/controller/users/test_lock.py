"""The lock of the users program."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gpucluster.controller.users import lock
from gpucluster.node_agent import errors


def test_the_lock_is_root_s_and_no_command_waits_for_ever(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    file.touch(mode=0o644)
    with lock.held(file):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with pytest.raises(errors.Failed, match="another change"), lock.held(file, seconds=0.1):
            pytest.fail("two have it")
    with lock.held(file, seconds=0):
        pass
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"), lock.held(tmp_path / "link"):
        pytest.fail("another user's file")
