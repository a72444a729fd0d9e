"""What Terraform starts as its provider: whose folder it shares with others of the same Terraform."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucluster.localcloud.provider import client

pytestmark = pytest.mark.slow


def test_a_folder_that_another_user_made_or_opened_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ours = Path(client.folder_of(os.getpid()))
    assert client.folder_of(os.getpid()) == str(ours)
    ours.chmod(0o755)
    private = Path(client.folder_of(os.getpid()))
    assert private != ours
    assert private.stat().st_mode & 0o777 == 0o700
    ours.rmdir()
    ours.symlink_to(private)
    assert client.folder_of(os.getpid()) not in (str(ours), str(private))
    if os.geteuid() == 0:
        ours.unlink()
        ours.mkdir(mode=0o700)
        os.chown(ours, 65534, 65534)
        assert client.folder_of(os.getpid()) != str(ours)
