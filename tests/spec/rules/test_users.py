"""Rules for users: names, ids, keys and groups."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from tests.spec.faults import reported

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "root as a user": ("name: alice", "name: §root", "users.people[0].name", "the user root belongs to the system"),
    "slurm as a user": ("name: alice", "name: §slurm", "users.people[0].name", "belongs to the system"),
    "login user of an image": (
        "    count: 2",
        "    count: 2\n    image: {ocid: ocid1.image.oc1..x, login_user: alice}",
        "users.people[0].name",
        "the user alice belongs to the system",
    ),
    "systemd as a user": ("name: alice", "name: §systemd-x", "users.people[0].name", "belongs to the system"),
    "capital in a user": ("name: alice", "name: §Alice", "users.people[0].name", "lower-case"),
    "user twice": ("name: bob", "name: §alice", "users.people[1].name", "alice occurs twice, first in line 32"),
    "uid twice": ("name: bob", "name: bob\n      uid: §10001", "users.people[1].uid", "10001 occurs twice, first in line 34"),
    "low uid": ("      uid: 10001", "      uid: §9999", "users.people[0].uid", "below first_uid: 9999 < 10001"),
    "uid of nobody": ("      uid: 10001", "      uid: §65534", "users.people[0].uid", "65534 belongs to the system"),
    "uid of root": ("      uid: 10001", "      uid: §0", "users.people[0].uid", "at least 2000"),
    "system gid": ("gid: 9999", "gid: §65534", "users.gid", "belongs to the system"),
    "system group": ("group: people", "group: §sudo", "users.group", "belongs to the system"),
    "everybody is privileged": ("group: people", "group: §privilege", "users.group", "which not every user may have. Choose another name here, and write `groups: [privilege]`"),
    "two groups with one gid": ("gid: 9999", "gid: §9876", "users.gid", "9876 is the id of privilege"),
    "primary group of nobody": ("- name: bob", "- name: bob\n      group: §wheels", "users.people[1].group", 'can\'t be "wheels". One of: people, privilege'),
    "group of the system": ("- name: bob", "- name: bob\n      groups: [§docker]", "users.people[1].groups[0]", "the group docker belongs to the system"),
    "group twice": ("- name: bob", "- name: bob\n      groups: [vision, §vision]", "users.people[1].groups[1]", "vision occurs twice"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)
