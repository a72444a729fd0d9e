"""Hosts are asked over ssh, at the same time, and each that gives no answer is named with the reason.

`ssh` is a double that runs the command on this machine; the programs that it runs are the real ones. It does not prove
that a connection that is lost ends them: tests/controller/facts/test_main.py does.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import EnvironmentFault
from gpucluster.events import Event
from gpucluster.handover import Collection
from gpucluster.operations import host_facts
from gpucluster.operations.host_facts import FactsCollector
from gpucluster.verdict.measurements import UNREACHABLE
from tests.controller.jobs.share_harness import share
from tests.doubles.commands import Commands

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the programs are root's")
HOSTS = ("c", "n-1", "n-2")


class Ssh:
    """A double of the client: a command line of the double of ssh."""

    @staticmethod
    def argv(host: str, command: list[str]) -> list[str]:
        return ["ssh", host, *command]


@pytest.fixture
def place() -> Iterator[Path]:
    with share("1m") as mounted:
        yield mounted


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands(tmp_path, monkeypatch)
    monkeypatch.setattr(host_facts, "_PAUSES", (0.0, 0.0, 0.0))
    made.add("sudo", f'shift 2; exec {shlex.quote(sys.executable)} "$@"')
    _ssh(made)
    return made


def _ssh(commands: Commands, **instead: str) -> None:
    """A double of ssh: on a host of `instead`, this script runs in place of the command."""
    cases = "".join(f"{host.replace('_', '-')}) {script} ;; " for host, script in instead.items())
    # What it notes of its arguments is only the host: the rest is the program.
    file = commands.folder / "ssh"
    notes = f'echo "$1" >>{commands.folder}/ssh.calls'
    file.write_text(f'#!/bin/sh\n{notes}\ncase $1 in {cases} *) exec sh -c "$2";; esac\n')
    file.chmod(0o755)


def _collect(place: Path, events: list[Event] | None = None, **more: Any) -> dict[str, dict[str, Any]]:
    token = {"path": str(place), "file": str(place / ".gpucluster-verify" / "word"), "token": "word"}
    hosts: dict[str, Any] = {host: {"users": ["root"], "share": token} for host in HOSTS}
    cluster = {"token": "word", "host": hosts["c"], "share": str(place), "seconds": 60}
    known: dict[str, Any] = {"monitoring": "", "host_seconds": 60.0, "cluster_seconds": 60.0, **more}
    asked = Collection(controller="c", cluster=cluster, hosts=hosts, **known)
    client: Any = Ssh()
    return FactsCollector(lambda: client, (events if events is not None else []).append).collect(asked)


def test_every_host_sees_the_token_and_nothing_is_left(place: Path, commands: Commands) -> None:
    events: list[Event] = []
    facts = _collect(place, events)
    assert {host: of_host["home_token_seen"] for host, of_host in facts.items()} == dict.fromkeys(HOSTS, True)
    assert list(facts) == list(HOSTS)
    assert list(place.iterdir()) == []
    assert sorted(commands.calls("ssh")) == list(HOSTS), "one command for each"
    assert [(event.name, event.status) for event in events] == [("Collect facts of the host", "ok")] * 3


def test_a_host_that_can_not_be_reached_is_named_and_asked_again(place: Path, commands: Commands) -> None:
    refused = "ssh: connect to host n-1 port 22: Connection refused"
    _ssh(commands, n_1=f"echo '{refused}' >&2; exit 255")
    events: list[Event] = []
    facts = _collect(place, events)
    assert facts["n-1"] == {UNREACHABLE: refused}
    assert facts["n-2"]["home_token_seen"] is True
    assert commands.calls("ssh").count("n-1") == 3
    assert {event.data["host"]: event.status for event in events} == {"c": "ok", "n-1": "unreachable", "n-2": "ok"}


def test_a_connection_that_is_refused_for_a_moment_is_made_again(place: Path, commands: Commands) -> None:
    once = f'if mkdir {commands.folder}/once-$1 2>/dev/null; then exit 255; else exec sh -c "$2"; fi'
    _ssh(commands, c=once, n_1=once)
    facts = _collect(place)
    assert [host for host in HOSTS if UNREACHABLE in facts[host]] == []
    assert sorted(commands.calls("ssh")) == ["c", "c", "n-1", "n-1", "n-2"]


def test_another_host_key_is_not_tried_again(place: Path, commands: Commands) -> None:
    _ssh(commands, n_1="echo 'Host key verification failed.' >&2; exit 255")
    assert _collect(place)["n-1"] == {UNREACHABLE: "Host key verification failed."}
    assert commands.calls("ssh").count("n-1") == 1


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("cat >/dev/null; echo '[1]'", "its answer can't be read"),
        ("cat >/dev/null; echo '{'", "its answer can't be read"),
        ("cat >/dev/null; echo 'sudo: a password is required' >&2; exit 1", "sudo: a password is required"),
        ("exec sleep 600", "it gave no answer within 3 s"),
    ],
)
def test_a_host_without_an_answer_does_not_hide_the_others(
    place: Path, commands: Commands, script: str, why: str
) -> None:
    _ssh(commands, n_1=script)
    facts = _collect(place, host_seconds=3.0 if "sleep" in script else 60.0)
    assert facts["n-1"] == {UNREACHABLE: why}
    assert facts["c"]["home_token_seen"] is True


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'No route to host' >&2; exit 255", "No route to host"),
        ("read -r line; echo '{\"result\": {}}'; cat >/dev/null", "its answer can't be read"),
        (
            "mkdir PLACE/.gpucluster-verify; printf word >PLACE/.gpucluster-verify/word; read -r line; "
            'echo \'{"progress": "token"}\'; read -r line; echo no; exit 1',
            "its answer can't be read",
        ),
        ("exec sleep 600", "it gave no answer within 1 s"),
    ],
)
def test_without_the_controller_the_others_are_asked_and_nothing_is_known_of_the_share(
    place: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    monkeypatch.setattr(host_facts, "_END_S", 0.1)
    if "sleep" in script:
        monkeypatch.setattr(host_facts, "_TOKEN_S", 1.0)
    _ssh(commands, c=script.replace("PLACE", str(place)))
    facts = _collect(place)
    assert facts["c"] == {UNREACHABLE: why}
    assert facts["n-1"]["user_ids"] == {"root": "0:0"}
    if "progress" not in script:
        assert "home_token_seen" not in facts["n-1"]


def test_what_prometheus_reports_is_a_fact_of_the_cluster(place: Path, commands: Commands) -> None:
    _ssh(commands, n_1='cat >/dev/null; echo \'{"monitoring": {"prometheus": true}}\'')
    assert _collect(place, monitoring="n-1")["c"]["monitoring"] == {"prometheus": True}
    assert _collect(place, monitoring="n-2")["c"]["monitoring"] == {"error": "no answer of n-2"}
    assert "monitoring" not in _collect(place)["c"]


def test_an_interruption_leaves_nothing(place: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        assert (place / ".gpucluster-verify" / "word").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(host_facts, "ask_hosts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _collect(place)
    assert list(place.iterdir()) == []


def test_hosts_are_asked_at_the_same_time(place: Path, commands: Commands) -> None:
    """Each waits for the other: a pipe is opened by both ends, or by none."""
    first, second = commands.folder / "first", commands.folder / "second"
    os.mkfifo(first)
    os.mkfifo(second)
    _ssh(
        commands,
        n_1=f'echo >{first}; read -r line <{second}; exec sh -c "$2"',
        n_2=f'read -r line <{first}; echo >{second}; exec sh -c "$2"',
    )
    assert [host for host, of_host in _collect(place).items() if UNREACHABLE in of_host] == []


def test_a_machine_without_ssh_says_so(place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="ssh was not found"):
        _collect(place)
