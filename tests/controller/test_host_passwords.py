"""Rotation of the passwords with which hosts bind: two are accepted until a host has confirmed the next one.

The first part has doubles of the hosts. The second one has a real slapd, sshd and the program, in a container;
systemctl is a double there, and tests/e2e has SSSD.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import host_commands, host_passwords
from gpucluster.controller.host_commands import Answer
from gpucluster.controller.users import base_tree, host_entries, hosts, lock
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.host_entries import HostEntry
from gpucluster.node_agent import passwords
from gpucluster.node_agent.errors import UNCONFIRMED, Failed, Refused, Unconfirmed
from tests.controller.users.harness import CONFIG, SUFFIX, Controller, host_dn
from tests.waiting import wait_for

HERE = "demo-controller"
OTHERS = ("compute-1", "compute-2")


class Killed(BaseException):
    """As kill -9 ends a process: no handler of an error sees it."""


class Site:
    """A controller with a file of passwords, the directory as a set of hashes for each host, and two hosts.

    Args:
        silent: host -> why it fails. `off`: those that Slurm has given up. `kill_at`: a step that ends the program.
    """

    def __init__(self, folder: Path) -> None:
        logins = dict.fromkeys((HERE, *OTHERS), "opc")
        self.config = Config.parse({
            **CONFIG, "hosts_file": str(folder / "hosts.json"), "hosts": {"login_user_by_host": logins}
        })  # fmt: skip
        self.silent: dict[str, str] = {}
        self.off: set[str] = set()
        self.kill_at = ""
        self.password_by_host: dict[str, str] = {}
        self.accepted: dict[str, set[str]] = {}
        self.taken: list[str] = []
        self._made = 0
        known = {name: HostEntry(name, f"old {name}", f"hash of old {name}", 1_000_000) for name in (HERE, *OTHERS)}
        passwords.write_file(self.config.hosts_file, host_entries.text(known))
        self.password_by_host = {name: each.password for name, each in known.items()}
        self.store(self.config, known, known)

    def make(self, number: int) -> list[tuple[str, str]]:
        self._made += 1
        return [(f"{self._made}-{each}", f"hash of {self._made}-{each}") for each in range(number)]

    def store(self, config: Config, before: Mapping[str, HostEntry], after: Mapping[str, HostEntry]) -> None:
        """As `base_tree` does it: the file, then the directory."""
        if after != before:
            passwords.write_file(config.hosts_file, host_entries.text(after))
        self.ends("the file is written")
        self.accepted = {name: {each.hash, each.former} - {""} for name, each in after.items()}

    def on_all(
        self, logins: Mapping[str, Any], _key: Path | None, words: Sequence[str], text_by_host: Mapping[str, str]
    ) -> dict[str, str]:
        assert list(words) == ["directory-password", "take"]
        return {host: why for host in sorted(logins) if (why := self.take(host, text_by_host[host]))}

    def on_this_one(self, words: Sequence[str], text: str) -> Answer:
        assert text not in " ".join(words)
        return Answer("", self.take(HERE, text))

    def take(self, host: str, text: str) -> str:
        self.ends(f"{host} takes it")
        if host in self.silent:
            return self.silent[host]
        self.password_by_host[host] = json.loads(text)
        self.taken.append(host)
        assert f"hash of {json.loads(text)}" in self.accepted[host], "the directory accepts it first"
        return ""

    def ends(self, step: str) -> None:
        for host, password in self.password_by_host.items():
            if self.accepted:
                assert f"hash of {password}" in self.accepted[host], f"{host} can't bind when {step}"
        if step == self.kill_at:
            raise Killed


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)

    @contextmanager
    def held() -> Iterator[None]:
        yield

    monkeypatch.setattr(lock, "held", held)
    monkeypatch.setattr(base_tree, "_store_hosts", made.store)
    monkeypatch.setattr(passwords, "made", made.make)
    monkeypatch.setattr(host_commands, "on_all", made.on_all)
    monkeypatch.setattr(host_commands, "on_this_one", made.on_this_one)
    monkeypatch.setattr(host_commands, "away", lambda silent: tuple(sorted(set(silent) & made.off)))
    monkeypatch.setattr(socket, "gethostname", lambda: f"{HERE}.local")
    return made


def rotate(site: Site) -> dict[str, Any]:
    return host_passwords.rotate(site.config, lambda _text: None)


def entries(site: Site) -> dict[str, HostEntry]:
    return base_tree.present(site.config)


def ended(site: Site) -> bool:
    """Whether nobody has a former password, and each host has the one that is accepted."""
    return all(
        site.accepted[name] == {f"hash of {site.password_by_host[name]}"} and not each.former
        for name, each in entries(site).items()
    )


def test_each_host_gets_a_password_of_its_own_and_the_one_before_ends(site: Site) -> None:
    before = dict(site.password_by_host)
    began = time.gmtime().tm_year
    assert rotate(site) == {"new": True, "hosts": 3, "away": [], "unconfirmed": []}
    assert ended(site)
    assert not set(before.values()) & set(site.password_by_host.values())
    assert len(set(site.password_by_host.values())) == 3
    row = host_passwords.state(site.config)
    assert (row["state"], row["unconfirmed"]) == ("complete", [])
    assert began <= int(row["changed"][:4]) <= time.gmtime().tm_year
    assert rotate(site)["new"] is True


@pytest.mark.parametrize("step", ["the file is written", *(f"{host} takes it" for host in (*OTHERS, HERE))])
def test_it_goes_on_after_a_kill_at_any_step(site: Site, step: str) -> None:
    site.kill_at = step
    with pytest.raises(Killed):
        rotate(site)
    made = {name: each.password for name, each in entries(site).items()}
    assert host_passwords.state(site.config)["state"] == "unconfirmed"
    site.kill_at = ""
    assert rotate(site) == {"new": False, "hosts": 3, "away": [], "unconfirmed": []}
    assert ended(site)
    assert site.password_by_host == made, "no other password is made"


def test_it_goes_on_after_a_kill_before_the_former_ones_end(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    original = base_tree.confirm
    monkeypatch.setattr(base_tree, "confirm", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        rotate(site)
    monkeypatch.setattr(base_tree, "confirm", original)
    assert rotate(site)["new"] is False
    assert ended(site)


def test_a_host_in_service_that_does_not_answer_keeps_both_and_is_named(site: Site) -> None:
    site.silent = {"compute-1": "timed out"}
    with pytest.raises(Unconfirmed, match="compute-1: timed out") as caught:
        rotate(site)
    assert caught.value.partial_result == {"new": True, "hosts": 2, "away": [], "unconfirmed": ["compute-1"]}
    assert host_passwords.state(site.config)["unconfirmed"] == ["compute-1"]
    assert {name: len(each) for name, each in site.accepted.items()} == {HERE: 1, "compute-1": 2, "compute-2": 1}
    site.silent, site.taken = {}, []
    assert rotate(site) == {"new": False, "hosts": 1, "away": [], "unconfirmed": []}
    assert site.taken == ["compute-1"], "the others are not disturbed again"
    assert ended(site)


def test_a_host_that_is_off_does_not_hold_up_the_others(site: Site) -> None:
    site.silent, site.off = {"compute-2": "no route to host"}, {"compute-2"}
    expected = {"new": True, "hosts": 2, "away": ["compute-2"], "unconfirmed": []}
    assert rotate(site) == expected
    before = dict(site.password_by_host)
    assert rotate(site) == expected, "a second one while it is off"
    assert not {before[name] for name in (HERE, "compute-1")} & set(site.password_by_host.values())
    assert host_passwords.state(site.config)["unconfirmed"] == ["compute-2"]
    # It wakes with the password of its day, which is accepted, and gets the next one.
    site.ends("compute-2 boots")
    site.silent, site.off = {}, set()
    assert rotate(site)["hosts"] == 1
    assert ended(site)


def test_an_elastic_node_that_does_not_exist_now_is_left_out(site: Site) -> None:
    config = Config.parse({
        **CONFIG, "hosts_file": str(site.config.hosts_file),
        "hosts": {"login_user_by_host": {HERE: "opc", "compute-1": "opc"}},
    })  # fmt: skip
    assert host_passwords.rotate(config, lambda _text: None)["hosts"] == 2
    assert site.accepted["compute-2"] == {"hash of old compute-2"}


def test_without_an_answer_of_slurm_nothing_begins(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "remote", lambda *_: ({}, ["gpu-e[1-2]"]))
    with pytest.raises(Failed, match="Slurm does not tell which of gpu-e"):
        rotate(site)
    assert site.taken == []


def test_a_cluster_without_a_directory_has_none(site: Site) -> None:
    site.config.hosts_file.unlink()
    with pytest.raises(Refused, match=r"there is no .*hosts\.json"):
        rotate(site)
    assert host_passwords.state(site.config)["changed"] == ""


# ---- with a real slapd

# A double: it notes that SSSD was restarted, and ends the rotation once where the test asks for it.
SYSTEMCTL = """#!/bin/sh
echo "$*" >> /run/restarts
rm /run/kill-once 2>/dev/null && pkill -KILL -f "gpucluster-agent rotate"
exit 0
"""


@pytest.fixture
def controller() -> Iterator[Controller]:
    with Controller() as started:
        yield started


def binds(controller: Controller, host: str, password: str) -> bool:
    """Whether slapd accepts a password of a host."""
    status, said = controller.bound(host, password, "ldapwhoami")
    assert status in (0, 49), said
    return status == 0


@pytest.mark.containers
@pytest.mark.slow
def test_a_directory_accepts_both_passwords_of_a_host_until_it_has_confirmed_the_next(controller: Controller) -> None:
    controller.request("base_tree", hosts={"node-1": "i-1", "gone": "i-2"})
    first = controller.entries()
    sssd = (
        f"ldap_uri = ldaps://127.0.0.1\nldap_tls_cacert = /etc/ldap/test.pem\n"
        f"ldap_default_bind_dn = {host_dn('node-1')}\nldap_default_authtok = {first['node-1']['password']}\n"
    )
    controller.run("sh", "-c", "umask 077; mkdir -p /etc/sssd; cat > /etc/sssd/sssd.conf", given=sssd)
    controller.run("sh", "-c", "cat > /usr/local/bin/systemctl; chmod 755 /usr/local/bin/systemctl", given=SYSTEMCTL)
    # The program is killed when the host has the next one, and has not said so.
    controller.run("touch", "/run/kill-once")
    assert controller.rotation("passwords", -9)[0] == ""
    made = controller.entries()
    for host in ("node-1", "gone"):
        assert binds(controller, host, first[host]["password"]), host
        assert binds(controller, host, made[host]["password"]), host
    assert made["node-1"]["password"] in controller.run("cat", "/etc/sssd/sssd.conf")[1]
    # Another change of the directory in between leaves both.
    assert controller.request("base_tree", hosts={"node-1": "i-1", "gone": "i-2"})["changed"] is False

    ends: list[tuple[str, str]] = []

    def confirmed() -> bool:
        ends.append(controller.rotation("passwords", UNCONFIRMED))
        return "node-1" not in json.loads(ends[-1][0])["done"]["passwords"]["unconfirmed"]

    wait_for("the host that is there has confirmed it", confirmed, state=lambda: ends)
    text = ends[-1][0]
    assert json.loads(text)["done"]["passwords"] == {"new": False, "hosts": 1, "away": [], "unconfirmed": ["gone"]}
    secrets = [each[host]["password"] for each in (first, made) for host in ("node-1", "gone")]
    assert not [secret for secret in secrets if secret in str(ends)]
    assert not binds(controller, "node-1", first["node-1"]["password"])
    assert binds(controller, "node-1", made["node-1"]["password"])
    assert binds(controller, "gone", first["gone"]["password"]), "it has no other one"
    assert {name: bool(each.get("former")) for name, each in controller.entries().items()} == {
        "node-1": False, "gone": True,
    }  # fmt: skip
    state = json.loads(
        controller.run("gpucluster-agent", "rotate", "request", given='{"operation": "state", "arguments": {}}')[1]
    )
    rows = {each["name"]: each["unconfirmed"] for each in state["result"]["secrets"]}
    assert rows["passwords"] == ["gone"]

    # What slapd refuses reaches no configuration.
    before = controller.run("cat", "/etc/sssd/sssd.conf")[1]
    refused = controller.run("gpucluster-agent", "directory-password", "take", given=json.dumps("x" * 43), check=False)
    assert refused[0] == 1
    assert f"does not accept the next password of cn=node-1,ou=hosts,{SUFFIX}" in refused[2]
    assert controller.run("cat", "/etc/sssd/sssd.conf")[1] == before
