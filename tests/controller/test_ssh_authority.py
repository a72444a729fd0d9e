"""Rotation of the ssh CA: no certificate of it before all hosts accept it, and the former one ends when all have one.

The first part has doubles of the hosts, and real keys of the CA. The second one has a real sshd, ssh and the CA's
program in a container (`ssh_site`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import ssh_authority
from gpucluster.controller.host_commands import Answer
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed, Refused, Unconfirmed
from gpucluster.node_agent.host_keys import public
from tests.controller.host_keys import pair
from tests.controller.rotated_hosts import CONFIG, ELASTIC, HERE, NAMES, Killed, RotatedHosts, killed_at_a_rename
from tests.controller.ssh_site import SshSite


class Site(RotatedHosts):
    """Hosts, the CA whose certificate each has, and the CAs that each accepts.

    Args:
        silent: host -> why it fails, at a step.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.key = folder / "ssh_ca"
        self.first = pair(self.key)
        self.certified = dict.fromkeys(NAMES, self.first)
        self.accepted = {name: {self.first} for name in NAMES}
        self.silent: dict[tuple[str, str], str] = {}

    @property
    def signer(self) -> str:
        """The public key of the CA that signs, of its private one."""
        done = programs.call(["ssh-keygen", "-y", "-f", str(self.key)])
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.split()[:2])

    def answer(self, host: str, words: Sequence[str], text: str) -> Answer:
        part = words[1]
        if part == "known" and json.loads(text)["drop"]:
            part = "drop"
        if (part, host) == self.kill_at:
            raise Killed
        if (part, host) in self.silent or host in self.off:
            return Answer("", self.silent.get((part, host), "no route to host"))
        self.steps.append((part, host))
        if part == "renew":
            assert json.loads(text) == self.signer, "it asks the CA that signs"
            self.certified[host] = self.signer
        else:
            changes = json.loads(text)
            assert changes["authorities"] is True
            self.accepted[host] |= {new for old, new in changes["add"].items() if old in self.accepted[host]}
            self.accepted[host] -= set(changes["drop"])
        for name in set(NAMES) - self.off:
            others = {self.certified[other] for other in NAMES if other not in self.off}
            assert others <= self.accepted[name], f"{name} after {part} on {host}"
        return Answer("", "")

    def rotate(self) -> dict[str, Any]:
        return ssh_authority.rotate(CONFIG, lambda _text: None, self.key)

    @property
    def is_complete(self) -> bool:
        there = set(NAMES) - self.off
        files = {file.name for file in self.key.parent.iterdir()}
        return (
            all(self.accepted[name] == {self.signer} == {self.certified[name]} for name in there)
            and self.signer == public(self.key.with_name("ssh_ca.pub"))
            and files == {"ssh_ca", "ssh_ca.pub"}
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    (tmp_path / "authority").mkdir()
    made = Site(tmp_path / "authority")
    made.stand_in(monkeypatch)
    monkeypatch.setattr(ssh_authority, "BEGUN", tmp_path / "begun")
    return made


def state(site: Site) -> str:
    (row,) = ssh_authority.state(site.key)
    return str(row["state"])


def test_every_host_accepts_the_next_ca_before_it_signs_and_has_a_certificate_before_the_former_one_ends(
    site: Site,
) -> None:
    done = site.rotate()
    assert (done["new"], done["hosts"], done["away"], done["unconfirmed"]) == (True, 3, [], [])
    assert done["authority"] == site.key.with_name("ssh_ca.pub").read_text()
    assert site.signer != site.first
    assert site.is_complete
    assert [part for part, _host in site.steps] == ["known"] * 3 + ["renew"] * 3 + ["drop"] * 3
    assert state(site) == "complete"


@pytest.mark.parametrize("part", ["known", "renew", "drop"])
@pytest.mark.parametrize("host", ["compute-1", HERE])
def test_it_goes_on_after_a_kill_at_any_step(site: Site, part: str, host: str) -> None:
    site.kill_at = (part, host)
    with pytest.raises(Killed):
        site.rotate()
    assert state(site) == ("prepared" if part == "known" else "unconfirmed")
    following = public(site.key.with_name("ssh_ca.next.pub")) or site.signer
    site.kill_at = ("", "")
    assert site.rotate()["new"] is False
    assert site.signer == following, "no other CA is made"
    assert site.is_complete


@pytest.mark.parametrize("renames", range(2))
def test_it_goes_on_after_a_kill_while_the_ca_changes(site: Site, renames: int) -> None:
    with killed_at_a_rename(renames, lambda _, target: target.name.startswith("ssh_ca")):
        site.rotate()
    assert site.rotate()["new"] is False
    assert site.is_complete


def test_a_host_in_service_that_does_not_answer_leaves_the_present_ca(site: Site) -> None:
    site.silent = {("known", "compute-1"): "timed out"}
    with pytest.raises(Failed, match="the present CA still signs: compute-1: timed out"):
        site.rotate()
    assert site.signer == site.first
    site.silent = {}
    assert site.rotate()["new"] is False
    assert site.is_complete


@pytest.mark.parametrize("part", ["renew", "drop"])
def test_the_former_ca_is_accepted_until_all_have_another_certificate(site: Site, part: str) -> None:
    site.silent = {(part, "compute-1"): "timed out"}
    with pytest.raises(Unconfirmed, match="compute-1: timed out") as caught:
        site.rotate()
    assert caught.value.partial_result is not None
    assert caught.value.partial_result["unconfirmed"] == ["compute-1"]
    assert (site.first in site.accepted[HERE]) is (part == "renew")
    (row,) = ssh_authority.state(site.key)
    assert (row["state"], row["unconfirmed"]) == ("unconfirmed", ["compute-1"])
    site.silent = {}
    assert site.rotate()["new"] is False
    assert site.is_complete


def test_a_host_that_is_off_is_named_and_not_waited_for(site: Site) -> None:
    site.off = {"compute-1"}
    done = site.rotate()
    assert (done["hosts"], done["away"]) == (2, ["compute-1"])
    assert site.is_complete
    assert site.certified["compute-1"] == site.first


def test_a_node_that_joined_meanwhile_accepts_the_next_one_in_the_end(site: Site) -> None:
    original = site.answer

    def answer(host: str, words: Sequence[str], text: str) -> Answer:
        if host == ELASTIC and words[1] == "known" and json.loads(text)["drop"]:
            # As an Ansible run leaves it that began before.
            site.accepted[ELASTIC] = {site.first}
        return original(host, words, text)

    site.answer = answer  # type: ignore[method-assign]
    site.rotate()
    assert site.accepted[ELASTIC] == {site.signer}


def test_without_a_ca_there_is_nothing_to_rotate(site: Site) -> None:
    site.key.unlink()
    with pytest.raises(Refused, match="there is no ssh CA"):
        site.rotate()
    assert ssh_authority.state(site.key) == []
    ssh_authority.BEGUN.write_text("[]")
    with pytest.raises(Failed, match="can't be read"):
        site.rotate()


# ---- with a real sshd


@pytest.fixture
def ssh_site() -> Iterator[SshSite]:
    with SshSite() as started:
        yield started


@pytest.mark.containers
@pytest.mark.slow
def test_ssh_believes_the_next_ca_and_not_the_former_one(ssh_site: SshSite) -> None:
    controller = ssh_site.controller
    controller.run("sh", "-c", "grep '^@' /etc/ssh/ssh_known_hosts > /run/former")
    controller.run("touch", "/run/kill-once")
    controller.rotation("ssh-ca", -9)
    both = controller.run("grep", "^@", "/etc/ssh/ssh_known_hosts")[1].splitlines()
    assert len(both) == 2
    done = json.loads(controller.rotation("ssh-ca", 0)[0])["result"]["ssh-ca"]
    assert (done["new"], done["hosts"], done["unconfirmed"]) == (False, 2, [])
    ssh_site.wait()
    controller.run("sh", "-c", "grep '^@' /etc/ssh/ssh_known_hosts > /run/next")
    assert controller.run("cat", "/run/next")[1].split()[2:] == done["authority"].split()[:2]
    assert ssh_site.believes("/run/next")
    assert not ssh_site.believes("/run/former")
    # A machine that nobody told knows the key of the host itself.
    controller.run("sh", "-c", "cat /run/known.before /run/former > /run/both")
    assert ssh_site.believes("/run/both")
    settings = json.loads(controller.run("cat", "/etc/gpucluster/host-certificate.json")[1])
    assert settings["authority"] == " ".join(done["authority"].split()[:2])
    # What the host has now is what it would ask for at its boot: nothing.
    assert controller.run("gpucluster-agent", "host-certificate", "request")[0] == 0
    assert ssh_site.lasts()
