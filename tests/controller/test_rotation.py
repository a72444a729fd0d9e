"""A rotation of the munge key on the controller: its order, what stops it, and how it goes on after a kill.

Doubles: hosts answer as the test has it, and systemctl and sinfo only record. tests/e2e has real ones.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import host_commands, munge_keys, rotation
from gpucluster.controller.users import hosts
from gpucluster.controller.users.config import Config, HostLogins
from gpucluster.node_agent import munge_key, programs
from gpucluster.node_agent.errors import AgentError, Failed, Refused, Unconfirmed
from gpucluster.node_agent.munge_key import digest, digest_of
from gpucluster.node_agent.state_volume.mounting import StateVolume

OLD = b"old key " * 16
CONFIG = HostLogins({"demo-login-1": "opc", "compute-1": "opc", "compute-2": "opc"})


class Killed(BaseException):
    """As kill -9 ends a process: no handler of an error sees it."""


class Site:
    """A controller in a folder of the test, and the hosts that it reaches.

    Args:
        silent: host -> why it fails. `states`: node -> its state in sinfo.
    """

    def __init__(self, folder: Path) -> None:
        self.calls: list[str] = []
        self.silent: dict[str, str] = {}
        self.states = {"compute-1": "mixed", "compute-2": "idle"}
        self.keys: dict[str, str] = {}
        self.staged: dict[str, str] = {}
        self.kill_at = ""
        self.own = folder / "own.key"

    def call(self, argv: Sequence[str], **_how: Any) -> subprocess.CompletedProcess[str]:
        command = " ".join(argv)
        self.calls.append(command)
        if self.kill_at and self.kill_at in command:
            raise Killed
        text = ""
        if argv[0] == "sinfo":
            text = "".join(f"{node} {state}\n" for node, state in self.states.items())
        if command == f"systemctl start --no-block {rotation.UNIT}":
            rotation.switch(CONFIG)
        return subprocess.CompletedProcess(list(argv), 0, text, "")

    def on_all(
        self, logins: Mapping[str, hosts.HostLogin], _key: Path | None, words: Sequence[str], seconds: float = 0.0
    ) -> dict[str, str]:
        del seconds
        self.calls.append(f"{words[1]}{' late' if '--late' in words else ''}: {','.join(sorted(logins))}")
        if self.kill_at and self.kill_at == words[1]:
            raise Killed
        answered = sorted(set(logins) - set(self.silent))
        if words[1] == "switch":
            assert "--late" in words or "systemctl stop slurmctld.service" in self.calls
        (self.staged if words[1] == "stage" else self.keys).update(dict.fromkeys(answered, words[-1]))
        return {host: why for host, why in self.silent.items() if host in logins}

    def order(self) -> list[str]:
        return [call for call in self.calls if not call.startswith("systemctl reset-failed")]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    for module, name, file in (
        (munge_keys, "SECRET", "munge.key"),
        (munge_keys, "NEXT", "munge.key.next"),
        (munge_key, "KEY", "own.key"),
        (rotation, "BEGUN", "munge.switch"),
        (rotation, "MISSING", "munge.missing"),
        (rotation, "LOCK", "lock"),
    ):
        monkeypatch.setattr(module, name, tmp_path / file)
    for function in (munge_keys.prepare, munge_keys.commit):
        places = (munge_keys.SECRET, munge_keys.NEXT)
        monkeypatch.setattr(function, "__defaults__", places[-len(function.__defaults__ or ()) :])
    (tmp_path / "munge.key").write_bytes(OLD)
    original = munge_key.install
    monkeypatch.setattr(munge_key, "install", lambda key, target: original(key, target, None))
    monkeypatch.setattr(programs, "call", made.call)
    monkeypatch.setattr(host_commands, "on_all", made.on_all)
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/sbin/slurmctld")
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    return made


def rotate() -> dict[str, Any]:
    return rotation.rotate_munge(CONFIG, lambda _text: None)


def test_the_key_is_on_every_host_before_slurmctld_stops_and_in_use_before_it_starts(site: Site) -> None:
    assert rotate() == {"new": True, "hosts": 4, "away": [], "unconfirmed": []}
    everywhere = "compute-1,compute-2,demo-login-1"
    assert site.order() == [
        f"stage: {everywhere}",
        f"systemctl start --no-block {rotation.UNIT}",
        "systemctl stop slurmctld.service",
        f"switch: {everywhere}",
        "switch: ",
        "systemctl restart munge.service",
        "systemctl start slurmctld.service",
    ]
    name = digest_of(munge_keys.SECRET)
    assert name != digest(OLD)
    assert set(site.keys.values()) == {name} == {digest_of(site.own)}
    assert not munge_keys.NEXT.exists()


def test_a_node_in_service_that_does_not_answer_stops_it_before_anything_is_switched(site: Site) -> None:
    site.silent = {"compute-1": "timed out"}
    with pytest.raises(Failed, match="nothing was switched: compute-1: timed out"):
        rotate()
    assert not [call for call in site.calls if "slurmctld" in call]
    assert munge_keys.SECRET.read_bytes() == OLD
    assert rotation.state()["secrets"][0]["state"] == "prepared"
    name = digest_of(munge_keys.NEXT)
    site.silent = {}
    rotate()
    assert digest_of(munge_keys.SECRET) == name, "it goes on with the key that the others have"


@pytest.mark.parametrize("state", ["down*", "idle*", "down", "idle~", "drained*", "powering_down"])
def test_hosts_that_are_out_of_service_do_not_stop_it(site: Site, state: str) -> None:
    site.silent, site.states["compute-2"] = {"compute-2": "no route to host"}, state
    assert rotate() == {"new": True, "hosts": 3, "away": ["compute-2"], "unconfirmed": []}
    assert "switch: compute-1,demo-login-1" in site.calls


@pytest.mark.parametrize("state", ["idle", "mixed", "allocated", "draining", "drained", "idle#"])
def test_hosts_that_may_run_something_do(site: Site, state: str) -> None:
    site.silent, site.states["compute-2"] = {"compute-2": "no route to host"}, state
    with pytest.raises(Failed, match="compute-2: no route to host"):
        rotate()


@pytest.mark.parametrize(
    "moment",
    ["stage", "start --no-block", "stop slurmctld", "switch", "restart munge", "start slurmctld"],
)
def test_it_goes_on_after_a_kill_at_any_step(site: Site, moment: str) -> None:
    site.kill_at = moment
    with pytest.raises(Killed):
        rotate()
    name = digest_of(munge_keys.NEXT) or digest_of(munge_keys.SECRET)
    assert rotation.state()["secrets"][0]["state"] == ("prepared" if moment == "stage" else "switching")
    site.kill_at = ""
    site.calls.clear()
    assert rotate()["hosts"] == 4
    assert site.calls[-1] == "systemctl start slurmctld.service"
    assert {digest_of(munge_keys.SECRET), digest_of(site.own), *site.keys.values()} == {name}
    assert rotation.state()["secrets"][0]["state"] == "complete"


def test_systemd_goes_on_with_a_switch_without_the_operator(site: Site) -> None:
    site.kill_at = "restart munge"
    with pytest.raises(Killed):
        rotate()
    site.kill_at = ""
    rotation.switch(CONFIG)
    assert site.calls[-1] == "systemctl start slurmctld.service"
    assert rotation.state()["secrets"][0]["state"] == "complete"
    site.calls.clear()
    rotation.switch(CONFIG)
    assert site.calls == [], "there is nothing to go on with"


def test_a_switch_without_its_key_does_not_stop_slurmctld(site: Site) -> None:
    rotation.Switch("0" * 64, {}).save(rotation.BEGUN)
    with pytest.raises(Failed, match="is not the key of this switch"):
        rotation.switch(CONFIG)
    assert site.calls == []
    assert not rotation.BEGUN.exists(), "systemd would try it for ever"


def test_a_host_that_went_away_meanwhile_is_asked_again_by_the_same_command(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = site.on_all

    def on_all(logins: Any, key: Any, words: Any, seconds: float = 0.0) -> dict[str, str]:
        if words[1] == "switch":
            site.silent = {"compute-2": "timed out"}
        return original(logins, key, words, seconds)

    monkeypatch.setattr(host_commands, "on_all", on_all)
    with pytest.raises(Unconfirmed, match="not every host confirms it: compute-2") as caught:
        rotate()
    assert caught.value.partial_result == {"new": True, "hosts": 3, "away": [], "unconfirmed": ["compute-2"]}
    (row,) = rotation.state()["secrets"]
    assert (row["state"], row["unconfirmed"]) == ("unconfirmed", ["compute-2"])
    assert "start slurmctld" in site.calls[-2], "the others work on"
    name = digest_of(munge_keys.SECRET)
    monkeypatch.setattr(host_commands, "on_all", original)
    site.silent = {}
    site.calls.clear()
    assert rotate()["new"] is False
    assert site.calls == ["switch late: compute-2"], "jobs are not disturbed a second time"
    assert digest_of(munge_keys.SECRET) == name == site.keys["compute-2"]
    assert rotation.state()["secrets"][0]["state"] == "complete"


@pytest.mark.parametrize("present", [True, False], ids=["Slurm has given it up", "it is gone"])
def test_a_host_that_is_not_needed_any_more_does_not_stop_later_rotations(site: Site, present: bool) -> None:
    rotation.Switch(digest(OLD), {"compute-2": hosts.HostLogin("opc", "compute-2")}).save(rotation.MISSING)
    site.silent, site.states["compute-2"] = {"compute-2": "timed out"}, "down*"
    config = CONFIG if present else HostLogins({"compute-1": "opc"})
    done = rotation.rotate_munge(config, lambda _text: None)
    away = ["compute-2"] if present else []
    assert done == {"new": False, "hosts": 0, "away": away, "unconfirmed": []}
    assert rotation.state()["secrets"][0]["state"] == "complete"


def test_hosts_that_a_switch_has_missed_before_it_was_killed_and_not_afterwards(site: Site) -> None:
    rotation.Switch(munge_keys.prepare(), {"compute-1": hosts.HostLogin("opc", "compute-1")}).save(rotation.BEGUN)
    rotation.Switch("0" * 64, {"compute-1": hosts.HostLogin("opc", "compute-1")}).save(rotation.MISSING)
    rotation.switch(CONFIG)
    assert rotation.state()["secrets"][0]["state"] == "complete"
    del site


def test_the_key_goes_to_the_volume_from_which_the_next_controller_reads_it(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[bytes] = []
    monkeypatch.setattr("os.path.ismount", lambda place: place == "/var/lib/gpucluster-state")
    monkeypatch.setattr(StateVolume, "save", lambda *_: saved.append(munge_keys.SECRET.read_bytes()))
    (tmp_path / "key").touch()
    rotation.Switch(munge_keys.prepare(), {}).save(rotation.BEGUN)
    rotation.switch(HostLogins({}, tmp_path / "key"))
    assert saved == [munge_keys.SECRET.read_bytes()]
    assert saved != [OLD]
    del site


def test_two_operators_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    del site
    monkeypatch.setattr(Config, "load", lambda _file: pytest.fail("the second one began"))
    text = json.dumps({"operation": "rotate", "arguments": {"what": ["munge"]}})
    with rotation._exclusive(), pytest.raises(Refused, match="another rotation runs"):
        rotation.request(text, lambda _text: None)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"operation": "rotate", "arguments": {"what": ["x"]}}'])
def test_what_is_no_request_is_refused(site: Site, text: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    del site
    with pytest.raises(AgentError):
        rotation.request(text, lambda _text: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert rotation.main(["request"]) == 2
    assert "message" in json.loads(capsys.readouterr().out)["error"]
