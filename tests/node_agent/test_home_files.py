"""Files of users are counted; what a new home has is not. Mounts are doubles: the real ones are in tests/e2e."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.node_agent import home_files, programs
from gpucluster.node_agent.errors import Failed

UID = 4_000_001
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="owners can only be set by root")


def _give(path: Path, uid: int = UID) -> None:
    for each in (path, *path.rglob("*")):
        os.chown(each, uid, uid, follow_symlinks=False)


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A share without files, which `10.0.0.2:/home` leads to; every other way is refused."""
    folder = tmp_path / "home"
    folder.mkdir()

    @contextlib.contextmanager
    def mounted(source: str) -> Iterator[Path]:
        if source != "10.0.0.2:/home":
            raise Failed(f"mount: {source} was refused")
        yield folder

    monkeypatch.setattr(home_files, "mounted", mounted)
    return folder


@as_root
def test_only_the_work_of_users_counts(tmp_path: Path, share: Path) -> None:
    skeleton = tmp_path / "skel"
    skeleton.mkdir()
    (skeleton / ".bashrc").write_text("alias ll=ls\n")
    (skeleton / ".profile").write_text("umask 022\n")
    home = share / "alice"
    (home / ".ssh").mkdir(parents=True)
    (home / "data").mkdir()
    (share / ".gpucluster-verify").mkdir()
    (share / ".gpucluster-verify" / "token").write_text("root's")
    for name, text in {
        ".bashrc": "alias ll=ls\n",
        ".profile": "umask 077\n",
        ".ssh/authorized_keys": "ssh-ed25519 AAAA",
        ".ssh/id_ed25519": "for the cluster",
        ".ssh/id_ed25519.pub": "for the cluster",
        ".ssh/id_rsa": "mine",
        "data/.bashrc": "alias ll=ls\n",
        "data/weights": "0101",
    }.items():
        (home / name).write_text(text)
    (home / "link").symlink_to("data/weights")
    _give(home)
    # What a snapshot holds is told by the cloud; a folder of this name in a home is a user's.
    for place in (share / ".snapshot" / "monday", home / ".snapshot"):
        place.mkdir(parents=True)
        (place / "old").write_text("")
        _give(place)
    # The changed .profile, the private key, both files in data, the link, and the one in alice's .snapshot.
    assert Counter(home_files.users_files(share, skeleton)) == {UID: 6}
    # On another share than that of the homes, those of root and of a new home count as well.
    assert Counter(home_files.users_files(share, skeleton, every_file=True)) == {UID: 10, 0: 1}


@as_root
def test_the_first_way_that_can_be_mounted_is_taken(share: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (share / "work").write_text("")
    _give(share)
    assert home_files.main(["10.9.9.9:/home", "10.0.0.2:/home"]) == 0
    assert json.loads(capsys.readouterr().out) == {"owners": {str(UID): 1}, "complete": True}
    (share / "dataset").write_text("root's")
    assert home_files.main(["--all", "10.0.0.2:/home"]) == 0
    assert json.loads(capsys.readouterr().out)["owners"] == {"root": 1, str(UID): 1}


@as_root
def test_a_count_ends_where_it_is_enough_to_refuse(share: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_files, "LIMIT", 2)
    for name in "abc":
        (share / name).write_text("")
    _give(share)
    assert home_files.look(["10.0.0.2:/home"], Path("/etc/skel")) == {"owners": {str(UID): 2}, "complete": False}


def test_a_share_that_can_not_be_mounted_or_read_is_not_an_empty_one(
    share: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert home_files.main(["10.9.9.9:/home", "10.9.9.8:/home"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"error": "mount: 10.9.9.9:/home was refused; mount: 10.9.9.8:/home was refused"}

    def broken(*_: object, **_how: object) -> Iterator[int]:
        yield 0
        raise OSError(5, "Input/output error", "/home/alice")

    monkeypatch.setattr(home_files, "users_files", broken)
    assert home_files.main(["10.0.0.2:/home"]) == 0
    assert json.loads(capsys.readouterr().out) == {"error": "/home/alice: Input/output error"}


def test_a_host_that_was_never_configured_gets_an_nfs_client(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []
    have = {"apt-get"}
    monkeypatch.setattr(shutil, "which", lambda name: name if name in have else None)
    monkeypatch.setattr(programs, "run", lambda *argv, **_: calls.append(argv))
    monkeypatch.setattr(programs, "call", lambda argv: calls.append(tuple(argv)))
    with home_files.mounted("10.0.0.2:/home") as place:
        assert place.is_dir()
    assert not place.exists()
    assert calls[0][-2:] == ("--quiet", "nfs-common")
    assert calls[1][:4] == ("mount", "-t", "nfs", "-o")
    assert "ro" in calls[1][4].split(",")
    assert calls[2] == ("umount", "-l", str(place))
    have.clear()
    with pytest.raises(Failed, match="no NFS client"), home_files.mounted("10.0.0.2:/home"):
        pass
