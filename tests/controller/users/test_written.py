"""Which entries of the directory other programs have made or changed."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.controller.users import written
from gpucluster.controller.users.desired import DesiredUser
from gpucluster.controller.users.state import DirectoryGroup, DirectoryState, DirectoryUser

KEY, OTHER = "ssh-ed25519 AAAA alice", "ssh-ed25519 BBBB alice"
ALICE = DirectoryUser("alice", 10000, 10000, "Alice", "/home/alice", "/bin/bash", (KEY,))
BOB = DirectoryUser("bob", 10001, 10000, "Bob", "/home/bob", "/bin/bash")
PEOPLE, ADMINS = DirectoryGroup("people", 10000), DirectoryGroup("privilege", 10001, ("alice",))


def state(*entries: DirectoryUser | DirectoryGroup) -> dict[str, dict[str, str]]:
    users = {each.name: each for each in entries if isinstance(each, DirectoryUser)}
    groups = {each.name: each for each in entries if isinstance(each, DirectoryGroup)}
    return written.described(DirectoryState(users=users, groups=groups))


def said(known: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [f"{each['name']}: {each['seen']}" for each in written.differences(known, now)]


BASE = (ALICE, PEOPLE, ADMINS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "written.json"


def _known(file: Path) -> dict[str, dict[str, str]]:
    known = written.read(file)
    assert known is not None
    return known


def test_the_first_change_records_the_whole_directory(file: Path) -> None:
    assert written.read(file) is None
    written.record(file, {}, state(*BASE))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert said(_known(file), state(*BASE)) == []
    assert KEY not in file.read_text()


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ((*BASE, BOB), ["user bob: added, and not by `cluster`"]),
        ((PEOPLE, ADMINS), ["user alice: removed, and not by `cluster`"]),
        ((replace(ALICE, shell="/bin/sh"), PEOPLE, ADMINS), ["user alice: shell changed"]),
        ((replace(ALICE, uid=0), PEOPLE, ADMINS), ["user alice: uid changed"]),
        ((replace(ALICE, enabled=False), PEOPLE, ADMINS), ["user alice: enabled changed"]),
        ((ALICE, PEOPLE, replace(ADMINS, members=("alice", "bob"))), ["group privilege: member bob added"]),
        ((ALICE, PEOPLE, replace(ADMINS, members=())), ["group privilege: member alice removed"]),
        ((replace(ALICE, has_password=True, locked=True), PEOPLE, ADMINS), []),
    ],
)
def test_what_other_programs_change_is_named(
    file: Path, now: tuple[DirectoryUser | DirectoryGroup, ...], expected: list[str]
) -> None:
    written.record(file, {}, state(*BASE))
    assert said(_known(file), state(*now)) == expected


def test_a_key_is_named_by_a_digest(file: Path) -> None:
    written.record(file, {}, state(*BASE))
    (line,) = said(_known(file), state(replace(ALICE, ssh_keys=(KEY, OTHER)), PEOPLE, ADMINS))
    assert line.startswith("user alice: ssh key ")
    assert line.endswith(" added")
    assert "BBBB" not in line


def test_a_change_by_cluster_is_none_and_hides_no_other(file: Path) -> None:
    written.record(file, {}, state(*BASE))
    by_hand = (replace(ALICE, shell="/bin/sh"), PEOPLE, replace(ADMINS, members=("alice", "mallory")), BOB)
    # `cluster` adds a member to the group, and changes a name.
    after = (replace(by_hand[0], full_name="A"), PEOPLE, replace(ADMINS, members=("alice", "carol", "mallory")), BOB)
    written.record(file, state(*by_hand), state(*after))
    assert said(_known(file), state(*after)) == [
        "group privilege: member mallory added",
        "user alice: shell changed",
        "user bob: added, and not by `cluster`",
    ]


def test_what_cluster_was_asked_for_is_known_from_then_on(file: Path) -> None:
    written.record(file, {}, state(*BASE))
    now = state(*BASE, BOB)
    written.record(file, now, now, written.asked_for([DesiredUser("bob")], DirectoryState()))
    assert said(_known(file), now) == []
    # And what it removes is not missed.
    written.record(file, now, state(*BASE))
    assert said(_known(file), state(*BASE)) == []


@pytest.mark.parametrize(
    ("desired", "left"),
    [
        (DesiredUser("alice"), ["group privilege: member bob added", "user alice: ssh key added, shell changed"]),
        (DesiredUser("alice", shell="/bin/sh"), ["group privilege: member bob added", "user alice: ssh key added"]),
        (
            DesiredUser("alice", ssh_keys=(KEY, OTHER)),
            ["group privilege: member bob added", "user alice: shell changed"],
        ),
        (DesiredUser("bob", groups=("privilege",)), ["user alice: ssh key added, shell changed"]),
    ],
)
def test_only_what_was_asked_for_is_confirmed(file: Path, desired: DesiredUser, left: list[str]) -> None:
    written.record(file, {}, state(*BASE))
    found = DirectoryState(groups={"privilege": ADMINS})
    now = state(
        replace(ALICE, shell="/bin/sh", ssh_keys=(KEY, OTHER)), PEOPLE, replace(ADMINS, members=("alice", "bob"))
    )
    written.record(file, now, now, written.asked_for([desired], found))
    assert [re.sub("ssh key [0-9a-f]+", "ssh key", line) for line in said(_known(file), now)] == left


def test_nothing_is_written_where_nothing_changes(file: Path) -> None:
    written.record(file, {}, state(*BASE))
    before = file.stat().st_ino
    written.record(file, state(*BASE), state(*BASE), [("user alice", "")])
    assert file.stat().st_ino == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"entries": 3}', '{"entries": {"user a": 3}}'])
def test_a_damaged_record_is_none(file: Path, text: str) -> None:
    file.write_text(text)
    assert written.read(file) is None
    written.record(file, {}, state(*BASE))
    assert said(_known(file), state(*BASE)) == []
    written.forget(file)
    assert written.read(file) is None
