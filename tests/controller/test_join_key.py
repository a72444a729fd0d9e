"""Rotation of the key that joins new nodes: an instance that was launched with either one can be joined.

The hosts are doubles; the keys, and the programs that make them, are real.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import join_files, join_key, shared_keys
from gpucluster.controller.host_commands import Answer
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed, Refused, Unconfirmed
from gpucluster.node_agent.kubernetes import kubectl
from tests.controller.host_keys import pair
from tests.controller.rotated_hosts import CONFIG, ELASTIC, Killed, RotatedHosts, killed_at_a_rename

ELSEWHERE = "ssh-ed25519 OOOO operator"


def shown(private: Path) -> str:
    done = programs.call(["ssh-keygen", "-y", "-f", str(private)])
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split()[:2])


class Site(RotatedHosts):
    """The folder of the join service, one elastic node with the keys that it lets in, and Slurm's states of others.

    Args:
        powering: the nodes that power up.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.key, self.public = folder / "ssh/id_ed25519", folder / "run/id_ed25519.pub"
        self.public.parent.mkdir()
        self.key.parent.mkdir()
        self.first = pair(self.key)
        # As the join service makes it: the public half is elsewhere.
        self.key.with_name("id_ed25519.pub").replace(self.public)
        self.public.chmod(0o644)
        self.lets_in = {self.first, ELSEWHERE}
        self.powering: tuple[str, ...] = ()
        self.silent = ""

    def answer(self, host: str, words: Sequence[str], text: str) -> Answer:
        assert (host, list(words)) == (ELASTIC, ["shared-keys", "take"]), "permanent hosts have no such key"
        if host == self.kill_at[1]:
            raise Killed
        if self.silent:
            return Answer("", self.silent)
        document = json.loads(text)["document"]
        assert list(document) == ["removed"]
        self.lets_in -= {" ".join(each.split()[:2]) for each in document["removed"]}
        return Answer('{"servers": 0}', "")

    def rotate(self) -> dict[str, Any]:
        return join_key.rotate(CONFIG, lambda _text: None, self.key, self.public)

    @property
    def state(self) -> Mapping[str, Any]:
        (row,) = join_key.state(self.key)
        return row

    @property
    def is_complete(self) -> bool:
        return (
            shown(self.key) == " ".join(self.public.read_text().split()[:2]) != self.first
            and self.lets_in == {ELSEWHERE}
            and [file.name for file in self.key.parent.iterdir()] == ["id_ed25519"]
            and self.state["state"] == "complete"
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    made.stand_in(monkeypatch)
    original = programs.call

    def call(argv: Sequence[str], *arguments: Any, **options: Any) -> Any:
        if argv[0] != "sinfo":
            return original(argv, *arguments, **options)
        states = {f"{ELASTIC[:-1]}{number}": "idle~" for number in (1, 2)} | dict.fromkeys(made.powering, "alloc#")
        return original(["printf", "%s %s\n", *(word for line in states.items() for word in line)])

    monkeypatch.setattr(programs, "call", call)
    monkeypatch.setattr(join_key, "UNCONFIRMED", tmp_path / "unconfirmed")
    monkeypatch.setattr(join_key, "POLICY", tmp_path / "autoscaler.json")
    monkeypatch.setattr(kubectl, "ADMIN", str(tmp_path / "admin.conf"))
    return made


def test_new_nodes_get_another_key_and_no_node_lets_the_former_one_in(site: Site) -> None:
    assert site.rotate() == {"new": True, "hosts": 1, "away": [], "unconfirmed": []}
    assert site.is_complete
    assert (site.key.stat().st_mode & 0o777, site.public.stat().st_mode & 0o777) == (0o600, 0o644)


def test_a_node_that_powers_up_is_joined_by_the_former_key(site: Site) -> None:
    site.powering = ("gpu-e2",)
    with pytest.raises(Unconfirmed, match="gpu-e2: it powers up") as caught:
        site.rotate()
    assert caught.value.partial_result == {"new": True, "hosts": 1, "away": [], "unconfirmed": ["gpu-e2"]}
    assert shown(join_files.former(site.key)) == site.first
    assert (site.state["state"], site.state["unconfirmed"]) == ("unconfirmed", ["gpu-e2"])
    following = shown(site.key)
    site.powering = ()
    site.lets_in |= {site.first}
    assert site.rotate() == {"new": False, "hosts": 1, "away": [], "unconfirmed": []}
    assert shown(site.key) == following
    assert site.is_complete


def test_a_node_that_was_launched_long_ago_is_not_waited_for(site: Site) -> None:
    site.powering = ("gpu-e2",)
    with pytest.raises(Unconfirmed):
        site.rotate()
    join_key.POLICY.write_text(json.dumps({"times": {"launch_deadline": 10}}))
    marker = shared_keys.beside(site.key.with_name("id_ed25519.pub"), ".former")
    os.utime(marker, (time.time() - 30, time.time() - 30))
    assert site.rotate()["unconfirmed"] == []
    assert site.is_complete


def test_with_kubernetes_it_is_a_matter_of_time(site: Site) -> None:
    Path(kubectl.ADMIN).write_text("")
    with pytest.raises(Unconfirmed, match="may join until 2"):
        site.rotate()
    marker = shared_keys.beside(site.key.with_name("id_ed25519.pub"), ".former")
    before = time.time() - 2 * join_files.LAUNCH_SECONDS - 60
    os.utime(marker, (before, before))
    assert site.rotate()["new"] is False
    assert site.is_complete


def test_it_goes_on_after_a_kill_while_a_node_is_asked(site: Site) -> None:
    site.kill_at = ("take", ELASTIC)
    with pytest.raises(Killed):
        site.rotate()
    site.kill_at = ("", "")
    following = shown(site.key)
    assert site.rotate()["new"] is False
    assert shown(site.key) == following
    assert site.is_complete


@pytest.mark.parametrize("writes", range(6))
def test_it_goes_on_after_a_kill_between_two_files(site: Site, writes: int) -> None:
    with killed_at_a_rename(writes):
        site.rotate()
    own = " ".join(site.public.read_text().split()[:2])
    keys = [file for file in (site.key, join_files.former(site.key)) if file.exists()]
    assert own in map(shown, keys), "what the autoscaler gives to instances can be used"
    site.rotate()
    assert site.is_complete


def test_a_node_that_does_not_answer_keeps_the_former_key_in_use(site: Site) -> None:
    site.silent = "Connection timed out"
    with pytest.raises(Unconfirmed, match=f"{ELASTIC}: Connection timed out"):
        site.rotate()
    site.silent = ""
    assert site.rotate()["new"] is False
    assert site.is_complete


def test_without_an_answer_of_slurm_nothing_is_forgotten(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    original = programs.call
    monkeypatch.setattr(
        programs, "call", lambda argv, *rest, **more: original(["false"] if argv[0] == "sinfo" else argv, *rest, **more)
    )
    with pytest.raises(Failed, match="does not tell which of gpu-e"):
        site.rotate()
    assert site.first in site.lets_in
    assert shown(join_files.former(site.key)) == site.first


def test_without_a_key_there_is_nothing_to_rotate(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no key for new nodes"):
        join_key.rotate(CONFIG, lambda _text: None, tmp_path / "none", tmp_path / "none.pub")
    assert join_key.state(tmp_path / "none") == []
