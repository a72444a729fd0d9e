"""What the hosts of a cluster run, and what is known against it (`gpucluster exposure`). Reads only.

The controller asks all hosts at the same time, with its own key: one connection from here, also for elastic nodes,
which it alone reaches.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from gpucluster.advisories import table
from gpucluster.advisories.evaluate import (
    HostVersions,
    InstalledVersion,
    KnownFault,
    Standing,
    evaluate,
    host_versions,
)
from gpucluster.errors import ToolError
from gpucluster.handover.names import is_elastic_name
from gpucluster.node_agent import bounded
from gpucluster.operations.controller import ControllerConnection
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import SSH_FAILED
from gpucluster.text import printable

_AGENT = "/usr/local/bin/gpucluster-agent versions"
# A line for each host: its name, the exit status, and the last line of what it has said. $0 is the controller.
_ASK = (
    'if [ "$1" = "$0" ]; then answer=$({agent} 2>&1); else '
    "answer=$(timeout {seconds} ssh -i ~/.ssh/gpucluster -o BatchMode=yes -o ConnectTimeout=5 "
    '-- "$1" {agent} </dev/null 2>&1); fi; '
    'status=$?; printf "%s %s %s\\n" "$1" "$status" "$(printf "%s\\n" "$answer" | tail -n 1)"'
)
# Seconds for one host, and the hosts that are asked at the same time.
_HOST_SECONDS = 20
_AT_ONCE = 50
# Seconds until the controller has answered for itself, and for each further group of hosts.
_FIRST_SECONDS = 30.0
# What sinfo writes behind the state of a node that is not up: powered down, being powered down or up.
_NOT_UP = frozenset("~#!%")
_TIMED_OUT = 124
_NO_PROGRAM = (2, 127)


@dataclass(frozen=True)
class HostExposure:
    """One host.

    Args:
        error: why it did not say what it runs; empty if it did.
        system: its distribution, such as debian-12.
        installed: what it runs.
        faults: what is known against it, what is sure first.
    """

    host: str
    error: str
    system: str
    installed: Sequence[InstalledVersion]
    faults: Sequence[KnownFault]

    @property
    def known(self) -> tuple[KnownFault, ...]:
        """What is sure."""
        return tuple(fault for fault in self.faults if fault.standing is Standing.KNOWN)


@dataclass(frozen=True)
class Exposure:
    """What is known against a cluster.

    Args:
        searched: the day until which the sources of the table were searched.
        hosts: the controller first.
    """

    searched: date
    hosts: Sequence[HostExposure]

    @property
    def clean(self) -> bool:
        """Whether every host has answered, and nothing is known against one."""
        return not any(host.error or host.known for host in self.hosts)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"searched": self.searched.isoformat(), "hosts": [asdict(host) for host in self.hosts]}


class Exposures:
    """Asks the hosts of one cluster.

    Args:
        kubernetes_nodes: what Kubernetes reports about its nodes; only called where it is the scheduler.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        controller: ControllerConnection,
        kubernetes_nodes: Callable[[], Sequence[Mapping[str, Any]]],
    ) -> None:
        self._spec = spec
        self._controller = controller
        self._kubernetes_nodes = kubernetes_nodes

    def ask(self, today: date) -> Exposure:
        """What each host runs, and what is known against it.

        Args:
            today: support of releases ends with a month.

        Raises:
            ToolError: there is no cluster, or the controller does not answer.
        """
        names = [host.name for host in self._controller.hosts()]
        if not names:
            raise ToolError("there is no cluster yet", hint="Run: gpucluster apply")
        unknown: list[HostExposure] = []
        try:
            elastic = elastic_nodes_up(self._spec, self._controller, self._kubernetes_nodes)
            names += [name for name in elastic if name not in names]
        except ToolError as error:
            unknown = [HostExposure("elastic nodes", error.what, "", (), ())]
        ask = _ASK.format(agent=_AGENT, seconds=_HOST_SECONDS)
        command = shlex.join(["xargs", "-r", "-n", "1", "-P", str(_AT_ONCE), "sh", "-c", ask, names[0]])
        limit = _FIRST_SECONDS + _HOST_SECONDS * (1 + len(names) // _AT_ONCE)
        done = self._controller.ask(command, text="".join(f"{name}\n" for name in names), timeout=limit)
        answers = dict(_answers(done.stdout))
        read = {name: answers.get(name, "it has not answered") for name in names}
        found = {name: answer for name, answer in read.items() if isinstance(answer, HostVersions)}
        faults = evaluate(found, today)
        told = [_host(name, read[name], faults.get(name, ())) for name in names]
        return Exposure(table.searched(), [*told, *unknown])


def elastic_nodes_up(
    spec: ClusterSpec,
    controller: ControllerConnection,
    kubernetes_nodes: Callable[[], Sequence[Mapping[str, Any]]],
) -> list[str]:
    """The elastic nodes that are up, as the scheduler reports.

    Raises:
        ToolError: it does not answer.
    """
    if not spec.elastic_pools:
        return []
    if spec.slurm.enabled:
        rows = controller.slurm_nodes()
        up = [row["node"] for row in rows if not set(row["state"]) & _NOT_UP]
    else:
        up = [str(row["node"]) for row in kubernetes_nodes()]
    return sorted({name for name in up if is_elastic_name(spec, name)})


def _host(name: str, answer: HostVersions | str, faults: Sequence[KnownFault]) -> HostExposure:
    if isinstance(answer, str):
        return HostExposure(name, answer, "", (), ())
    return HostExposure(name, "", answer.system, answer.installed, faults)


def _answers(text: str) -> Iterator[tuple[str, HostVersions | str]]:
    """What each host has said, or why it has not."""
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        status, _, said = rest.partition(" ")
        if status.isdigit():
            yield name, _parsed(said) if status == "0" else _reason(int(status), said)


def _parsed(said: str) -> HostVersions | str:
    try:
        return host_versions(bounded.loads(said))
    except ValueError:
        return f"its answer can't be read: {printable(said[:80])}"


def _reason(status: int, said: str) -> str:
    if status == _TIMED_OUT:
        return f"no answer within {_HOST_SECONDS} s"
    if status == SSH_FAILED:
        return f"the controller does not reach it: {printable(said[:200])}"
    if status in _NO_PROGRAM:
        return "its agent is older than this command. Run: gpucluster apply"
    return printable(said[:200]) or f"gpucluster-agent ended with {status}"
