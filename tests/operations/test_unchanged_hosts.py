"""Whether all hosts are as the last apply left them, without Ansible.

`ssh` and `sudo` are doubles that run the command on this machine, with the real program that is sent along; its record
is that of a host which was never configured, or made here. tests/e2e/test_main_path.py has real hosts.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from gpucluster.artifacts import agent_archive
from gpucluster.events import Event
from gpucluster.operations import host_programs
from gpucluster.operations.unchanged_hosts import UnchangedHosts
from tests.ansible.loading import load
from tests.doubles.commands import Commands
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the program is root's")
updates = load("module_utils/gpucluster_updates.py")


class Ssh:
    """A double of the client."""

    @staticmethod
    def argv(host: str, command: list[str]) -> list[str]:
        return ["ssh", host, *command]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands(tmp_path, monkeypatch)
    monkeypatch.setattr(host_programs, "PAUSES", (0.0, 0.0, 0.0))
    made.add("sudo", f'shift 2; exec {shlex.quote(sys.executable)} "$@"')
    return made


def _ssh(commands: Commands, **scripts: str) -> None:
    """A double of ssh: on a host of `scripts`, this script runs in place of the command."""
    cases = "".join(f"{host}) {script} ;; " for host, script in scripts.items())
    file = commands.folder / "ssh"
    file.write_text(f'#!/bin/sh\ncase $1 in {cases} *) exec sh -c "$2";; esac\n')
    file.chmod(0o755)


def _hosts(events: list[Event] | None = None) -> UnchangedHosts:
    client: Any = Ssh()
    return UnchangedHosts(lambda: client, (events if events is not None else []).append)


def _answers(answer: object) -> str:
    """A script of a host that answers so."""
    return f"cat >/dev/null; echo {shlex.quote(json.dumps(answer))}"


def test_the_program_that_is_sent_along_is_whole(commands: Commands) -> None:
    """This machine has no record of an apply, and no library of Ansible is needed to see it."""
    _ssh(commands)
    compared = _hosts().compare(["a", "b"], "1")
    assert compared.reasons == dict.fromkeys("ab", "no complete run is known")
    assert not compared.unchanged


def test_a_host_that_does_not_answer_is_not_unchanged(commands: Commands) -> None:
    same = {"reason": "", "differing": []}
    events: list[Event] = []
    _ssh(commands, a=_answers(same), b="echo 'No route to host' >&2; exit 255", c=_answers({"differing": []}))
    compared = _hosts(events).compare(["a", "b", "c"], "1")
    assert compared.reasons == {"a": "", "b": "No route to host", "c": "its answer can't be read"}
    assert not compared.unchanged
    assert [(each.data["host"], each.status) for each in events] == [("a", "ok"), ("b", "unreachable"), ("c", "ok")]


def test_what_differs_is_known_by_host(commands: Commands) -> None:
    changed = {"reason": "the host has changed", "differing": ["file /etc/a"]}
    _ssh(commands, a=_answers({"reason": "", "differing": []}), b=_answers(changed))
    assert _hosts().compare(["a"], "1").unchanged
    compared = _hosts().compare(["a", "b"], "1")
    assert compared.differing == {"a": [], "b": ["file /etc/a"]}


def test_users_and_their_warnings_come_from_what_the_controller_has_printed(commands: Commands) -> None:
    printed = json.dumps({"changed": True, "result": {"users": [{"name": "alice"}], "warnings": ["w"]}})
    kept = json.dumps({"changed": False, "kept": ["account old has users"]})
    outputs = {"users": printed, "nodes": "", "accounts of cluster.yml": kept}
    _ssh(commands, c=_answers({"reason": "", "changed": 1, "outputs": outputs}))
    updated = _hosts().update("c", "1")
    assert (updated.reason, updated.changed) == ("", 1)
    assert (updated.users, updated.warnings) == ([{"name": "alice"}], ("w", "account old has users"))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (_answers({"reason": "nodes in Slurm: status 1"}), "nodes in Slurm: status 1"),
        (_answers({"reason": "", "outputs": {"users": "no JSON"}}), "its answer can't be read"),
        ("echo lost >&2; exit 255", "lost"),
        ("cat >/dev/null; echo '{'", "its answer can't be read"),
    ],
)
def test_an_update_that_failed_is_no_update(commands: Commands, script: str, reason: str) -> None:
    _ssh(commands, c=script)
    assert _hosts().update("c", "1").reason == reason


def test_a_cluster_without_users_is_updated_as_well(commands: Commands) -> None:
    _ssh(commands, c=_answers({"reason": "", "changed": 0, "outputs": {}}))
    updated = _hosts().update("c", "1")
    assert (updated.reason, list(updated.users), list(updated.warnings)) == ("", [], [])


def test_the_program_is_small_enough_to_be_sent_each_time() -> None:
    command, text = agent_archive.unchanged_program()
    assert len(text) < 60_000
    assert len(command) < 4096


def _update(*argv: str, **more: Any) -> dict[str, Any]:
    defaults = {"stdin": "", "environment": {}, "every_line": "", "later_lines": [], "seconds": 0}
    return {"name": "a command", "argv": list(argv), **defaults, **more}


@pytest.mark.parametrize(
    ("update", "fault"),
    [
        (_update("true"), ""),
        (_update("false"), "false: status 1"),
        (_update("echo", "a|b\nc|d", every_line="[|]"), ""),
        (_update("echo", "n1 idle\nn2 down*", every_line=" idle$"), "not as expected: n2 down*"),
        (_update("echo", "default|\ndefault|debian", later_lines=["default[|]", "[^|]+[|]debian$"]), ""),
        (_update("echo", "default|", later_lines=["[^|]+[|]debian$"]), "no line is like [^|]+[|]debian$"),
        (_update("sh", "-c", 'read -r line; test "$line" = x; echo $NAME', stdin="x\n", environment={"NAME": "y"},
                 every_line="^y$"), ""),
    ],
)  # fmt: skip
def test_a_command_is_judged_by_its_status_and_by_what_it_prints(update: dict[str, Any], fault: str) -> None:
    assert updates.run(update, later=True, patience=0.0).fault == fault


def test_a_program_that_is_gone_is_a_fault_and_not_a_crash() -> None:
    assert "no-such-program" in updates.run(_update("no-such-program"), later=True, patience=0.0).fault


def test_what_only_a_later_apply_expects_does_not_fail_the_first_one() -> None:
    update = _update("echo", "", later_lines=["default"])
    assert updates.run(update, later=False, patience=0.0).fault == ""
    assert updates.run(update, later=True, patience=0.0).fault


def test_a_command_is_repeated_until_it_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "PAUSE", 0.0)
    once = f"mkdir {tmp_path}/once 2>/dev/null && exit 1; echo done"
    outcome = updates.run(_update("sh", "-c", once), later=False, patience=PATIENCE_S)
    assert (outcome.fault, outcome.stdout) == ("", "done\n")
