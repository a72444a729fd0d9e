"""Another machine in the place of a node that the operator names, when the jobs on it have ended.

A permanent node is recreated by an apply (`resize`). An elastic node belongs to the autoscaler: it gives up a node
that gpucluster has drained and that has no job, and terminates its instance. So an elastic node is drained here, and
awaited. How it is drained is the scheduler's: `OnSlurm`, `OnKubernetes`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from gpucluster import handover
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.controller.rules.unhealthy import TAINT
from gpucluster.errors import InputError, ToolError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.lifecycle.host_reports import HostFault, HostReporting
from gpucluster.node_agent.rules.reasons import (
    CHANGED,
    FAILED_CHECKS,
    drained_by_checks,
    drained_for_its_host,
    from_administrator,
)
from gpucluster.oci.names import elastic_prefix, number_of
from gpucluster.oci.states import GONE
from gpucluster.operations.drain import Draining, SlurmJob, SlurmNode
from gpucluster.operations.kubernetes import ControlPlaneClient
from gpucluster.spec import ClusterSpec
from gpucluster.text import did_you_mean
from gpucluster.waiting import wait_until

# Seconds that the autoscaler gets to terminate an instance that no job uses: it looks every few seconds, and Slurm
# takes up to a minute to power a node down.
GIVEN_UP_WITHIN = 10 * 60.0
_POLL = 1.0
# What sinfo prints for a node without a reason.
_NO_REASON = "none"
# Kubernetes stores no reason of an operator.
_CORDONED = "it is cordoned"


@dataclass(frozen=True)
class Chosen:
    """The nodes to replace, by what replaces them."""

    permanent: tuple[str, ...]
    elastic: tuple[str, ...]


def is_elastic(spec: ClusterSpec, node: str) -> bool:
    """Whether the name is one of an elastic node, whether or not it has an instance."""
    return any(
        0 < number_of(elastic_prefix(name), node) <= handover.elastic_names(pool) for name, pool in spec.pools.items()
    )


def choose(spec: ClusterSpec, nodes: Iterable[str]) -> Chosen:
    """Sort the names of nodes by their kind.

    Raises:
        InputError: one is not a node of this cluster, or there is none.
    """
    permanent = [name for pool in spec.pools for name in handover.permanent_names(pool, spec.pools[pool])]
    names = tuple(dict.fromkeys(nodes))
    for name in names:
        if name not in permanent and not is_elastic(spec, name):
            hint = did_you_mean(name, permanent) or f"Permanent nodes: {', '.join(permanent[:8]) or 'none'}"
            raise InputError(f"there is no node {name}", where=str(spec.file), hint=hint)
    if not names:
        raise InputError("no node is named", hint="Name one or more of those that gpucluster status lists")
    return Chosen(
        tuple(name for name in names if name in permanent), tuple(name for name in names if name not in permanent)
    )


class Emptying(Protocol):
    """How the scheduler takes elastic nodes out of service."""

    def let_in(self, names: Collection[str]) -> str:
        """The command that returns nodes to service that an operator has taken out of it."""

    def persons(self) -> Mapping[str, str]:
        """The nodes that an operator has taken out of service, with the reasons.

        Raises:
            ToolError: the scheduler does not answer.
        """

    def faulty(self) -> Mapping[str, str]:
        """The nodes that are out of service because checks failed, on them or on their physical hosts, and why.

        Raises:
            ToolError: the scheduler does not answer.
        """

    def empty(self, names: Collection[str], timeout: float, left: Callable[[], Collection[str]]) -> None:
        """Let nothing new start on these nodes, and wait until nothing runs there.

        Args:
            timeout: seconds to wait; with 0 what runs there is ended.
            left: those that have their instance still.

        Raises:
            ToolError: something still runs there, or the scheduler does not answer. The nodes stay out of service.
        """


class OnSlurm:
    """Drains nodes of Slurm, once.

    The autoscaler gives a node up as soon as no job is on it, and a node that is powered down is not drained any more.
    A drain of the mere name would keep every job from it.
    """

    def __init__(self, draining: Draining, on_event: Sink) -> None:
        self._draining = draining
        self._on_event = on_event

    def let_in(self, names: Collection[str]) -> str:
        """As `Emptying`."""
        return f"gpucluster ssh -- sudo scontrol update nodename={','.join(names)} state=resume"

    def persons(self) -> dict[str, str]:
        """As `Emptying`."""
        return {name: node.reason for name, node in self._draining.nodes().items() if drained_by_person(node)}

    def faulty(self) -> dict[str, str]:
        """As `Emptying`."""
        closed = {name: node.reason for name, node in self._draining.nodes().items() if not node.takes_jobs}
        return {
            name: reason for name, reason in closed.items() if drained_by_checks(reason) or drained_for_its_host(reason)
        }

    def empty(self, names: Collection[str], timeout: float, left: Callable[[], Collection[str]]) -> None:
        """As `Emptying`. With 0 jobs are requeued, or cancelled."""
        reasons = dict.fromkeys(names, CHANGED)
        if timeout > 0:
            self._draining.begin(reasons)
            self._await_jobs(names, timeout, left)
        else:
            self._draining.drain(reasons, 0)

    def _await_jobs(self, names: Collection[str], timeout: float, left: Callable[[], Collection[str]]) -> None:
        jobs: tuple[SlurmJob, ...] = ()
        reported: tuple[SlurmJob, ...] = ()

        def ended() -> bool:
            nonlocal jobs, reported
            jobs = self._draining.jobs(left())
            if jobs and [job.id for job in jobs] != [job.id for job in reported]:
                reported = jobs
                words = "; ".join(map(str, jobs))
                self._on_event(Event(EventKind.LOG, "slurm", "waiting", f"before nodes are replaced: {words}"))
            return not jobs

        if not wait_until(ended, timeout, _POLL):
            raise ToolError(
                f"{', '.join(names)} can't be replaced: after {timeout:.0f} s there is still "
                f"{'; '.join(map(str, jobs))}",
                hint="Nothing was terminated, and these nodes accept no new jobs. When the jobs have ended, the "
                "autoscaler terminates the nodes. To end them, use scancel, or pass --drain-timeout 0",
            )


class OnKubernetes:
    """Drains nodes of Kubernetes: their pods move or end, and the autoscaler gives up what is cordoned and empty."""

    def __init__(self, control_plane: ControlPlaneClient) -> None:
        self._control_plane = control_plane

    def let_in(self, names: Collection[str]) -> str:
        """As `Emptying`."""
        return f"gpucluster kubectl -- uncordon {' '.join(names)}"

    def persons(self) -> dict[str, str]:
        """As `Emptying`. Only gpucluster writes a reason."""
        nodes = self._control_plane.nodes()
        return {name: _CORDONED for name, node in nodes.items() if node.cordoned and not node.reason}

    def faulty(self) -> dict[str, str]:
        """As `Emptying`. The taint of the health service has the name of the check."""
        return {
            name: f"{FAILED_CHECKS} {taint.get('value', '')}"
            for name, node in self._control_plane.nodes().items()
            for taint in node.taints
            if taint.get("key") == TAINT
        }

    def empty(self, names: Collection[str], timeout: float, left: Callable[[], Collection[str]]) -> None:
        """As `Emptying`. With 0 all pods are deleted, whatever their disruption budgets."""
        self._control_plane.drain(dict.fromkeys(names, CHANGED), timeout)


class ElasticReplacement:
    """Takes elastic nodes of one cluster out of service until the autoscaler has terminated their instances.

    Args:
        elastic: makes the client of elastic instances; only called after the cloud was started.
    """

    def __init__(
        self,
        scheduler: Emptying,
        elastic: Callable[[], ElasticInstances],
        *,
        reporting: HostReporting,
        on_event: Sink,
    ) -> None:
        self._scheduler = scheduler
        self._elastic = elastic
        self._reporting = reporting
        self._on_event = on_event

    def faulty(self) -> Mapping[str, str]:
        """The nodes, elastic or not, that are out of service because checks failed, with the reasons.

        Raises:
            ToolError: the scheduler does not answer.
        """
        return self._scheduler.faulty()

    def replace(
        self, nodes: Collection[str], timeout: float, faults: Mapping[str, HostFault] = MappingProxyType({})
    ) -> None:
        """Drain these nodes, wait until no job is on them, and until the autoscaler has terminated their instances.

        May be killed at any point: the autoscaler goes on. What has no instance is left as it is.

        Args:
            timeout: seconds to wait for jobs; with 0 they are requeued, or cancelled.
            faults: of the hardware of some of these nodes, by their names. Their physical hosts are reported before the
                drain: the autoscaler terminates an instance as soon as no job is on it.

        Raises:
            ToolError: an operator has drained one (nothing was changed), jobs still run, or the autoscaler does
                nothing.
            CloudError: the cloud refused.
        """
        if not nodes:
            return
        instances = self._instances(nodes)
        self._check_free(instances)
        if not instances:
            return
        self._reporting.report(faults, instances, {})
        self._scheduler.empty(sorted(instances), timeout, lambda: self._left(instances))
        for name, ocid in instances.items():
            self._on_event(Event(EventKind.RESOURCE, f"instance {name}", "deleting", data={"id": ocid}))
        if not wait_until(lambda: not self._left(instances), GIVEN_UP_WITHIN, _POLL):
            left = sorted(self._left(instances))
            raise ToolError(
                f"the autoscaler has not terminated {', '.join(left)} within {GIVEN_UP_WITHIN:.0f} s",
                hint=f"See why: gpucluster autoscaler explain {left[0]}, and gpucluster autoscaler status",
            )
        for name in instances:
            self._on_event(Event(EventKind.RESOURCE, f"instance {name}", "deleted"))

    def _check_free(self, names: Iterable[str]) -> None:
        """Refuse nodes that the autoscaler leaves alone, because an operator has taken them out of service.

        Raises:
            ToolError: with the reasons.
        """
        persons = self._scheduler.persons()
        theirs = {name: persons[name] for name in names if name in persons}
        if theirs:
            reasons = "; ".join(f"{name} ({reason})" for name, reason in theirs.items())
            raise ToolError(
                f"an operator has taken this out of service, and it is left as it is: {reasons}",
                hint=f"To replace it nevertheless, run: {self._scheduler.let_in(theirs)}, then the same command again",
            )

    def _left(self, instances: Mapping[str, str]) -> dict[str, str]:
        """Those of these instances that are not being terminated: OCID by name."""
        now = self._instances(instances)
        return {name: ocid for name, ocid in instances.items() if now.get(name) == ocid}

    def _instances(self, nodes: Collection[str]) -> dict[str, str]:
        """The instance of each of these nodes that has one and is not being terminated: OCID by name."""
        return {
            each.node: each.id
            for each in self._elastic().instances()
            if each.node in nodes and not each.builder and each.state not in GONE
        }


def drained_by_person(node: SlurmNode) -> bool:
    """Whether the node takes no jobs because an administrator or another health check has decided so."""
    return not node.takes_jobs and node.reason != _NO_REASON and from_administrator(node.reason)
