"""What the operator's machine asks of both hosts that can be the controller; ssh is a double."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster import process
from gpucluster.errors import ToolError
from gpucluster.operations.standby import MirrorResult, StandbyMirror
from gpucluster.paths import ClusterPaths, write_private
from gpucluster.process import Completed
from gpucluster.ssh import Host, SshClient

CONTROLLER = Host("demo-controller", "10.0.0.2", "debian", "ocid1.instance.one")
STANDBY = Host("demo-standby", "1.1.1.2", "debian", "ocid1.instance.two")
KEY = "ssh-ed25519 AAAAstandby"


class Remote:
    """Both hosts: status, standard output and standard error by a word of the command."""

    def __init__(self, **answers: tuple[int, str, str]) -> None:
        self.answers = {"key": (0, json.dumps({"key": "ssh-ed25519 AAAAmirror"}), ""), **answers}
        self.commands: list[tuple[str, str]] = []

    def __call__(self, argv: Sequence[Any], **_options: Any) -> Completed:
        command = str(argv[-1])
        self.commands.append((str(argv[-3]), command))
        for word, answer in self.answers.items():
            if f"standby {word}" in command:
                return Completed((), *answer)
        return Completed((), 0, "{}", "")


@pytest.fixture
def mirror(tmp_path: Path) -> StandbyMirror:
    paths = ClusterPaths(tmp_path)
    paths.create()
    client = SshClient(paths, None)
    client.config.parent.mkdir(parents=True, exist_ok=True)
    write_private(client.config.parent / "known_hosts", f"{STANDBY.instance_id} {KEY}\n")
    return StandbyMirror(lambda: client)


SENT = (0, json.dumps({"differing": 2, "paths": ["/etc/a", "/etc/b"]}), "")


def test_the_standby_lets_in_one_program_and_gets_what_differs(
    mirror: StandbyMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Remote(send=SENT)
    monkeypatch.setattr(process, "run", remote)
    keys = ("ssh-ed25519 AAAAone alice@laptop", "ssh-ed25519 AAAAtwo")
    changed = mirror.update(CONTROLLER, STANDBY, "10.0.0.3", operator_keys=keys)
    assert changed == MirrorResult(2, ("/etc/a", "/etc/b"))
    hosts, commands = zip(*remote.commands, strict=True)
    assert hosts == ("demo-controller", "demo-standby", "demo-standby", "demo-controller")
    assert 'restrict,command="sudo -n ' in commands[1]
    assert 'standby receive $SSH_ORIGINAL_COMMAND" ssh-ed25519 AAAAmirror' in commands[1]
    given = "--operator-key 'ssh-ed25519 AAAAone alice@laptop' --operator-key 'ssh-ed25519 AAAAtwo'"
    assert commands[2].endswith(f"standby prepare --name demo-standby --user debian {given}")
    assert commands[3].endswith(f"standby send --to debian@10.0.0.3 --host-key '{KEY}'")


def test_a_standby_that_goes_on_by_itself_has_its_settings_and_asks_one_thing_of_others(
    mirror: StandbyMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Remote(send=SENT)
    monkeypatch.setattr(process, "run", remote)
    mirror.update(CONTROLLER, STANDBY, "10.0.0.3", automatic=True)
    assert remote.commands[-1][1].endswith("--automatic")
    remote.commands.clear()
    mirror.watch(STANDBY, '{"version": 1}')
    mirror.unwatch(STANDBY)
    assert mirror.key_of(STANDBY) == "ssh-ed25519 AAAAmirror"
    node = Host("compute-1", "10.0.0.7", "debian", "ocid1.instance.node")
    mirror.let_ask(node, "ssh-ed25519 AAAAmirror", ("10.0.0.9", "10.0.0.2"))
    hosts, commands = zip(*remote.commands, strict=True)
    assert hosts == ("demo-standby", "demo-standby", "demo-standby", "compute-1")
    assert commands[0].endswith("""standby watch --settings '{"version": 1}'""")
    assert commands[1].endswith("standby unwatch")
    program = "/usr/local/bin/gpucluster-agent standby witness 10.0.0.9 10.0.0.2"
    assert f'restrict,command="{program}" ssh-ed25519 AAAAmirror' in commands[3]


def test_a_comparison_changes_nothing(mirror: StandbyMirror, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote(send=SENT)
    monkeypatch.setattr(process, "run", remote)
    assert mirror.compare(CONTROLLER, STANDBY, "10.0.0.3").differing == 2
    ((host, command),) = remote.commands
    assert host == "demo-controller"
    assert command.endswith("--only-compare")


@pytest.mark.parametrize(
    ("answer", "text", "hint"),
    [
        ((2, "", "this host is in service\nRun: gpucluster apply\n"), "this host is in service", "gpucluster apply"),
        ((1, "", ""), "no reason was given", ""),
        ((0, "nonsense", ""), "the answer can't be read", "gpucluster apply"),
    ],
)
def test_what_a_host_refuses_is_an_error_with_its_reason(
    mirror: StandbyMirror, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str, str], text: str, hint: str
) -> None:
    monkeypatch.setattr(process, "run", Remote(send=answer))
    with pytest.raises(ToolError) as raised:
        mirror.update(CONTROLLER, STANDBY, "10.0.0.3")
    assert text in raised.value.what
    assert hint in raised.value.hint


def test_a_host_key_that_is_not_known_is_not_trusted(mirror: StandbyMirror, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote()
    monkeypatch.setattr(process, "run", remote)
    with pytest.raises(ToolError, match="host key of demo-other is not known"):
        mirror.compare(CONTROLLER, Host("demo-other", "1.1.1.3", "debian", "ocid1.instance.three"), "10.0.0.4")
    assert remote.commands == []
