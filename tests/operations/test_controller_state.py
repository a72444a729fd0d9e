"""What a run asks of the volume with the controller's state, and what it does with the answer; ssh is a double."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster import process
from gpucluster.errors import ToolError
from gpucluster.events import Event
from gpucluster.operations.controller_state import ControllerState
from gpucluster.paths import ClusterPaths, write_private
from gpucluster.process import Completed
from gpucluster.ssh import Host, SshClient

CONTROLLER = Host("demo-controller", "10.0.0.2", "debian", "ocid1.instance.new")
TEMPORARY, KEPT = "ssh-ed25519 AAAAtemporary", "ssh-ed25519 AAAAkept"


class Remote:
    """A controller that gives these answers: status, standard output, standard error, by a word of the command."""

    def __init__(self, **answers: tuple[int, str, str]) -> None:
        self.answers = answers
        self.commands: list[str] = []

    def __call__(self, argv: Sequence[Any], **_options: Any) -> Completed:
        command = str(argv[-1])
        self.commands.append(command)
        for word, (status, out, err) in self.answers.items():
            if word in command:
                return Completed((), status, out, err)
        return Completed((), 0, "", "")


@pytest.fixture
def client(tmp_path: Path) -> SshClient:
    paths = ClusterPaths(tmp_path)
    paths.create()
    client = SshClient(paths, None)
    client.config.parent.mkdir(parents=True, exist_ok=True)
    write_private(client.config.parent / "known_hosts", f"{CONTROLLER.instance_id} {TEMPORARY}\n")
    return client


def state(client: SshClient, events: list[Event]) -> ControllerState:
    return ControllerState("demo", lambda: client, events.append)


def answer(**values: Any) -> tuple[int, str, str]:
    return 0, json.dumps({"formatted": False, "moved": [], "restored": [], "new_host": False, **values}), ""


def test_a_new_host_with_the_old_keys_is_expected_with_them(client: SshClient, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = f"ecdsa-sha2-nistp256 AAAAother root@old\n{KEPT} root@old\n"
    remote = Remote(attach=answer(new_host=True, host_keys=True), ssh_host=(0, keys, ""))
    monkeypatch.setattr(process, "run", remote)
    events: list[Event] = []
    assert state(client, events).attach(CONTROLLER).new_host
    assert client.host_keys() == {CONTROLLER.instance_id: KEPT}
    assert "its ssh host keys" in events[-1].message
    assert "--cluster demo --user debian" in remote.commands[0]
    assert "--device /dev/oracleoci/oraclevdb" in remote.commands[0]


def test_a_key_that_a_killed_run_has_changed_is_learned(client: SshClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.write([CONTROLLER], alternatives={CONTROLLER.instance_id: [KEPT]})
    monkeypatch.setattr(process, "run", Remote(attach=answer(), ssh_host=(0, f"{KEPT} root@old\n", "")))
    assert not state(client, []).attach(CONTROLLER).new_host
    assert client.host_keys() == {CONTROLLER.instance_id: KEPT}
    assert not client.has_alternatives(CONTROLLER.instance_id)


def test_the_key_of_the_one_before_is_accepted_until_a_key_is_recorded(client: SshClient) -> None:
    """Another machine has recorded the key that this one knows."""
    of_controller = {CONTROLLER.instance_id: TEMPORARY}
    client.write([CONTROLLER], of_controller, alternatives={CONTROLLER.instance_id: [KEPT]})
    client.write([CONTROLLER])
    assert client.has_alternatives(CONTROLLER.instance_id), "it is not said that there are none any more"
    client.write([CONTROLLER], of_controller, alternatives={})
    assert not client.has_alternatives(CONTROLLER.instance_id)
    assert client.host_keys() == of_controller


def test_a_host_without_a_key_of_the_known_kind_is_not_trusted(
    client: SshClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Remote(attach=answer(new_host=True, host_keys=True), ssh_host=(0, "ssh-rsa AAAA root\n", ""))
    monkeypatch.setattr(process, "run", remote)
    with pytest.raises(ToolError, match="host key of demo-controller can't be read") as raised:
        state(client, []).attach(CONTROLLER)
    assert "--accept-host-keys" in raised.value.hint
    assert client.host_keys() == {CONTROLLER.instance_id: TEMPORARY}


def test_jobs_that_slurm_had_not_saved_are_named(client: SshClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "run", Remote(attach=answer(new_host=True, lost_jobs=["70", "71"])))
    events: list[Event] = []
    assert state(client, events).attach(CONTROLLER).lost_jobs == ("70", "71")
    assert (events[-1].status, "jobs are lost: 70, 71" in events[-1].message) == ("warning", True)
    assert "/var/lib/gpucluster-state/lost-jobs" in events[-1].message


def test_moved_state_is_named(client: SshClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "run", Remote(attach=answer(formatted=True, moved=["/var/lib/mysql"], new_host=True)))
    events: list[Event] = []
    assert state(client, events).attach(CONTROLLER).moved == ("/var/lib/mysql",)
    assert "/var/lib/mysql" in events[0].message
    assert client.host_keys() == {CONTROLLER.instance_id: TEMPORARY}


@pytest.mark.parametrize(
    ("said", "what", "hint"),
    [
        ((2, "", "it is another's\nDetach it\n"), "it is another's", "Detach it"),
        ((1, "", ""), "no reason was given", ""),
        ((0, "not json", ""), "gave no answer", ""),
        ((0, "[]", ""), "gave no answer", ""),
    ],
)
def test_what_goes_wrong_is_reported_with_the_next_step(
    client: SshClient, monkeypatch: pytest.MonkeyPatch, said: tuple[int, str, str], what: str, hint: str
) -> None:
    monkeypatch.setattr(process, "run", Remote(attach=said))
    with pytest.raises(ToolError, match=what) as raised:
        state(client, []).attach(CONTROLLER)
    assert raised.value.hint == hint
