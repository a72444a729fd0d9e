"""The facts of hosts that a verdict judges: one command over ssh for each host, at the same time, without Ansible.

The programs that collect them are sent along, so a host whose agent is older or missing is asked like any other. The
controller's program works until the other hosts have looked at its token on the share: it sees the end of its input
also if this process is killed or its connection is lost, and leaves nothing behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from gpucluster import cancellation, process
from gpucluster.artifacts import agent_archive
from gpucluster.errors import ProcessError, ToolError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.handover.facts_requests import Collection
from gpucluster.operations.host_programs import PAUSES, ask_hosts, document, last_line
from gpucluster.operations.inquiry import Inquiry
from gpucluster.ssh import SSH_FAILED, SshClient, host_key_refused
from gpucluster.verdict.measurements import UNREACHABLE

_TASK = "Collect facts of the host"
# Seconds for the controller's program to write its token, and to end.
_TOKEN_S, _END_S = 120.0, 10.0

FactsOfHosts = dict[str, dict[str, Any]]


class FactsCollector:
    """Asks the hosts of one cluster.

    Args:
        ssh_client: makes the client that reaches them.
    """

    def __init__(self, ssh_client: Callable[[], SshClient], on_event: Sink) -> None:
        self._ssh_client = ssh_client
        self._on_event = on_event

    def collect(self, asked: Collection) -> FactsOfHosts:
        """The facts of each host. One that can't be reached, gives no answer in time or none that can be read has why
        instead, under UNREACHABLE.

        Raises:
            EnvironmentFault: there is no ssh.
            KeyboardInterrupt: the user stopped it; nothing is left on the hosts.
        """
        client, fault, requests = self._ssh_client(), "", dict(asked.hosts)
        with ExitStack() as until_end:
            try:
                controller = _begin(client, asked)
                until_end.push(controller)
            except ToolError as error:
                fault = _reason(error)
                # Without its token nothing is known of the share.
                requests = {name: {**of_host, "share": None} for name, of_host in requests.items()}
            del requests[asked.controller]
            facts = ask_hosts(client, agent_archive.facts_program(controller=False), requests, asked.host_seconds)
            if not fault:
                try:
                    facts[asked.controller] = controller.result(asked.cluster_seconds)
                except ToolError as error:
                    fault = _reason(error)
        if fault:
            facts[asked.controller] = {UNREACHABLE: fault}
        for name, of_host in facts.items():
            status, why = ("unreachable", str(of_host[UNREACHABLE])) if UNREACHABLE in of_host else ("ok", "")
            self._on_event(Event(EventKind.TASK, _TASK, status, why, data={"host": name}))
        return _with_monitoring({name: facts[name] for name in asked.hosts}, asked)


class _Conversation:
    """The program on the controller, for the time of a `with`."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._talk = process.ProcessConversation(argv, end_s=_END_S)

    def __enter__(self) -> _Conversation:
        self._talk.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._talk.__exit__(*error)

    def begin(self, line: str) -> None:
        """Send the program and its request, and wait until its token is on the share.

        Raises:
            ToolError: it gives no answer in time, or another one. ProcessError: it has ended.
        """
        if "progress" not in self._ask(line, _TOKEN_S):
            raise ToolError("its answer can't be read")

    def result(self, seconds: float) -> dict[str, Any]:
        """Tell it that the other hosts have looked, and wait for its facts.

        Raises:
            ToolError: it gives no answer in time, or another one. ProcessError: it has ended.
        """
        answer = self._ask("", seconds).get("result")
        if not isinstance(answer, dict):
            raise ToolError("its answer can't be read")
        return answer

    def _ask(self, line: str, seconds: float) -> dict[str, Any]:
        lines: list[str] = []

        def keep(answer: str) -> bool:
            lines.append(answer)
            return True

        try:
            Inquiry(lambda: self._talk.ask(line, keep)).result(seconds)
        except TimeoutError:
            raise ToolError(f"it gave no answer within {seconds:.0f} s") from None
        return document(lines[-1])


def _begin(client: SshClient, asked: Collection) -> _Conversation:
    """Start the program on the controller; the caller leaves the conversation.

    Raises:
        ToolError: it can't be reached, or gives no answer.
    """
    command, program = agent_archive.facts_program(controller=True)
    argv = client.argv(asked.controller, [command])
    for left, pause in zip(reversed(range(len(PAUSES))), PAUSES, strict=True):
        cancellation.sleep(pause)
        with ExitStack() as until_begun:
            conversation = until_begun.enter_context(_Conversation(argv))
            try:
                conversation.begin(program + json.dumps(asked.cluster))
            except ProcessError as error:
                if left and error.returncode == SSH_FAILED and not host_key_refused(error.stderr):
                    continue
                raise
            until_begun.pop_all()
            return conversation
    raise AssertionError


def _with_monitoring(facts: FactsOfHosts, asked: Collection) -> FactsOfHosts:
    """What Prometheus reports is a fact of the cluster, on whichever host it runs."""
    if not asked.monitoring or UNREACHABLE in facts[asked.controller]:
        return facts
    of_host = facts[asked.monitoring]
    report = of_host.pop("monitoring", None)
    error = of_host.get("monitoring_error") or f"no answer of {asked.monitoring}"
    facts[asked.controller]["monitoring"] = report or {"error": str(error)}
    return facts


def _reason(error: ToolError) -> str:
    """Why a program on a host gave no facts: what ssh or the program has printed last."""
    return last_line(error.stderr) if isinstance(error, ProcessError) else error.what
