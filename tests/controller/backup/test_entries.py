"""Entries of a restored directory: those of the cluster's own suffix, with numbers that no other user ever had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.backup import entries
from tests.controller.backup.contents import HERE, LDIF
from tests.controller.users.harness import SUFFIX


def test_users_and_groups_are_counted_and_those_who_left_are_not(tmp_path: Path) -> None:
    (tmp_path / "x.ldif").write_text(LDIF)
    assert entries.count_entries(tmp_path / "x.ldif", SUFFIX) == {"people": 1, "groups": 1}


@pytest.mark.parametrize("suffix", [SUFFIX, "dc=other,dc=local"])
def test_entries_come_under_the_cluster_s_own_suffix_without_those_of_hosts(suffix: str, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text(LDIF.replace(SUFFIX, suffix).replace("dc: demo", f"dc: {suffix[3:].split(',')[0]}"))
    entries.adopt(source, target, suffix, HERE, entries.IdMemory())
    text = target.read_text()
    assert "sssd" not in text
    assert "compute-1" not in text
    assert f"dn: ou=hosts,{SUFFIX}\n" in text
    assert f"dn: {SUFFIX}\nobjectClass: dcObject\ndc: demo\n" in text
    assert f"dn: uid=alice,ou=people,{SUFFIX}\n" in text
    assert f"creatorsName: cn=manager,{SUFFIX}\n" in text
    # What users wrote is theirs.
    assert f"description: of {suffix}\n" in text


def written(state: dict[str, Any], suffix: str = SUFFIX) -> str:
    """A directory as slapcat writes it.

    Args:
        state: people, groups (name -> number), disabled, retired_people, retired_groups, next_uid, next_gid.
    """
    ldif = [f"dn: {suffix}\ndc: x"]
    for kind, key in (("people", "uid"), ("groups", "gid")):
        ldif.append(f"dn: cn=next-{key},{suffix}\ncn: next-{key}\ndescription: {state[f'next_{key}']}")
        for name, number in state.get(f"retired_{kind}", {}).items():
            ldif.append(f"dn: cn={name},ou={kind},ou=retired,{suffix}\ncn: {name}\nserialNumber: {number}")
    for name, uid in state.get("people", {}).items():
        ended = "\nshadowExpire: 1" if name in state.get("disabled", ()) else ""
        ldif.append(f"dn: uid={name},ou=people,{suffix}\nuid: {name}\nuidNumber: {uid}\ngidNumber: 9999{ended}")
    for name, gid in state.get("groups", {}).items():
        ldif.append(f"dn: cn={name},ou=groups,{suffix}\ncn: {name}\ngidNumber: {gid}")
    return "\n\n".join(ldif) + "\n\n"


def restored(now: dict[str, Any], then: dict[str, Any], tmp_path: Path) -> tuple[Any, Any]:
    """What the directory is after a restore, and what was carried over."""
    other = "dc=other,dc=local"
    files = [tmp_path / name for name in ("now", "then", "target")]
    files[0].write_text(written(now))
    files[1].write_text(written(then, other))
    states = (entries.read_state(files[0], HERE, SUFFIX), entries.read_state(files[1], HERE, other))
    memory = entries.remember(HERE, *states)
    entries.adopt(files[1], files[2], other, HERE, memory)
    return entries.read_state(files[2], HERE, SUFFIX), memory


def test_no_number_is_given_twice_over_a_restore(tmp_path: Path) -> None:
    now = {
        "people": {"alice": 10001, "eve": 10005}, "groups": {"people": 9999, "later": 10004},
        "retired_people": {"bob": 10002, "finn": 10006}, "retired_groups": {"old": 10003},
        "next_uid": 10007, "next_gid": 10005,
    }  # fmt: skip
    then = {
        "people": {"alice": 10001, "bob": 10002}, "groups": {"people": 9999}, "retired_people": {"ann": 10000},
        "next_uid": 10003, "next_gid": 10009,
    }  # fmt: skip
    after, _memory = restored(now, then, tmp_path)
    assert (after.next_uid, after.next_gid) == (10007, 10009)
    assert {name: one.uid for name, one in after.users.items()} == then["people"]
    # Bob is back, and so not among those who left.
    assert after.retired_users == {"ann": 10000, "eve": 10005, "finn": 10006}
    assert after.retired_groups == {"later": 10004, "old": 10003}


def test_a_number_that_the_backup_gives_to_a_user_stays_theirs(tmp_path: Path) -> None:
    now = {"people": {"eve": 10001}, "retired_people": {"ann": 10002}, "next_uid": 10003, "next_gid": 1}
    then = {"people": {"alice": 10001}, "retired_people": {"bob": 10002}, "next_uid": 10003, "next_gid": 1}
    after, _memory = restored(now, then, tmp_path)
    assert after.retired_users == {"bob": 10002}
    assert set(after.users) == {"alice"}


def test_who_can_log_in_again_is_named_and_who_can_t_any_more(tmp_path: Path) -> None:
    now = {
        "people": {"alice": 1, "carl": 3, "dan": 4, "eve": 5}, "disabled": ("carl", "dan"),
        "retired_people": {"bob": 2},
        "next_uid": 9, "next_gid": 9,
    }  # fmt: skip
    then = {
        "people": {"alice": 1, "bob": 2, "carl": 3, "dan": 4, "new": 7}, "disabled": ("dan", "alice"),
        "next_uid": 9, "next_gid": 9,
    }  # fmt: skip
    _after, memory = restored(now, then, tmp_path)
    assert memory.returned == ("bob", "carl")
    assert memory.dropped == ("eve",)
