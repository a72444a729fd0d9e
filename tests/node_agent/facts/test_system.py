"""File systems, users, certificates and secrets of a host, as it sees them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucluster.controller import ca
from gpucluster.node_agent.facts import system

MOUNTINFO = (
    "22 1 0:20 / / rw - overlay overlay rw\n"
    "30 22 0:44 / /mnt/home rw,noatime shared:1 - nfs 10.0.1.9:/mnt/home rw,vers=3\n"
    "31 22 0:45 / /mnt/with\\040space rw - nfs 10.0.1.9:/a\\040b rw\n"
)
NODE_DATA = "firewalld=off\nlocal_disk_mount_path=/mnt/localdisk\nlocal_disk_devices='/dev/nvme*n1'\n"


def test_what_is_mounted_at_the_homes_is_found_by_its_mount_point() -> None:
    assert system.home_fs(MOUNTINFO, "/mnt/with space")["source"] == "10.0.1.9:/a b"
    assert system.home_fs(MOUNTINFO, "/mnt") == {"source": "", "fstype": "", "mounted": False}


def test_the_generation_of_a_secret_does_not_tell_it_and_only_who_has_a_file_reports_it(tmp_path: Path) -> None:
    assert str(system.CERTIFICATES["directory"]) == str(ca.FOLDER / "ca.pem")
    files = {name: tmp_path / name for name in ("one", "same", "other", "missing")}
    for name, secret in (("one", b"\xffone"), ("same", b"\xffone"), ("other", b"\xfftwo")):
        files[name].write_bytes(secret)
    found = system.secrets(files)
    assert {name: len(word) for name, word in found.items()} == {"one": 12, "same": 12, "other": 12}
    assert (found["one"] == found["same"], found["one"] == found["other"]) == (True, False)
    (tmp_path / "ca.pem").write_text("pem")
    assert system.certificates({"ca": tmp_path / "ca.pem", "none": tmp_path / "none"}) == {"ca": "pem"}


def test_the_share_is_looked_at_with_the_token_and_without(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("word")
    asked = {"path": f"{tmp_path}/", "file": str(tmp_path / "token"), "token": "word"}
    mounts = f"40 22 0:50 / {tmp_path} rw - nfs server:/x rw\n"
    home = {"source": "server:/x", "fstype": "nfs", "mounted": True}
    assert system.share(mounts, asked) == {"home_fs": home, "home_token_seen": True}
    assert system.share(mounts, {"path": str(tmp_path)}) == {"home_fs": home}
    assert system.share(MOUNTINFO, asked)["home_token_seen"] is False, "the file is not on the share"


def test_the_local_disk_is_looked_at_where_user_data_wants_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "OUTCOMES", tmp_path)
    data = system.node_data(NODE_DATA)
    assert data["local_disk_devices"] == "/dev/nvme*n1"
    assert system.local_disk(MOUNTINFO, {"firewalld": "off"}) is None

    nothing = {"path": "/mnt/localdisk", "mounted": False, "source": "", "fstype": "", "drives": 0, "bytes": 0}
    assert system.local_disk(MOUNTINFO, data) == {**nothing, "state": "", "words": ""}
    (tmp_path / "local-disk").write_text("failed\nnot blank: /dev/nvme0n1\n")
    told = {"state": "failed", "words": "not blank: /dev/nvme0n1"}
    assert system.local_disk(MOUNTINFO, data) == {**nothing, **told}

    here = {"local_disk_mount_path": str(tmp_path)}
    found = system.local_disk(f"40 22 0:50 / {tmp_path} rw - xfs /dev/mapper/none rw\n", here)
    assert found is not None
    assert (found["mounted"], found["fstype"], found["drives"]) == (True, "xfs", 1)
    assert found["bytes"] > 0


def test_the_drives_below_a_volume_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "BLOCK_DEVICES", tmp_path)
    for drive in range(4):
        (tmp_path / "dm-0" / "slaves" / f"nvme{drive}n1").mkdir(parents=True)
    (tmp_path / "nvme4n1").mkdir()
    assert system.drives_below("/dev/dm-0") == 4
    assert system.drives_below("/dev/nvme4n1") == 1


def test_the_token_is_awaited_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "TOKEN_SECONDS", 0)
    file = tmp_path / "token"
    assert system.sees(file, "one") is False
    file.write_text("one\n")
    assert system.sees(file, "one") is True
    assert system.sees(file, "two") is False


def test_a_link_on_the_share_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "TOKEN_SECONDS", 0)
    (tmp_path / "file").write_text("word")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert [system.sees(tmp_path / name, "word") for name in ("file", "link", "pipe")] == [True, False, False]


def test_the_probe_waits_for_users_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["", "", "1001:1000"])
    asked: list[str] = []

    def ids(name: str) -> str:
        asked.append(name)
        return next(answers)

    monkeypatch.setattr(system, "ids", ids)
    monkeypatch.setattr(system, "_AGAIN_SECONDS", 0)
    system.await_users(["alice"])
    assert asked == ["alice"] * 3
    monkeypatch.setattr(system, "ids", lambda _name: "")
    monkeypatch.setattr(system, "USERS_SECONDS", 0)
    system.await_users(["nobody"])
