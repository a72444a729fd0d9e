"""Homes on the share: when none is made, and what an archive of one holds."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from gpucluster.controller.users import homes
from gpucluster.node_agent import errors


def test_without_the_share_no_home_is_made(tmp_path: Path) -> None:
    with pytest.raises(errors.Failed, match="is not mounted"):
        homes.Homes(tmp_path).check()
    homes.Homes(Path("/proc")).check()


def test_an_archive_follows_no_link_and_root_alone_reads_it(tmp_path: Path) -> None:
    store = homes.Homes(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("x" * 100_000)
    home = tmp_path / "alice"
    home.mkdir()
    (home / "link").symlink_to(secret)
    archive = store.archive("alice")
    assert archive
    assert archive.stat().st_mode & 0o777 == 0o600
    assert archive.parent.stat().st_mode & 0o777 == 0o700
    assert archive.stat().st_size < 1000
    removed = tmp_path / homes.REMOVED
    (removed / ".bob-1.deleting").mkdir()
    (removed / ".bob-1.tar.gz.partial").touch()
    aside = store.set_aside("alice")
    assert aside
    assert aside.exists()
    assert not home.exists()
    with (removed / ".carl-1.tar.gz.partial").open("w") as written:
        fcntl.flock(written, fcntl.LOCK_EX)
        store.sweep("alice", aside)
        assert sorted(path.name for path in removed.iterdir()) == [".carl-1.tar.gz.partial", archive.name]
    store.sweep("alice", None)
    assert secret.exists()
    assert [path.name for path in (tmp_path / homes.REMOVED).iterdir()] == [archive.name]
    assert not home.exists()
