"""Rotation of ssh host keys: no host switches before all accept its next keys, and none is dropped before it has.

The first part has doubles of the hosts. The second one has a real sshd, ssh, the CA's program and the agent in a
container: its controller and its node are one machine by two names. systemctl is a double there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import host_keys
from gpucluster.controller.host_commands import Answer
from gpucluster.controller.users.config import HostLogins
from gpucluster.node_agent.errors import Failed, Unconfirmed
from tests.controller.rotated_hosts import ELASTIC, HERE, Killed, RotatedHosts
from tests.controller.ssh_site import SshSite
from tests.waiting import PATIENCE_S, wait_for

PERMANENT = ("compute-1", "demo-login-1")
CONFIG_OF_HOSTS = HostLogins({HERE: "opc", "compute-1": "opc", "demo-login-1": "opc", "gpu-e[1-2]": "opc"})
NAMES = (HERE, *PERMANENT, ELASTIC)


class Site(RotatedHosts):
    """Hosts with keys, and what each accepts of the others.

    Args:
        silent: host -> why it fails.
    """

    def __init__(self) -> None:
        super().__init__()
        self.present = {name: f"ssh-ed25519 old-{name}" for name in (HERE, *PERMANENT)}
        self.following: dict[str, str] = {}
        self.accepted = {name: set(self.present.values()) for name in NAMES}
        self.silent: dict[str, str] = {}

    def answer(self, host: str, words: Sequence[str], text: str) -> Answer:
        command, part = words
        assert command == "host-keys"
        if (part, host) == self.kill_at:
            raise Killed
        if host in self.silent:
            return Answer("", self.silent[host])
        self.steps.append((part, host))
        if part == "prepare":
            self.following.setdefault(host, f"ssh-ed25519 new-{host}")
            return Answer(json.dumps({"present": [self.present[host]], "next": [self.following[host]]}), "")
        if part == "known":
            changes = json.loads(text)
            self.accepted[host] |= {new for old, new in changes["add"].items() if old in self.accepted[host]}
            self.accepted[host] -= set(changes["drop"])
        if part == "switch" and self.present[host] != json.loads(text):
            assert self.following.pop(host) == json.loads(text)
            self.present[host] = json.loads(text)
        for other in NAMES:
            if other not in self.off:
                assert set(self.present.values()) <= self.accepted[other], f"{other} after {part} on {host}"
        return Answer("", "")

    @property
    def is_complete(self) -> bool:
        return all(each == set(self.present.values()) for each in self.accepted.values())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site()
    made.stand_in(monkeypatch)
    monkeypatch.setattr(host_keys, "BEGUN", tmp_path / "begun")
    return made


def rotate() -> dict[str, Any]:
    return host_keys.rotate(CONFIG_OF_HOSTS, lambda _text: None)


def new(*names: str) -> dict[str, list[str]]:
    return {name: [f"ssh-ed25519 new-{name}"] for name in names}


def test_every_host_accepts_the_next_keys_before_one_switches(site: Site) -> None:
    done = rotate()
    assert done == {"new": True, "hosts": 3, "away": [], "unconfirmed": [], "keys": new(HERE, *PERMANENT)}
    assert site.is_complete
    parts = [part for part, _host in site.steps]
    assert parts == ["prepare"] * 3 + ["known"] * 4 + ["switch"] * 3 + ["known"] * 4
    assert ("prepare", ELASTIC) not in site.steps, "its name has the CA alone"
    assert host_keys.state()["state"] == "complete"


@pytest.mark.parametrize("part", ["prepare", "known", "switch"])
@pytest.mark.parametrize("host", ["compute-1", HERE])
def test_it_goes_on_after_a_kill_at_any_step(site: Site, part: str, host: str) -> None:
    site.kill_at = (part, host)
    with pytest.raises(Killed):
        rotate()
    state = {"prepare": "complete", "known": "prepared", "switch": "unconfirmed"}[part]
    assert host_keys.state()["state"] == state
    site.kill_at = ("", "")
    site.steps.clear()
    done = rotate()
    assert (done["new"], done["keys"]) == (part == "prepare", new(HERE, *PERMANENT))
    assert ("prepare" in dict(site.steps)) is (part == "prepare")
    assert site.is_complete


@pytest.mark.parametrize("part", ["prepare", "known"])
def test_a_host_in_service_that_takes_no_part_stops_it_before_one_switches(
    site: Site, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = site.answer

    def answer(host: str, words: Sequence[str], text: str) -> Answer:
        return Answer("", "timed out") if (host, words[1]) == ("compute-1", part) else original(host, words, text)

    monkeypatch.setattr(site, "answer", answer)
    with pytest.raises(Failed, match="no host has switched: compute-1: timed out"):
        rotate()
    assert "switch" not in dict(site.steps)
    monkeypatch.setattr(site, "answer", original)
    assert rotate()["hosts"] == 3
    assert site.is_complete


def test_a_host_that_is_off_keeps_its_keys(site: Site) -> None:
    site.silent, site.off = {"compute-1": "no route to host"}, {"compute-1"}
    done = rotate()
    assert (done["hosts"], done["away"], done["keys"]) == (2, ["compute-1"], new(HERE, "demo-login-1"))
    assert site.accepted[HERE] == set(site.present.values())
    assert host_keys.state()["state"] == "complete"


def test_a_host_that_does_not_switch_is_named_and_asked_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    original = site.answer

    def answer(host: str, words: Sequence[str], text: str) -> Answer:
        return (
            Answer("", "its disk is full")
            if (host, words[1]) == ("compute-1", "switch")
            else original(host, words, text)
        )

    monkeypatch.setattr(site, "answer", answer)
    with pytest.raises(Unconfirmed, match="compute-1: its disk is full") as caught:
        rotate()
    assert caught.value.partial_result == {
        "new": True, "hosts": 2, "away": [], "unconfirmed": ["compute-1"], "keys": new(HERE, "demo-login-1"),
    }  # fmt: skip
    assert host_keys.state()["unconfirmed"] == ["compute-1"]
    assert "ssh-ed25519 old-compute-1" in site.accepted[HERE], "it still has this one"
    monkeypatch.setattr(site, "answer", original)
    site.steps.clear()
    assert rotate() == {"new": False, "hosts": 1, "away": [], "unconfirmed": [], "keys": new("compute-1")}
    assert [host for part, host in site.steps if part == "switch"] == ["compute-1"]
    assert site.is_complete


def test_a_host_that_still_accepts_former_keys_is_told_of_all_of_them(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = site.answer

    def answer(host: str, words: Sequence[str], text: str) -> Answer:
        is_last = words[1] == "known" and json.loads(text)["drop"]
        return Answer("", "timed out") if host == "compute-1" and is_last else original(host, words, text)

    monkeypatch.setattr(site, "answer", answer)
    with pytest.raises(Unconfirmed, match="compute-1: timed out"):
        rotate()
    monkeypatch.setattr(site, "answer", original)
    assert rotate()["new"] is False
    assert site.is_complete


def test_a_damaged_file_names_what_to_do(site: Site) -> None:
    del site
    host_keys.BEGUN.write_text("{")
    with pytest.raises(Failed, match="can't be read") as caught:
        rotate()
    assert "gpucluster rotate host-keys" in caught.value.hint


# ---- with a real sshd


@pytest.fixture
def ssh_site() -> Iterator[SshSite]:
    with SshSite() as started:
        yield started


@pytest.mark.containers
@pytest.mark.slow
def test_sshd_answers_with_other_keys_and_its_connections_live_on(ssh_site: SshSite) -> None:
    controller = ssh_site.controller

    def offered() -> set[str]:
        """What sshd answers with, as a client with no key of it sees it."""
        lines = controller.run("ssh-keyscan", "-T", f"{PATIENCE_S:.0f}", "node-1", check=False)[1].splitlines()
        return {" ".join(line.split()[1:3]) for line in lines if not line.startswith("#")}

    believes = ssh_site.believes
    before = offered()
    assert len(before) == 3
    assert believes("/run/known.before")
    controller.run("touch", "/run/kill-once")
    controller.rotation("host-keys", -9)
    assert believes("/etc/ssh/ssh_known_hosts"), "sshd has the former keys, the files are the next ones"
    done = json.loads(controller.rotation("host-keys", 0)[0])["result"]["host-keys"]
    assert (done["new"], done["hosts"], done["unconfirmed"]) == (False, 2, [])
    after = set(done["keys"]["node-1"])
    wait_for("sshd answers with the next keys, and no other", lambda: offered() == after, state=offered)
    assert not after & before
    known = controller.run("cat", "/etc/ssh/ssh_known_hosts")[1]
    assert all(key in known for key in after)
    assert not any(key in known for key in before)
    # By each of its keys, and by the CA alone; who knows the former ones alone does not believe it.
    controller.run(
        "sh", "-c", "grep -v '^@' /etc/ssh/ssh_known_hosts > /run/keys; grep '^@' /etc/ssh/ssh_known_hosts > /run/ca"
    )
    assert believes("/run/keys")
    assert believes("/run/keys", "-oHostKeyAlgorithms=rsa-sha2-512")
    assert believes("/run/ca")
    assert not believes("/run/known.before")
    # The CA and a former key: as the operator's machine has them until it learns the next one.
    controller.run("sh", "-c", "cat /run/known.before /run/ca > /run/both")
    assert believes("/run/both")
    # The connection from before.
    assert ssh_site.lasts()
