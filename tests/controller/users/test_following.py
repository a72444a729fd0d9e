"""What follows from the directory: who is a user, and what is given and taken away. The rest has real programs:
tests/ansible/test_existing_directory_host.py (SSSD, homes) and test_slurm_containers.py (Slurm)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.users import following
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.following import Followed, Members
from gpucluster.controller.users.slurm import DesiredAssociation
from gpucluster.controller.users.state import DirectoryUser
from gpucluster.controller.users.values import LocalAccounts
from gpucluster.node_agent.errors import Failed
from tests.controller.users.harness import CONFIG
from tests.controller.users.test_existing import RAW

LOCAL = LocalAccounts({"root": 0, "ubuntu": 2500}, {}, {"opc"}, {"/bin/bash"})
EXISTING = Config.parse({**CONFIG, "existing": RAW})


def user(name: str, uid: int = 3000) -> DirectoryUser:
    return DirectoryUser(name, uid, 4000, name, f"/mnt/home/{name}", "/bin/bash")


@pytest.mark.parametrize(
    ("name", "uid", "words"),
    [
        ("yamada.taro", 3000, ""),
        ("山田", 3000, "can't be the name of a user"),
        ("a,b", 3000, "can't be the name of a user"),
        ("../x", 3000, "can't be the name of a user"),
        ("Taro", 3000, "can't be the name of a user"),
        ("slurm", 3000, "an account of the system"),
        ("opc", 3000, "an account of the system"),
        ("dora", 2500, "2500, belongs to the system"),
        ("dora", 65534, "65534, belongs to the system"),
    ],
)
def test_who_can_be_a_user(name: str, uid: int, words: str) -> None:
    said = following.unusable(name, uid, LOCAL)
    assert (words in said) if words else said == ""


def test_a_home_is_on_the_share_whatever_the_directory_has() -> None:
    found = following.parsed_passwd("taro:*:3001:4000:山田太郎:/elsewhere/taro:/bin/zsh", Path("/mnt/home"))
    assert found is not None
    assert (found.home, found.full_name, found.shell) == ("/mnt/home/taro", "山田太郎", "/bin/zsh")
    assert following.parsed_passwd("nothing", Path("/mnt/home")) is None


def test_associations_are_made_taken_and_given_back() -> None:
    now = Members({"new": user("new"), "old": user("old"), "back": user("back")}, frozenset())
    before = Followed({"old": 3000, "gone": 3001}, {"back": 3002})
    assert following.wanted_associations(now, before) == {
        "new": DesiredAssociation(None, None),
        "old": DesiredAssociation(None, None),
        "back": DesiredAssociation(None, enabled=True),
        "gone": DesiredAssociation(None, enabled=False),
    }


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "followed.json"
    assert Followed.read(file) == Followed()
    followed = Followed({"a": 1}, {"b": 2}, ("a",))
    followed.write(file)
    assert Followed.read(file) == followed
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text(json.dumps({"users": 3}))
    with pytest.raises(Failed, match=r"followed\.json can't be used"):
        Followed.read(file)


class Ldap:
    """A double of the servers, which have every group; one user has `hpc` as primary group."""

    def __init__(self, _directory: Any) -> None:
        pass

    def connect(self) -> None:
        pass

    def group(self, name: str) -> dict[str, list[str]]:
        return {"cn": [name]}

    def primary_members(self, group: dict[str, list[str]]) -> list[str]:
        return ["Prime"] if group["cn"] == ["hpc"] else []


def test_members_are_those_whom_sssd_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {
        "hpc": "hpc:*:4000:ann,low,root", "admins": "admins:*:4001:boss", "ann": "ann:*:3001:4000::/:/bin/sh",
        "boss": "boss:*:3002:4000::/:/bin/sh", "prime": "prime:*:3003:4000::/:/bin/sh", "root": "root:*:3004:4000::/:/",
    }  # fmt: skip
    monkeypatch.setattr(following, "ExistingLdap", Ldap)
    monkeypatch.setattr(following, "of_sssd", lambda _kind, names: [lines[name] for name in names if name in lines])
    assert EXISTING.existing is not None
    found = following.members(EXISTING, EXISTING.existing, LOCAL)
    assert found.users.keys() == {"ann", "boss", "prime"}
    assert found.administrators == {"boss"}
    assert [words.split()[0] for words in found.warnings] == ["SSSD", "root"]

    # A group that SSSD does not know now: no user may lose anything.
    del lines["admins"]
    with pytest.raises(Failed, match="does not know the group admins"):
        following.members(EXISTING, EXISTING.existing, LOCAL)


def test_a_cluster_with_a_directory_of_its_own_follows_none() -> None:
    with pytest.raises(Failed, match="a directory of its own"):
        following.Follower(Config.parse(CONFIG), LOCAL)
