"""Another machine in the place of a node that the operator names, when the jobs on it have ended.

A permanent node is recreated by an apply (`resize`). An elastic node belongs to the autoscaler: it gives up a node
that gpucluster has drained and that has no job, and terminates its instance. So an elastic node is drained here, and
awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from gpucluster import handover
from gpucluster.agent.rules.reasons import CHANGED, from_administrator
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.errors import InputError, ToolError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.oci.names import elastic_prefix, number_of
from gpucluster.oci.states import GONE
from gpucluster.operations.drain import Draining, SlurmJob, SlurmNode
from gpucluster.spec import ClusterSpec
from gpucluster.text import did_you_mean
from gpucluster.waiting import wait_until

# Seconds that the autoscaler gets to terminate an instance that no job uses: it looks every few seconds, and Slurm
# takes up to a minute to power a node down.
GIVEN_UP_WITHIN = 10 * 60.0
_POLL = 1.0
# What sinfo prints for a node without a reason.
_NO_REASON = "none"


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
        InputError: one is no node of this cluster, or there is none.
    """
    permanent = [name for pool in spec.pools for name in handover.permanent_names(pool, spec.pools[pool])]
    wanted = tuple(dict.fromkeys(nodes))
    for name in wanted:
        if name not in permanent and not is_elastic(spec, name):
            hint = did_you_mean(name, permanent) or f"Permanent nodes: {', '.join(permanent[:8]) or 'none'}"
            raise InputError(f"there is no node {name}", where=str(spec.file), hint=hint)
    if not wanted:
        raise InputError("no node is named")
    return Chosen(
        tuple(name for name in wanted if name in permanent), tuple(name for name in wanted if name not in permanent)
    )


class ElasticReplacement:
    """Takes elastic nodes of one cluster out of service until the autoscaler has terminated their instances.

    Args:
        elastic: makes the client of elastic instances; only called after the cloud was started.
    """

    def __init__(self, draining: Draining, elastic: Callable[[], ElasticInstances], on_event: Sink) -> None:
        self._draining = draining
        self._elastic = elastic
        self._on_event = on_event

    def replace(self, nodes: Collection[str], timeout: float) -> None:
        """Drain these nodes, wait until no job is on them, and until the autoscaler has terminated their instances.

        May be killed at any point: the autoscaler goes on. What has no instance is left as it is.

        Args:
            timeout: seconds to wait for jobs; with 0 they are requeued, or cancelled.

        Raises:
            ToolError: a person has drained one (nothing was changed), jobs still run, or the autoscaler does nothing.
            CloudError: the cloud refused.
        """
        if not nodes:
            return
        instances = self._instances(nodes)
        known = self._draining.nodes()
        _check_free(known, instances)
        if not instances:
            return
        reasons = dict.fromkeys(sorted(instances), CHANGED)
        if timeout > 0:
            # Once: the autoscaler gives a node up as soon as no job is on it, and a node that is powered down is not
            # drained any more. A drain of the mere name would keep every job from it.
            self._draining.begin(reasons)
            self._await_jobs(instances, timeout)
        else:
            self._draining.drain(reasons, 0)
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

    def _await_jobs(self, instances: Mapping[str, str], timeout: float) -> None:
        jobs: tuple[SlurmJob, ...] = ()
        reported: tuple[SlurmJob, ...] = ()

        def ended() -> bool:
            nonlocal jobs, reported
            jobs = self._draining.jobs(self._left(instances))
            if jobs and [job.id for job in jobs] != [job.id for job in reported]:
                reported = jobs
                words = "; ".join(map(str, jobs))
                self._on_event(Event(EventKind.LOG, "slurm", "waiting", f"before nodes are replaced: {words}"))
            return not jobs

        if not wait_until(ended, timeout, _POLL):
            raise ToolError(
                f"{', '.join(instances)} can't be replaced: after {timeout:.0f} s there is still "
                f"{'; '.join(map(str, jobs))}",
                hint="Nothing was terminated, and these nodes accept no new jobs. When the jobs have ended, the "
                "autoscaler terminates the nodes. To end them, use scancel, or pass --drain-timeout 0",
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


def _check_free(known: Mapping[str, SlurmNode], nodes: Iterable[str]) -> None:
    """Refuse nodes that the autoscaler leaves alone, because a person has drained them.

    Raises:
        ToolError: with the reasons.
    """
    theirs = {name: known[name].reason for name in nodes if name in known and drained_by_person(known[name])}
    if theirs:
        names = ",".join(theirs)
        reasons = "; ".join(f"{name} ({reason})" for name, reason in theirs.items())
        raise ToolError(
            f"a person has taken this out of service, and it is left as it is: {reasons}",
            hint=f"To let it go nevertheless, run: gpucluster ssh -- sudo scontrol update nodename={names} "
            "state=resume, then the same command again",
        )
