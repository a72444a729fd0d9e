"""Local accounts of users: created and changed, without touching the files that users write into their homes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.ansible.in_container import Host, Played, host
from tests.ansible.render import INVENTORY

pytestmark = pytest.mark.containers

GROUPS = [{"name": "people", "gid": 9999}, {"name": "privilege", "gid": 9876}]
ALICE = {
    "name": "alice",
    "uid": 10001,
    "full_name": "Alice Example",
    "group": "people",
    "groups": ["privilege"],
    "ssh_keys": ["ssh-ed25519 AAAA alice"],
}


@pytest.fixture(scope="module")
def node() -> Iterator[Host]:
    with host() as made:
        yield made


def people(node: Host, *wanted: dict[str, Any], check: bool = True, options: tuple[str, ...] = ()) -> Played:
    module = {"groups": GROUPS, "people": list(wanted)}
    task = {"name": "people", "gpucluster_people": module}
    return node.play([task], {**INVENTORY, "gather_facts": False}, *options, check=check)


def test_a_rehearsal_creates_no_user(node: Host) -> None:
    assert people(node, ALICE, options=("--check",)).changed == 1
    assert "alice" not in node.read("/etc/passwd")


def test_an_account_with_its_number_home_and_keys(node: Host) -> None:
    made = people(node, ALICE, options=("-vvv", "--diff"))
    assert made.changed == 1
    assert node.run("id", "alice").strip() == "uid=10001(alice) gid=9999(people) groups=9999(people),9876(privilege)"
    assert node.state("/home/alice") == "10001 700"
    assert node.state("/home/alice/.ssh/authorized_keys") == "10001 600"
    assert "ssh-ed25519 AAAA alice" in node.read("/home/alice/.ssh/authorized_keys")
    assert node.run("ls", "/home/alice/.ssh").split() == ["authorized_keys"], "a key pair opens no host"
    assert node.run("sh", "-c", "grep ^alice: /etc/shadow | cut -d: -f2").strip() == "*", "no password fits"


def test_the_second_time_nothing_changes_and_own_keys_stay(node: Host) -> None:
    assert people(node, ALICE).changed == 0
    node.run("sh", "-c", "echo ssh-rsa CCCC own >> /home/alice/.ssh/authorized_keys")
    assert people(node, ALICE | {"ssh_keys": ["ssh-ed25519 DDDD new"]}).changed == 1
    keys = node.read("/home/alice/.ssh/authorized_keys")
    assert "CCCC own" in keys
    assert "DDDD new" in keys
    assert "AAAA" not in keys


def test_groups_and_shell_follow_the_list(node: Host) -> None:
    assert people(node, ALICE | {"groups": ["vision"], "shell": "/bin/sh"}).changed == 1
    assert "(privilege)" not in node.run("id", "alice")
    assert "(vision)" in node.run("id", "alice")


def test_who_is_not_mentioned_stays(node: Host) -> None:
    assert people(node).changed == 0
    assert "uid=10001" in node.run("id", "alice")


def test_another_number_is_refused_and_changes_nothing(node: Host) -> None:
    before = node.read("/etc/passwd")
    said = people(node, ALICE | {"uid": 10002}, check=False).said
    assert "alice has uid 10001 on this host, not 10002" in said
    assert node.read("/etc/passwd") == before


def test_a_link_in_a_home_does_not_lead_outside_of_it(node: Host) -> None:
    node.run("sh", "-c", "rm -r /home/alice/.ssh && ln -s /etc/sudoers.d /home/alice/.ssh")
    said = people(node, ALICE, check=False).said
    assert "Permission denied" in said
    assert "authorized_keys" not in node.run("ls", "-a", "/etc/sudoers.d")
    node.run("rm", "/home/alice/.ssh")
    assert people(node, ALICE).changed == 1
