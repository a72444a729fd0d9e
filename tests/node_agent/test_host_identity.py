"""What is removed from a host before its disk becomes an image."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpucluster.node_agent import host_identity, programs

CONF = """firewalld=off
local_disk_mount_path=/mnt/localdisk
local_disk_devices='/dev/nvme*n1'
local_disk_label=localscratch
"""
FSTAB = """# LABEL=localscratch /mnt/localdisk is made at boot
UUID=1 / ext4 defaults 0 1
LABEL=localscratch /mnt/localdisk xfs defaults,noatime,nofail 0 0
LABEL=other /mnt/localdisk2 xfs defaults 0 0
"""


def test_an_image_does_not_wait_for_the_drives_of_the_host_that_it_was_made_on() -> None:
    assert host_identity.without_local_disk(FSTAB, CONF).splitlines() == [
        *FSTAB.splitlines()[:2],
        FSTAB.splitlines()[3],
    ]
    assert host_identity.without_local_disk(FSTAB, "firewalld=off\n") == FSTAB


def test_homes_lose_who_may_log_in_and_links_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(programs, "call", lambda argv: ran.append(tuple(argv)))
    monkeypatch.setattr(programs, "run", lambda *argv: ran.append(argv))
    monkeypatch.setattr(host_identity, "rewrite", lambda *_: None)
    monkeypatch.setattr(host_identity, "REMOVED", str(tmp_path / "host-key*"))
    monkeypatch.setattr(host_identity, "EMPTIED", "")
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / "host-key-1").write_text("x")
    (tmp_path / "host-key-2").symlink_to(kept)
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "authorized_keys").write_text("x")
    assert host_identity.main([str(home)]) == 0
    assert not list(tmp_path.glob("host-key*"))
    assert kept.is_dir()
    assert not (home / ".ssh" / "authorized_keys").exists()
    assert ran[1] == ("cloud-init", "clean", "--logs")


OURS = "# BEGIN gpucluster\nssh-ed25519 AAAA controller\n# END gpucluster\n"


def test_of_the_keys_only_the_controllers_stays_or_disable_would_not_reach_a_baked_node(tmp_path: Path) -> None:
    keys, secret = tmp_path / "authorized_keys", tmp_path / "elsewhere"
    keys.write_text(f"ssh-rsa BBBB operator\n{OURS}ssh-rsa CCCC join\n")
    keys.chmod(0o644)
    host_identity.keep_controllers_key(keys)
    assert keys.read_text() == OURS
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    # What the role has added for operators is before it.
    begin, rest = OURS.split("\n", 1)
    keys.write_text(f"{begin}\nssh-rsa DDDD operator\n# Of the controller:\n{rest}")
    host_identity.keep_controllers_key(keys)
    assert keys.read_text() == OURS
    secret.write_text(OURS)
    for content in (lambda: keys.symlink_to(secret), keys.mkdir, lambda: keys.write_text("ssh-rsa x\n")):
        keys.unlink(missing_ok=True)
        content()
        host_identity.keep_controllers_key(keys)
        assert not os.path.lexists(keys)
    assert secret.read_text() == OURS
