"""The volume with the controller's state, as a run handles it: attached before the hosts are configured, saved after.

The program for it is sent with the command. A new controller has none yet, and its state must be there before Ansible
looks at it: a role that finds no key and no CA would make new ones.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpucluster import process
from gpucluster.artifacts import agent_archive
from gpucluster.errors import GpuClusterError, ToolError
from gpucluster.events import Sink, info, warn
from gpucluster.node_agent import bounded
from gpucluster.node_agent.interpreter import PYTHON_IN_SHELL
from gpucluster.node_agent.state_volume.layout import LOST_JOBS
from gpucluster.oci.names import STATE_DEVICE
from gpucluster.ssh import Host, SshClient

_KEEP_AGENT = 'file=$(mktemp) && trap "rm -f $file" EXIT && cat >"$file"'
_RUN_AGENT_WITH = f'sudo -n {PYTHON_IN_SHELL} -I "$file"'
_RUN_AGENT = f"{_KEEP_AGENT} && {_RUN_AGENT_WITH}"
# For ssh itself, beside what the program gets.
_ANSWER_SECONDS = 5.0
# A database of many gigabytes is copied once.
_SECONDS = 6 * 3600.0
_KEY_FILES = "/etc/ssh/ssh_host_*_key.pub"


@dataclass(frozen=True)
class AttachedState:
    """What attaching the volume has done.

    Args:
        formatted: it was blank.
        moved: the directories that were moved to it.
        restored: the files that the host has from it.
        new_host: another host had it before, or none.
        lost_jobs: the numbers of jobs that Slurm had not saved when the host before it vanished.
    """

    formatted: bool
    moved: tuple[str, ...]
    restored: tuple[str, ...]
    new_host: bool
    lost_jobs: tuple[str, ...] = ()


class ControllerState:
    """The volume on the controller of one cluster.

    Args:
        ssh_client: makes the client that reaches the controller.
    """

    def __init__(self, cluster: str, ssh_client: Callable[[], SshClient], on_event: Sink) -> None:
        self._cluster = cluster
        self._ssh_client = ssh_client
        self._on_event = on_event

    def attach(
        self, controller: Host, *, address: str = "", networks: Sequence[str] = (), take_over: bool = False
    ) -> AttachedState:
        """Mount the volume, format a blank one, and move state that is not on it yet. May be killed and run again.

        Args:
            address: the address that moves with the service; empty without a standby.
            networks: into which the controller speaks from that address.
            take_over: it was the standby until now: start the services as well.

        Raises:
            ToolError: it is not attached, is another cluster's, holds something else, or is too small; or the
                controller can't be reached.
        """
        words = ["take-over", "--name", controller.name] if take_over else ["attach"]
        words += ["--device", STATE_DEVICE, "--cluster", self._cluster, "--user", controller.user]
        words += ["--address", address] if address else []
        words += [word for network in networks if address for word in ("--network", network)]
        answer = self._run(controller, words)
        attached = AttachedState(
            bool(answer.get("formatted")),
            tuple(map(str, answer.get("moved") or ())),
            tuple(map(str, answer.get("restored") or ())),
            bool(answer.get("new_host")),
            tuple(map(str, answer.get("lost_jobs") or ())),
        )
        # A run that was killed may have changed the key already, so that nothing changes it now.
        if answer.get("host_keys") or self._ssh_client().has_alternatives(controller.instance_id):
            self._learn_host_key(controller)
        if attached.moved:
            text = f"state was moved to its volume: {', '.join(attached.moved)}. What was there before has the name "
            info(self._on_event, "controller", f"{text}*.before-state-volume beside it")
        elif attached.new_host and not attached.formatted:
            info(self._on_event, "controller", "it has the state of the controller before it, and its ssh host keys")
        if attached.lost_jobs:
            text = (
                "submitted in the last seconds before the host vanished, and not saved by Slurm. Tell their users to "
            )
            text += f"submit them again; the scripts are on the controller in {LOST_JOBS}"
            warn(self._on_event, "controller", f"jobs are lost: {', '.join(attached.lost_jobs)}: {text}")
        return attached

    def save(self, controller: Host) -> None:
        """Copy keys that the run may have made to the volume.

        Raises:
            ToolError: it is not mounted, or the controller can't be reached.
        """
        self._run(controller, ["save", "--user", controller.user])

    def release(self, controller: Host, seconds: float) -> bool:
        """End the services of a host that another one follows, as far as it answers. Returns whether it did.

        Args:
            seconds: after which it is not waited for: it is stopped in the cloud in any case.
        """
        command = f"timeout {seconds:.0f} {_RUN_AGENT_WITH} state-volume release"
        argv = self._ssh_client().argv(controller.name, [f"{_KEEP_AGENT} && {command}"])
        try:
            result = process.run(argv, input=agent_archive.of_node(), check=False, timeout=seconds + _ANSWER_SECONDS)
        except GpuClusterError:
            return False
        return result.returncode == 0

    def _learn_host_key(self, controller: Host) -> None:
        """The host has another host key now. The connection over which it is read was verified with the earlier one."""
        client = self._ssh_client()
        result = process.run(client.argv(controller.name, [f"cat {_KEY_FILES}"]), check=False, timeout=60.0)
        keys = [" ".join(line.split()[:2]) for line in result.stdout.splitlines()]
        before = client.host_keys().get(controller.instance_id, "")
        same_kind = [key for key in keys if key.split()[:1] == before.split()[:1]]
        if result.returncode != 0 or not same_kind:
            raise ToolError(
                f"the ssh host key of {controller.name} can't be read: {result.stderr.strip() or 'it has none'}",
                hint="Run: gpucluster apply --accept-host-keys",
            )
        client.learn(controller.instance_id, same_kind[0])

    def _run(self, controller: Host, words: list[str]) -> dict[str, Any]:
        command = f"{_RUN_AGENT} state-volume {shlex.join(words)}"
        argv = self._ssh_client().argv(controller.name, [command])
        result = process.run(argv, input=agent_archive.of_node(), check=False, timeout=_SECONDS)
        if result.returncode != 0:
            what, _, hint = result.stderr.strip().partition("\n")
            raise ToolError(f"the state of {controller.name}: {what or 'no reason was given'}", hint=hint)
        try:
            answer = bounded.loads(result.stdout)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ToolError(f"{controller.name} gave no answer about its state: {json.dumps(result.stdout[:200])}")
        return answer
