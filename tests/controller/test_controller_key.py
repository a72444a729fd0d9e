"""Rotation of the controller's key for other hosts: no host is without a key that lets the controller in.

The first part has doubles of the hosts, which know the keys that they let in, and real key pairs. The second one has a
real sshd and ssh in a container (`ssh_site`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import controller_key, shared_keys
from gpucluster.controller.host_commands import Answer
from gpucluster.controller.users.config import HostLogins
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed, Refused, Unconfirmed
from gpucluster.node_agent.foreign_folder import Folder
from gpucluster.node_agent.host_keys import public
from tests.controller.host_keys import pair
from tests.controller.rotated_hosts import CONFIG, ELASTIC, HERE, NAMES, Killed, RotatedHosts
from tests.controller.ssh_site import SshSite

AWAY = "ssh: connect to host 10.0.1.3 port 22: No route to host"


def shown(private: Path) -> str:
    """The public half of a private key, as ssh would show it to a host."""
    done = programs.call(["ssh-keygen", "-y", "-f", str(private)])
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split()[:2])


class Site(RotatedHosts):
    """Hosts, and the keys that each lets in.

    Args:
        silent: host -> why it fails, at a step: `present`, `next` or `former`, by the key that is used.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.key = folder / "gpucluster"
        self.first = pair(self.key)
        self.accepted = {name: {self.first} for name in NAMES}
        self.silent: dict[tuple[str, str], str] = {}
        self.config = replace(CONFIG, key=self.key)

    def answers_of(
        self, logins: Mapping[str, Any], key: Path | None, words: Sequence[str], _seconds: float, texts: Any
    ) -> dict[str, Answer]:
        assert key is not None
        return {host: self.asked(host, key, words, texts[host]) for host in sorted(logins)}

    def answer(self, host: str, words: Sequence[str], text: str) -> Answer:
        return self.asked(host, None, words, text)

    def asked(self, host: str, key: Path | None, words: Sequence[str], text: str) -> Answer:
        part = key.name.partition(".")[2] or "present" if key is not None else "here"
        if part == "present" and not shared_keys.beside(self.key, ".former").exists():
            part = "before"
        if (part, host) == self.kill_at:
            raise Killed
        if (part, host) in self.silent or host in self.off:
            return Answer("", self.silent.get((part, host), AWAY))
        if key is not None and shown(key) not in self.accepted[host]:
            return Answer("", "Permission denied (publickey).")
        self.steps.append((part, host))
        assert list(words) == ["shared-keys", "take"]
        request = json.loads(text)
        assert request["user"] == "opc"
        self.accepted[host] = {" ".join(each.split()[:2]) for each in request["document"]["controller"]}
        return Answer('{"servers": 0}\n', "")

    def rotate(self) -> dict[str, Any]:
        return controller_key.rotate(self.config, lambda _text: None)

    @property
    def state(self) -> str:
        (row,) = controller_key.state(self.config)
        return str(row["state"])

    @property
    def is_complete(self) -> bool:
        now = shown(self.key)
        return (
            now == public(self.key.with_name("gpucluster.pub"))
            and all(self.accepted[name] == {now} for name in set(NAMES) - self.off)
            and {file.name for file in self.key.parent.iterdir()} == {"gpucluster", "gpucluster.pub"}
            and self.state == "complete"
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    (tmp_path / "ssh").mkdir()
    made = Site(tmp_path / "ssh")
    made.stand_in(monkeypatch)
    monkeypatch.setattr(controller_key, "UNCONFIRMED", tmp_path / "unconfirmed")
    monkeypatch.setattr(shared_keys, "DOCUMENT", tmp_path / "document")
    return made


def test_every_host_lets_the_next_key_in_before_it_is_used_and_not_the_former_one_afterwards(site: Site) -> None:
    done = site.rotate()
    assert done == {"new": True, "hosts": 3, "away": [], "unconfirmed": []}
    assert shown(site.key) != site.first
    assert site.is_complete
    parts = [part for part, host in site.steps if host != HERE]
    assert parts == ["before"] * 2 + ["next"] * 2 + ["present"] * 2
    assert site.key.stat().st_mode & 0o777 == 0o600
    document = json.loads(shared_keys.DOCUMENT.read_text())
    assert document["controller"] == [site.key.with_name("gpucluster.pub").read_text().strip()]


@pytest.mark.parametrize("part", ["before", "next", "present"])
@pytest.mark.parametrize("host", ["compute-1", ELASTIC])
def test_it_goes_on_after_a_kill_at_any_step(site: Site, part: str, host: str) -> None:
    site.kill_at = (part, host)
    with pytest.raises(Killed):
        site.rotate()
    assert site.state == ("unconfirmed" if part == "present" else "prepared")
    next_one = site.key.with_name("gpucluster.next")
    following = shown(next_one) if next_one.exists() else shown(site.key)
    site.kill_at = ("", "")
    assert site.rotate()["new"] is False
    assert shown(site.key) == following, "no other key is made"
    assert site.is_complete


@pytest.mark.parametrize("steps", range(4))
def test_it_goes_on_after_a_kill_between_two_files(site: Site, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    moved, original = list[str](), Folder.move

    def move(self: Folder, name: str, into: Folder, new: str) -> None:
        if len(moved) == steps:
            raise Killed
        moved.append(new)
        original(self, name, into, new)

    monkeypatch.setattr(Folder, "move", move)
    with pytest.raises(Killed):
        site.rotate()
    monkeypatch.setattr(Folder, "move", original)
    for name in NAMES:
        assert shown(site.key) in site.accepted[name], "the controller is let in"
    site.rotate()
    assert site.is_complete


def test_an_apply_in_the_middle_takes_no_way_in(site: Site) -> None:
    """It writes what `~/.ssh/gpucluster.pub` and the next one have, as the role `base` does."""
    site.kill_at = ("next", "compute-1")
    with pytest.raises(Killed):
        site.rotate()
    site.accepted = {name: {site.first} for name in NAMES}
    site.kill_at = ("", "")
    assert site.rotate()["hosts"] == 3
    assert site.is_complete


def test_a_host_in_service_that_does_not_let_it_in_leaves_the_present_key(site: Site) -> None:
    site.silent = {("next", "compute-1"): "Permission denied (publickey)."}
    with pytest.raises(Failed, match="the present key is still used: compute-1: Permission denied"):
        site.rotate()
    assert shown(site.key) == site.first
    site.silent = {}
    assert site.rotate()["new"] is False
    assert site.is_complete


def test_the_former_key_is_kept_until_all_have_forgotten_it(site: Site) -> None:
    site.silent = {(part, "compute-1"): "Connection timed out" for part in ("present", "former")}
    with pytest.raises(Unconfirmed, match="compute-1: Connection timed out") as caught:
        site.rotate()
    assert caught.value.partial_result == {"new": True, "hosts": 2, "away": [], "unconfirmed": ["compute-1"]}
    (row,) = controller_key.state(site.config)
    assert (row["state"], row["unconfirmed"]) == ("unconfirmed", ["compute-1"])
    site.silent = {}
    assert site.rotate()["new"] is False
    assert site.is_complete
    assert not controller_key.UNCONFIRMED.exists()


def test_a_node_that_joined_with_the_former_key_is_reached_by_it(site: Site) -> None:
    original = site.asked

    def asked(host: str, key: Path | None, words: Sequence[str], text: str) -> Answer:
        if host == ELASTIC and key == site.key and shown(key) != site.first:
            # As an Ansible run leaves it that began before.
            site.accepted[ELASTIC] = {site.first}
        return original(host, key, words, text)

    site.asked = asked  # type: ignore[method-assign]
    assert site.rotate()["unconfirmed"] == []
    assert ("former", ELASTIC) in site.steps
    assert site.is_complete


def test_a_host_that_is_off_is_named_and_not_waited_for(site: Site) -> None:
    site.off = {"compute-1"}
    assert site.rotate() == {"new": True, "hosts": 2, "away": ["compute-1"], "unconfirmed": []}
    assert site.is_complete
    assert site.accepted["compute-1"] == {site.first}


def test_without_a_key_there_is_nothing_to_rotate(site: Site) -> None:
    for config in (HostLogins(), HostLogins({}, site.key.with_name("none"))):
        with pytest.raises(Refused, match="has no key for other hosts"):
            controller_key.rotate(config, lambda _text: None)
        assert controller_key.state(config) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_the_key_stays_its_users(site: Site) -> None:
    for file in (site.key, site.key.with_name("gpucluster.pub"), site.key.parent):
        os.chown(file, 65534, 65534)
    site.config = replace(site.config, login_user_by_host={**site.config.login_user_by_host})
    site.rotate()
    assert {(file.stat().st_uid, file.stat().st_gid) for file in site.key.parent.iterdir()} == {(65534, 65534)}


# ---- with a real sshd

#: In the place of sudo: kills the rotation once, at a later call.
KILLS = """#!/bin/sh
left=$(cat /run/kill-at 2>/dev/null || echo 0)
echo $((left - 1)) > /run/kill-at
if [ "$left" = 1 ]; then pkill -KILL -f "gpucluster-agent rotate"; exit 1; fi
exec /usr/bin/sudo "$@"
"""


@pytest.fixture
def ssh_site() -> Iterator[SshSite]:
    with SshSite() as started:
        yield started


@pytest.mark.containers
@pytest.mark.slow
def test_sshd_lets_the_next_key_in_and_not_the_former_one(ssh_site: SshSite) -> None:
    controller, key = ssh_site.controller, "/etc/gpucluster/key"

    def lets_in(file: str) -> bool:
        words = ("-oBatchMode=yes", "-oIdentitiesOnly=yes", "-oStrictHostKeyChecking=yes", "-Fnone", f"-i{file}")
        return controller.run("ssh", *words, "node-1", "true", check=False)[0] == 0

    controller.run("cp", "-p", key, "/run/former")
    # As the role `base` writes it; the key of a person is beside it.
    controller.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/run/admin")
    block = '{ cat /run/admin.pub; echo "# BEGIN gpucluster"; cat /etc/gpucluster/key.pub; echo "# END gpucluster"; }'
    controller.run("sh", "-c", f"{block} > /root/.ssh/authorized_keys.new")
    controller.run("mv", "/root/.ssh/authorized_keys.new", "/root/.ssh/authorized_keys")
    assert lets_in("/run/former")
    # The third time is the first one with the next key in its place: it is killed there.
    controller.run(
        "sh", "-c", "echo 3 > /run/kill-at; cat > /usr/local/bin/sudo; chmod 755 /usr/local/bin/sudo", given=KILLS
    )
    controller.rotation("controller-key", -9)
    assert lets_in("/run/former"), "it has not forgotten it"
    assert lets_in(key)
    assert controller.run("cmp", key, "/run/former", check=False)[0] == 1
    done = json.loads(controller.rotation("controller-key", 0)[0])["result"]["controller-key"]
    assert (done["new"], done["hosts"], done["unconfirmed"]) == (False, 2, [])
    assert lets_in(key)
    assert lets_in("/run/admin")
    assert not lets_in("/run/former")
    assert controller.run("test", "-e", "/etc/gpucluster/key.former", check=False)[0] != 0
    # A host that was off: it asks, and gets what hosts have now.
    document = json.loads(controller.run("cat", "/etc/gpucluster/shared-keys.document")[1])
    controller.run("sh", "-c", "ssh-keygen -y -f /run/former > /root/.ssh/authorized_keys")
    given = json.dumps({"user": "root", "document": document})
    controller.run("gpucluster-agent", "shared-keys", "take", given=given)
    assert lets_in(key)
    assert ssh_site.lasts()
