"""Whether all hosts are as the last complete apply left them; then no task of Ansible has work, and none is started.

What is in databases, which other commands change too, is brought up to date in any case: the controller repeats the
commands that its tasks have noted (ansible/library/gpucluster_update.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucluster.artifacts import agent_archive
from gpucluster.errors import ToolError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.operations.host_programs import ask_hosts, document
from gpucluster.ssh import SshClient
from gpucluster.verdict.measurements import UNREACHABLE

_TASK, _UPDATE = "Compare the host with the last apply", "Update users and accounts"
# Seconds: for a comparison, on a host that is busy with jobs; and for the commands of the controller.
_LOOK_SECONDS, _UPDATE_SECONDS = 60.0, 900.0
#: The names of the commands that bring the users, and the accounts and QOS of cluster.yml, to the desired state: roles
#: people and slurm. What they print is for the operator.
USERS, ACCOUNTS = "users", "accounts of cluster.yml"


@dataclass(frozen=True)
class Comparison:
    """What the hosts are since the last complete apply.

    Args:
        reasons: by host, why the tasks have to run; empty for one that is as that apply left it.
        differing: by host, some of what is not as it was.
    """

    reasons: Mapping[str, str]
    differing: Mapping[str, Sequence[str]]

    @property
    def unchanged(self) -> bool:
        """Whether no host has changed."""
        return not any(self.reasons.values())


@dataclass(frozen=True)
class Updated:
    """What the commands of the controller have led to.

    Args:
        reason: why all tasks have to run, which name what is wrong; empty if they need not.
        changed: how many of the commands have changed something.
        users: as the directory has them now (`gpucluster.controller.users`).
        warnings: about users, and accounts that have left cluster.yml and stay.
    """

    reason: str
    changed: int = 0
    users: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    warnings: Sequence[str] = field(default_factory=tuple)


class UnchangedHosts:
    """Asks the hosts of one cluster.

    Args:
        ssh_client: makes the client that reaches them.
    """

    def __init__(self, ssh_client: Callable[[], SshClient], on_event: Sink) -> None:
        self._ssh_client = ssh_client
        self._on_event = on_event

    def compare(self, hosts: Sequence[str], inputs: str) -> Comparison:
        """Compare the hosts with what the last complete apply left. It changes nothing.

        Args:
            inputs: what this run works from (`configuration.content.inputs`).

        Raises:
            EnvironmentFault: there is no ssh.
            KeyboardInterrupt: the user stopped it.
        """
        answers = self._ask(hosts, inputs, _LOOK_SECONDS, update=False)
        for name, answer in answers.items():
            self._announce(_TASK, name, answer)
        return Comparison(
            {name: _reason(answer) for name, answer in answers.items()},
            {name: [str(each) for each in answer.get("differing") or ()] for name, answer in answers.items()},
        )

    def update(self, controller: str, inputs: str) -> Updated:
        """Bring users and accounts up to date, where no host has changed.

        Raises:
            EnvironmentFault: there is no ssh.
            KeyboardInterrupt: the user stopped it. It can be run again.
        """
        answer = self._ask([controller], inputs, _UPDATE_SECONDS, update=True)[controller]
        reason, printed = _reason(answer), answer.get("outputs") or {}
        if not reason:
            try:
                users = document(str(printed.get(USERS, "{}"))).get("result") or {}
                accounts = document(str(printed.get(ACCOUNTS, "{}")))
            except ToolError as error:
                reason = error.what
        self._announce(_UPDATE, controller, {**answer, "reason": reason})
        if reason:
            return Updated(reason)
        warnings = (*(users.get("warnings") or ()), *(accounts.get("kept") or ()))
        return Updated("", int(answer.get("changed") or 0), users.get("users") or (), warnings)

    def _ask(self, hosts: Sequence[str], inputs: str, seconds: float, *, update: bool) -> dict[str, dict[str, Any]]:
        requests = {host: {"inputs": inputs, "update": update} for host in hosts}
        return ask_hosts(self._ssh_client(), agent_archive.unchanged_program(), requests, seconds)

    def _announce(self, task: str, host: str, answer: Mapping[str, Any]) -> None:
        status = "unreachable" if UNREACHABLE in answer else "changed" if answer.get("changed") else "ok"
        self._on_event(Event(EventKind.TASK, task, status, _reason(answer), data={"host": host}))


def _reason(answer: Mapping[str, Any]) -> str:
    """Why the tasks of a host have to run. What it does not state is not a proof."""
    if UNREACHABLE in answer:
        return str(answer[UNREACHABLE])
    reason = answer.get("reason")
    return reason if isinstance(reason, str) else "its answer can't be read"
