"""What the users program plans for which state of the directory. Nothing here touches the system."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.controller.users import desired
from gpucluster.controller.users import state as states
from gpucluster.node_agent import errors
from tests.controller.users.directory_model import LOCAL, Directory
from tests.controller.users.harness import ED25519, KEY, SUFFIX


def test_users_get_the_next_uids_and_nothing_happens_twice(there: Directory) -> None:
    assert there.want("alice", full_name="Алиса Müller", ssh_keys=[KEY])
    assert there.want("bob")
    assert (there.uid("alice"), there.uid("bob")) == (10001, 10002)
    before = there.entries.copy()
    assert not there.want("alice", full_name="Алиса Müller", ssh_keys=[KEY])
    assert there.apply(there.plan()) == []
    assert there.entries == before


def test_a_removed_user_s_uid_is_never_another_user_s(there: Directory) -> None:
    there.want("alice")
    there.want("bob")
    there.remove("bob")
    there.homes.clear()
    there.want("erin")
    assert there.uid("erin") == 10003
    with pytest.raises(errors.Refused, match="belongs to bob"):
        there.want("mallory", uid=10002)
    there.want("bob")
    assert there.uid("bob") == 10002
    there.remove("bob")
    assert there.state.retired_users == {"bob": 10002}


def test_a_rebuilt_controller_gives_all_users_their_own_files(there: Directory) -> None:
    there.want("alice")
    there.want("bob")
    fresh = Directory()
    fresh.homes = dict(there.homes)
    for name in ("zoe", "bob", "alice"):
        fresh.want(name)
    assert (fresh.uid("alice"), fresh.uid("bob"), fresh.uid("zoe")) == (10001, 10002, 10003)


def test_uids_that_are_asked_for_or_local_are_passed_over(there: Directory) -> None:
    there.want("erin", uid=10001)
    there.want("hugo", uid=20000)
    plan = there.plan(reserved_uids=frozenset({10003}))
    plan.put_user(desired.desired_user({"name": "alice"}, LOCAL))
    plan.put_user(desired.desired_user({"name": "bob"}, LOCAL))
    assert [plan.state.users[name].uid for name in ("alice", "bob")] == [10002, 10005]


def test_an_entry_of_an_older_version_is_completed(there: Directory) -> None:
    there.want("alice")
    entry = there.entries[f"uid=alice,ou=people,{SUFFIX}"]
    entry["objectclass"] = ["inetOrgPerson", "posixAccount"]
    there.want("alice", ssh_keys=[KEY])
    assert set(entry["objectclass"]) == set(states.CLASSES)
    assert entry["sshpublickey"] == [KEY]


def test_disabled_means_that_no_key_opens_and_nothing_is_forgotten(there: Directory) -> None:
    there.want("alice", ssh_keys=[KEY])
    plan = there.plan()
    assert plan.enable("alice", enabled=False)
    there.apply(plan)
    entry = there.entries[f"uid=alice,ou=people,{SUFFIX}"]
    assert entry["shadowexpire"] == ["1"]
    assert all(value.startswith("#") for value in entry["sshpublickey"])
    assert not there.want("alice", ssh_keys=[KEY]), "a description does not let somebody in again"
    assert there.state.users["alice"].ssh_keys == (KEY,)
    plan = there.plan()
    plan.enable("alice", enabled=True)
    there.apply(plan)
    assert entry["sshpublickey"] == [KEY]
    assert "shadowexpire" not in entry


def test_groups(there: Directory) -> None:
    assert [there.group("red"), there.group("blue", 5000), there.group("green")] == [10002, 5000, 10003]
    there.want("alice", groups=["red", "blue"])
    there.want("alice", remove_groups=["red"], add_groups=["green"])
    assert there.state.groups_of("alice") == ["blue", "green"]
    there.want("alice", group="blue")
    assert there.state.groups_of("alice") == ["green"], "the primary group is not a second one"
    for name, word in (
        ("blue", "primary group of alice"),
        ("people", "belongs to the cluster"),
        ("privilege", "belongs"),
    ):
        with pytest.raises(errors.Refused, match=word):
            there.plan().remove_group(name)
    plan = there.plan()
    plan.remove_group("red")
    there.apply(plan)
    with pytest.raises(errors.Refused, match="belongs to group red"):
        there.group("other", 10002)
    assert there.group("other") == 10004
    assert there.group("red") == 10002
    there.remove("alice")
    assert there.state.members_of(there.state.groups["green"]) == []


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"name": "alice", "uid": 10009}, "has uid 10001"),
        ({"name": "dora", "uid": 10001}, "belongs to alice"),
        ({"name": "dora", "uid": 12}, "out of range"),
        ({"name": "dora", "uid": 65534}, "out of range"),
        ({"name": "dora", "uid": 65535}, "out of range"),
        ({"name": "dora", "uid": 61184}, "out of range"),
        ({"name": "dora", "uid": 2**31}, "out of range"),
        ({"name": "dora", "uid": 600_178_688}, "out of range"),
        ({"name": "dora", "uid": 1_879_048_191}, "out of range"),
        ({"name": "dora", "uid": 9000}, "below the first one"),
        ({"name": "dora", "uid": 10**400}, "out of range"),
        ({"name": "dora", "uid": True}, "is not a uid"),
        ({"name": "dora", "uid": "10005"}, "is not a uid"),
        ({"name": "dora", "uid": 10004}, "account of this host"),
        ({"name": "dora", "gid": 4711}, "no group has gid 4711"),
        ({"name": "dora", "gid": 9876, "group": "people"}, "both given"),
        ({"name": "dora", "groups": ["nope"]}, "no group nope"),
        ({"name": "dora", "groups": "people"}, "list of names"),
        ({"name": "dora", "shell": "/bin/rm"}, "not a login shell"),
        ({"name": "dora", "shell": "/bin/bash\n"}, "not a login shell"),
        ({"name": "dora", "password": ""}, "empty"),
        ({"name": "dora", "password": "a\nb"}, "can't be typed"),
        ({"name": "dora", "password": "x" * 201}, "too long"),
        ({"name": "dora", "ssh_keys": ["a\nb"]}, "one line"),
        ({"name": "dora", "ssh_keys": [f'command="id" {KEY}']}, "preceded by options"),
        ({"name": "dora", "ssh_keys": [f"ssh-rsa {ED25519}"]}, "damaged"),
        ({"name": "dora", "ssh_keys": ["-----BEGIN OPENSSH PRIVATE KEY-----"]}, "PRIVATE"),
        ({"name": "dora", "slurm_account": "a b"}, "account of Slurm"),
        ({"name": "dora", "full_name": "a:b"}, "can't be a full name"),
        ({"name": "dora", "full_name": "a\nb"}, "can't be a full name"),
        ({"name": "dora", "full_name": "\u202eevil"}, "can't be a full name"),
        ({"name": "dora", "full_name": "x" * 101}, "101 characters"),
        ({"name": "dora", "full_name": " "}, "not a full name"),
        ({"name": "dora", "home": "/"}, "no argument"),
        ({"full_name": "Dora"}, "name is missing"),
        (["dora"], "not an object"),
        ({"name": "root"}, "belongs to the system"),
        ({"name": "opc2"}, "belongs to the system"),
        ({"name": "systemd-x"}, "belongs to the system"),
        ({"name": "carl"}, "account of this host"),
        ({"name": "bob", "uid": 10011}, "belongs to uid 10050"),
    ],
)
def test_requests_that_are_not_possible_change_nothing(there: Directory, given: Any, word: str) -> None:
    there.want("alice")
    there.homes["bob"] = 10050
    plan = there.plan()
    with pytest.raises(errors.Refused, match=word) as refused:
        plan.put_user(desired.desired_user(given, LOCAL))
    assert refused.value.hint
    assert plan.records == []


def test_no_user_gets_a_number_of_the_system(there: Directory) -> None:
    plan = there.plan()
    plan.state.next_uid = 61183
    for name in ("alice", "bob"):
        plan.put_user(desired.desired_user({"name": name}, LOCAL))
    assert [plan.state.users[name].uid for name in ("alice", "bob")] == [61183, 65536]
