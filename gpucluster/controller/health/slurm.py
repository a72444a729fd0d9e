"""Slurm's commands, for the health service: which nodes there are, drain and undrain."""

from __future__ import annotations

import calendar
import os
import time
from collections.abc import Mapping
from typing import Callable, Protocol

from gpucluster.controller.health.policy import SchedulerNode
from gpucluster.controller.rules import slurm_nodes
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed

_SECONDS = 20.0
_HINT = "Run: systemctl status slurmctld"
#: What squeue and scontrol write in the place of an empty host list.
_NO_HOSTS = frozenset({"", "(null)", "n/a", "None assigned"})


class NodeScheduler(Protocol):
    """What the service needs of Slurm. Each call raises Failed where Slurm does not do it."""

    def nodes(self, *names: str) -> dict[str, SchedulerNode]:
        """All nodes, or those with these names."""

    def addresses(self) -> Mapping[str, str]:
        """Address -> node, of the nodes in service. An address that two nodes have is left out."""

    def drain(self, node: str, reason: str) -> None:
        """Drain a node: it takes no new jobs."""

    def undrain(self, node: str) -> None:
        """Undrain a node: it takes jobs again."""

    def reboot(self, node: str) -> None:
        """Reboot a node that is drained when no job has it. It stays drained."""


class NoSlurm:
    """A cluster without Slurm: it has no nodes to drain."""

    def nodes(self, *_names: str) -> dict[str, SchedulerNode]:
        """None."""
        return {}

    def addresses(self) -> Mapping[str, str]:
        """None: all hosts are permanent."""
        return {}

    def drain(self, node: str, reason: str) -> None:
        """Never asked for: the policy knows no nodes."""
        raise Failed(f"{node} is not drained ({reason}): this cluster has no Slurm")

    def undrain(self, node: str) -> None:
        """Never asked for."""
        raise Failed(f"{node} is not undrained: this cluster has no Slurm")

    def reboot(self, node: str) -> None:
        """Never asked for."""
        raise Failed(f"{node} is not rebooted: this cluster has no Slurm")


class SlurmCommands:
    """The real one.

    Args:
        pool_of: the pool of a node.
    """

    def __init__(self, pool_of: Callable[[str], str]) -> None:
        self._pool_of = pool_of

    def nodes(self, *names: str) -> dict[str, SchedulerNode]:
        """All nodes, or those with these names."""
        nodes = {}
        for line in self._lines(*names):
            nodes[line.name] = SchedulerNode(
                line.name, self._pool_of(line.name), line.flags, line.reason, line.instance_id
            )
        return nodes

    def addresses(self) -> Mapping[str, str]:
        """Address -> node, of the nodes in service."""
        node_by_address: dict[str, str] = {}
        twice = set()
        for line in self._lines():
            if SchedulerNode(line.name, "", line.flags).away or not line.address:
                continue
            if line.address in node_by_address:
                twice.add(line.address)
            node_by_address[line.address] = line.name
        return {address: name for address, name in node_by_address.items() if address not in twice}

    def drain(self, node: str, reason: str) -> None:
        """Drain a node: it takes no new jobs."""
        ask("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def undrain(self, node: str) -> None:
        """Undrain a node: it takes jobs again."""
        ask("scontrol", "update", f"nodename={node}", "state=resume")

    def reboot(self, node: str) -> None:
        """Reboot a node that is drained when no job has it. It stays drained.

        Without ASAP and nextstate slurmctld keeps the drain, and waits until no job has the node (slurmctld's
        proc_req.c, controller.c and node_mgr.c of 22.05.8 and 24.11.5, power_save.c of 26.05). Of a node that is to be
        rebooted already it changes nothing.
        """
        ask("scontrol", "reboot", node)

    def _lines(self, *names: str) -> list[slurm_nodes.NodeLine]:
        argv = ("scontrol", "--oneliner", "show", "node", ",".join(names)) if names else _ALL
        text = ask(*argv)
        try:
            return list(slurm_nodes.parse(text))
        except ValueError as error:
            raise Failed(f"the output of scontrol show nodes can't be read: {error}", _HINT) from error


def ask(*argv: str) -> str:
    """What a command of Slurm prints. Times are in UTC.

    Raises:
        Failed: Slurm refuses, or does not answer.
    """
    kept = {name: os.environ[name] for name in ("PATH", "SLURM_CONF") if name in os.environ}
    words = [f"{name}={value}" for name, value in {**kept, "TZ": "UTC", "LC_ALL": "C.UTF-8"}.items()]
    result = programs.call(["env", "-i", *words, *argv], seconds=_SECONDS)
    if result.returncode != 0:
        message = (result.stderr.strip() or result.stdout.strip() or "without a message")[-300:]
        raise Failed(f"Slurm refused: {message}", _HINT)
    return result.stdout


def expanded(hosts: str, ask: Callable[..., str] = ask) -> frozenset[str]:
    """The names in a host list of Slurm; none where it writes that there are none.

    Raises:
        Failed: Slurm does not answer. A list of one name asks nothing.
    """
    if hosts in _NO_HOSTS:
        return frozenset()
    if not set("[,") & set(hosts):
        return frozenset({hosts})
    return frozenset(ask("scontrol", "show", "hostnames", hosts).split())


def moment(text: str) -> float | None:
    """A time that `ask` has read, in seconds since 1970; None for a word such as Unknown, N/A or NONE."""
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


_ALL = ("scontrol", "--oneliner", "show", "nodes")
