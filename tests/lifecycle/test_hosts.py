"""Any machine knows which ssh host key is the right one: it is in Terraform's state. The other side is a real ssh
server, with the key of an attacker where a test sets it. `ssh` is the real one, with another port: 22 needs root.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncssh
import pytest

from gpucluster.cloud.console import fingerprint
from gpucluster.configuration.runner import Ansible
from gpucluster.errors import CloudError, ToolError
from gpucluster.events import Event, ignore
from gpucluster.lifecycle.hosts import HostConnections, HostSources
from gpucluster.lifecycle.locate import HostLocator
from gpucluster.operations.controller import ControllerConnection
from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from gpucluster.ssh import Host, SshClient, ensure_key
from gpucluster.workspace.saved_state import SavedState
from tests.spec.spec_texts import LOCAL
from tests.waiting import PATIENCE_S

OUTPUTS = json.loads((Path(__file__).parents[1] / "golden" / "local_demo" / "outputs.json").read_text())
CONTROLLER = OUTPUTS["cluster"]["controller"]["id"]
RIGHT, OTHER = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519")
OTHER_TYPE = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
#: Of the controller before this one.
INHERITED = asyncssh.generate_private_key("ssh-ed25519")


def _text(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key().decode().split()[:2])


class _Anybody(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:
        return False


@contextmanager
def _host(key: Any) -> Iterator[int]:
    """A host with this key (and certificate) that lets all in and prints `here` for each command. Yields its port."""
    loop, ready, ports = asyncio.new_event_loop(), threading.Event(), []

    def answer(process: Any) -> None:
        process.stdout.write('{"v1": {"errors": []}}\n' if "cloud-init" in process.command else "here\n")
        process.exit(0)

    async def serve() -> None:
        server = await asyncssh.listen(
            "127.0.0.1", 0, server_factory=_Anybody, server_host_keys=[key], process_factory=answer
        )
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()

    def work() -> None:
        loop.run_until_complete(serve())
        loop.run_forever()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


class Machine:
    """A machine with cluster.yml, the operator's key and the state; nothing else."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths = ClusterPaths(folder / ".gpucluster")
        self.paths.create()
        self.outputs: dict[str, Any] = copy.deepcopy(OUTPUTS)
        self.outputs["cluster"]["controller"] |= {"public_ip": "127.0.0.1"}
        self.outputs["cluster"]["pools"] = {}
        key = ensure_key(folder / "operator", "operator")
        self._bin = folder / "bin"
        self._bin.mkdir()
        self._monkeypatch = monkeypatch
        #: What the cloud reports of consoles: a double of its client.
        self.consoles: Any = SimpleNamespace(fingerprints=lambda _ocid: {fingerprint(_text(RIGHT))})
        unused: Any = SimpleNamespace(start_if_used=lambda: None, members=None)
        self.sources = HostSources(
            spec=loads(LOCAL, "cluster.yml"),
            paths=self.paths,
            cloud=unused,
            saved=SavedState(self.paths),
            outputs=lambda: self.outputs,
            pool_members=lambda: unused,
            bastion=lambda: pytest.fail("no bastion"),
            ssh_client=lambda: SshClient(self.paths, key),
            consoles=lambda: self.consoles,
        )
        self.connection = ControllerConnection(
            spec=self.sources.spec,
            paths=self.paths,
            locate=HostLocator(self.sources).locate,
            bastion=self.sources.bastion,
            on_event=ignore,
        )

    def record(self, key: asyncssh.SSHKey) -> None:
        self.outputs["identity"] = {"contract_version": 1, "host_keys": {CONTROLLER: _text(key)}}

    def network(self, port: int) -> None:
        """Who answers at the controller's address from now on."""
        (self._bin / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -p {port} "$@"\n')
        (self._bin / "ssh").chmod(0o755)
        self._monkeypatch.setenv("PATH", f"{self._bin}:{os.environ['PATH']}")

    def ask(self) -> str:
        try:
            return self.connection.ask("hostname").stdout
        finally:
            SshClient(self.paths, None).close()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_new_machine_talks_to_the_controller_that_the_state_knows(machine: Machine) -> None:
    machine.record(RIGHT)
    with _host(RIGHT) as port:
        machine.network(port)
        assert "here" in machine.ask()
        assert machine.connection.has_new_key() is False


@pytest.mark.parametrize("key", [OTHER, OTHER_TYPE], ids=["another key", "a key of another type"])
def test_a_new_machine_refuses_another_host_at_the_controllers_address(machine: Machine, key: asyncssh.SSHKey) -> None:
    machine.record(RIGHT)
    with _host(key) as port:
        machine.network(port)
        for attempt in (machine.ask, machine.connection.has_new_key):
            with pytest.raises(ToolError, match="answers with another ssh host key") as caught:
                attempt()
            assert "gpucluster apply --accept-host-keys" in caught.value.hint


@pytest.mark.parametrize("key", [OTHER, OTHER_TYPE], ids=["another key", "a key of another type"])
@pytest.mark.slow
def test_a_run_refuses_it_at_once_and_so_does_ansible(machine: Machine, key: asyncssh.SSHKey) -> None:
    machine.record(RIGHT)
    with _host(key) as port:
        machine.network(port)
        with pytest.raises(ToolError, match="demo-controller answers with another ssh host key"):
            HostConnections(machine.sources, ignore).reach(SimpleNamespace(phase=_phase))  # type: ignore[arg-type]
        environment = Ansible(machine.paths, SshClient(machine.paths, None).config, {}, ignore)._environment()
        ansible = str(Path(sys.executable).with_name("ansible"))
        done = subprocess.run(
            [ansible, "demo-controller", "-i", "demo-controller,", "-m", "ansible.builtin.raw", "-a", "hostname"],
            env={**os.environ, **environment, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Host key verification failed" in done.stdout
        assert done.returncode != 0


def test_the_first_contact_is_learned_and_no_other_key_is_taken_afterwards(machine: Machine) -> None:
    hosts = HostConnections(machine.sources, ignore)
    with _host(RIGHT) as port:
        machine.network(port)
        deployment = hosts.reach(SimpleNamespace(phase=_phase))  # type: ignore[arg-type]
        SshClient(machine.paths, None).close()
    assert hosts.host_keys(deployment) == {CONTROLLER: _text(RIGHT)}
    with _host(OTHER_TYPE) as port:
        machine.network(port)
        with pytest.raises(ToolError, match="answers with another ssh host key"):
            machine.ask()
        hosts.forget_keys()  # as `apply --accept-host-keys`
        assert "here" in machine.ask()


def test_a_key_that_another_machines_run_has_recorded_goes_before_the_one_that_this_machine_knows(
    machine: Machine,
) -> None:
    machine.record(OTHER)
    machine.connection.hosts()
    machine.record(RIGHT)  # the controller got another disk
    with _host(RIGHT) as port:
        machine.network(port)
        assert "here" in machine.ask()


@contextmanager
def _phase(_name: str) -> Iterator[None]:
    yield


def test_a_host_whose_key_the_ca_has_certified_is_known_by_its_ocid(machine: Machine, tmp_path: Path) -> None:
    """No key of this host is recorded, as for a node that another machine's run has just added."""
    authority = asyncssh.generate_private_key("ssh-ed25519")
    machine.outputs["identity"] = {"contract_version": 1, "certificates": {"ssh": _text(authority)}}
    right = authority.generate_host_certificate(RIGHT, "c", principals=["demo-controller", CONTROLLER])
    for other in (authority.generate_host_certificate(RIGHT, "n", principals=["compute-1", "ocid1.n"]), None):
        with _host((RIGHT, other) if other else RIGHT) as port:
            machine.network(port)
            with pytest.raises(ToolError, match="answers with another ssh host key"):
                machine.ask()
    with _host((RIGHT, right)) as port:
        machine.network(port)
        assert "here" in machine.ask()


def test_a_host_that_answers_for_the_first_time_has_the_key_that_its_console_shows(machine: Machine) -> None:
    with _host(OTHER) as port:
        machine.network(port)
        with pytest.raises(ToolError, match="demo-controller answers with another ssh host key"):
            HostConnections(machine.sources, ignore).reach(SimpleNamespace(phase=_phase))  # type: ignore[arg-type]
    # It was not learned.
    assert SshClient(machine.paths, None).host_keys() == {}
    events: list[Event] = []
    with _host(RIGHT) as port:
        machine.network(port)
        HostConnections(machine.sources, events.append).reach(SimpleNamespace(phase=_phase))  # type: ignore[arg-type]
        SshClient(machine.paths, None).close()
    assert not [event for event in events if "console" in event.message]


def test_a_console_that_shows_no_key_is_told(machine: Machine) -> None:
    def refused(_ocid: str) -> set[str]:
        raise CloudError("reading the console: not authorized")

    for answer, words in ((lambda _ocid: set(), "trusted"), (refused, "not authorized")):
        machine.consoles = SimpleNamespace(fingerprints=answer)
        events: list[Event] = []
        hosts = HostConnections(machine.sources, events.append)
        with _host(RIGHT) as port:
            machine.network(port)
            hosts.reach(SimpleNamespace(phase=_phase))  # type: ignore[arg-type]
            (told,) = [event.message for event in events if "console history" in event.message]
            assert "demo-controller" in told
            assert words in told
            # Known now: it is not asked again.
            hosts.reach(SimpleNamespace(phase=_phase))  # type: ignore[arg-type]
            assert len([event for event in events if "console history" in event.message]) == 1
        SshClient(machine.paths, None).forget_all()


def _with_state_volume(machine: Machine) -> None:
    """A controller was replaced: the state has the key of the one before it, and the run was killed."""
    text = LOCAL.replace("controller:\n", "controller:\n  state_volume_gb: 50\n")
    machine.sources = replace(machine.sources, spec=loads(text, "cluster.yml"))
    machine.outputs["identity"] = {"contract_version": 1, "host_keys": {"ocid1.instance..before": _text(INHERITED)}}


def _reached(machine: Machine, key: asyncssh.SSHKey) -> str:
    """The host key of the controller that a run knows, after it has reached one with this key."""
    hosts = HostConnections(machine.sources, ignore)
    with _host(key) as port:
        machine.network(port)
        try:
            deployment = hosts.reach(SimpleNamespace(phase=_phase))  # type: ignore[arg-type]
        finally:
            SshClient(machine.paths, None).close()
    return hosts.host_keys(deployment)[CONTROLLER]


@pytest.mark.parametrize("key", [INHERITED, RIGHT], ids=["it has the keys of the one before", "it has its own"])
def test_a_run_goes_on_with_a_controller_whose_key_a_killed_run_has_changed(
    machine: Machine, key: asyncssh.SSHKey
) -> None:
    _with_state_volume(machine)
    _reached(machine, RIGHT)
    # Another run cannot know which of the two keys it has, until the volume is attached.
    assert _reached(machine, key) == _text(RIGHT)
    client = SshClient(machine.paths, None)
    assert client.has_alternatives(CONTROLLER)
    with pytest.raises(ToolError, match="answers with another ssh host key"):
        _reached(machine, OTHER)
    client.learn(CONTROLLER, _text(key))
    assert not client.has_alternatives(CONTROLLER)
    machine.record(key)
    assert _reached(machine, key) == _text(key)
    assert not client.has_alternatives(CONTROLLER)


def test_another_machine_goes_on_with_a_controller_that_has_the_keys_of_the_one_before(machine: Machine) -> None:
    """Its console shows those that it made at its first boot."""
    _with_state_volume(machine)
    assert _reached(machine, INHERITED) == _text(INHERITED)


def test_no_other_host_may_have_them(machine: Machine) -> None:
    """Where no controller runs, ssh is configured for nodes alone."""
    _with_state_volume(machine)
    node = Host("compute-1", "127.0.0.1", "debian", "ocid1.instance..node")
    assert machine.sources.write([node]) == {}


def test_the_key_of_another_host_is_refused_without_a_volume_that_carries_it(machine: Machine) -> None:
    spec = machine.sources.spec
    _with_state_volume(machine)
    machine.sources = replace(machine.sources, spec=spec)
    with pytest.raises(ToolError, match="answers with another ssh host key"):
        _reached(machine, INHERITED)


def test_keys_that_were_made_again_on_purpose_are_accepted(machine: Machine) -> None:
    hosts = HostConnections(machine.sources, ignore)
    hosts.forget_keys()  # as `apply --accept-host-keys`; the console shows the keys of the first boot
    with _host(OTHER) as port:
        machine.network(port)
        deployment = hosts.reach(SimpleNamespace(phase=_phase))  # type: ignore[arg-type]
        SshClient(machine.paths, None).close()
    assert hosts.host_keys(deployment) == {CONTROLLER: _text(OTHER)}
