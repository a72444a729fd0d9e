"""What happened to each node and job between two passes, as metrics. No decision depends on it.

It is lost with the process: a node that an earlier process launched is not measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucluster.autoscaler.decide.types import (
    Action,
    CloudInstance,
    Delay,
    Fault,
    Hold,
    Memory,
    Node,
    Observation,
    Outcome,
)
from gpucluster.autoscaler.policy import Policy
from gpucluster.oci.states import LifecycleState
from gpucluster.slurm.states import JobState

if TYPE_CHECKING:
    from gpucluster.autoscaler.daemon.executor import Sent
    from gpucluster.autoscaler.daemon.metrics import Metrics


@dataclass
class _Boot:
    generation: int
    asked_at: float
    answered_at: float
    running_at: float = 0.0


def node_state(node: Node) -> str:
    """One word for the flags of a node."""
    power = (
        ("powering_down", node.powering_down),
        ("powering_up", node.powering_up),
        ("down", node.down),
        ("powered_down", node.powered_down),
        ("drained", node.drained),
        ("silent", node.silent),
        ("allocated", node.busy),
    )
    return next((word for word, holds in power if holds), "idle")


def cost_per_hour(instances: Iterable[CloudInstance], policy: Policy) -> float | None:
    """What the live instances cost; None without any price. A pool whose shape has no price counts as 0."""
    if not policy.prices:
        return None
    live = Counter(instance.pool for instance in instances if instance.live and instance.pool in policy.pools)
    return sum(number * (policy.price(pool) or 0.0) for pool, number in live.items())


class Timeline:
    """Updates the metrics."""

    def __init__(self, metrics: Metrics, policy: Policy) -> None:
        self._metrics, self._policy = metrics, policy
        self._boots: dict[str, _Boot] = {}
        self._waiting: set[str] = set()  # jobs that have their nodes and can't start yet
        self._observed_at = 0.0

    def sent(self, sent: Iterable[Sent], memory: Memory) -> None:
        """Launches that were answered."""
        for launch in sent:
            claim = memory.claims.get(launch.launch.node)
            if claim is None or claim.token != launch.launch.token or launch.outcome.fault is not None:
                continue
            self._metrics.observe("scaleup_seconds", max(0.0, launch.sent_at - claim.asked_at), phase="queue")
            self._metrics.observe("scaleup_seconds", max(0.0, launch.answered_at - launch.sent_at), phase="launch")
            self._boots[claim.node] = _Boot(claim.generation, claim.asked_at, launch.answered_at)

    def failures(self, outcomes: Iterable[Outcome]) -> None:
        """Launches that failed."""
        for outcome in outcomes:
            if outcome.fault is Fault.CAPACITY and (name := self._policy.pool_of(outcome.node)):
                pool = self._policy.pools[name]
                self._metrics.count("capacity_errors_total", shape=pool.shape, ad=pool.availability_domain)

    def decisions(self, actions: Iterable[Action]) -> None:
        """Actions that were decided."""
        for action in actions:
            if isinstance(action, Delay):
                self._metrics.count("gang_total", result="rolled_back")
            elif isinstance(action, Hold):
                self._metrics.count("gang_total", result="held")

    def observe(self, seen: Observation, memory: Memory, now: float) -> None:
        """One observation."""
        passed = now - self._observed_at if self._observed_at else 0.0
        self._observed_at = now
        if seen.nodes is not None:
            self._idle(seen.nodes, passed)
        if seen.jobs is not None:
            self._jobs(seen)
        if seen.nodes is not None and seen.instances is not None:
            self._boot(seen.nodes, seen.instances, memory, now)
            self._count(seen.nodes, seen.instances)
        if seen.instances is not None:
            self._metrics.set("cost_usd_per_hour", cost_per_hour(seen.instances, self._policy) or 0.0)
        active = [cool_down for cool_down in memory.cool_downs.values() if cool_down.until > now]
        labelled = [({"pool": cool_down.pool, "fault": cool_down.fault}, 1.0) for cool_down in active]
        self._metrics.replace("breaker_open", labelled)

    def _idle(self, nodes: Mapping[str, Node], passed: float) -> None:
        idle = Counter(node.pool for node in nodes.values() if node.in_service and not node.busy)
        for pool in self._policy.pools:
            self._metrics.count("idle_node_seconds_total", idle[pool] * passed, pool=pool)

    def _jobs(self, seen: Observation) -> None:
        jobs = seen.jobs or {}
        for waiting in list(self._waiting):
            job = jobs.get(waiting)
            if job is None or job.state != JobState.CONFIGURING:
                self._waiting.discard(waiting)
                if job is not None and job.state == JobState.RUNNING:
                    self._metrics.count("gang_total", result="started")
        nodes = seen.nodes or {}
        for job in jobs.values():
            if job.state == JobState.CONFIGURING and any(node in nodes for node in job.nodes):
                self._waiting.add(job.id)

    def _boot(self, nodes: Mapping[str, Node], instances: Iterable[CloudInstance], memory: Memory, now: float) -> None:
        running = {one.node: one.generation for one in instances if one.state == LifecycleState.RUNNING}
        for name, boot in list(self._boots.items()):
            claim, node = memory.claims.get(name), nodes.get(name)
            if claim is None or claim.generation != boot.generation:
                del self._boots[name]
                continue
            if not boot.running_at and running.get(name) == boot.generation:
                boot.running_at = now
                self._metrics.observe("scaleup_seconds", max(0.0, now - boot.answered_at), phase="boot")
            if boot.running_at and node is not None and node.in_service and not node.silent:
                self._metrics.observe("scaleup_seconds", now - boot.running_at, phase="join")
                self._metrics.observe("scaleup_seconds", now - boot.asked_at, phase="total")
                del self._boots[name]

    def _count(self, nodes: Mapping[str, Node], instances: Iterable[CloudInstance]) -> None:
        clouds = {one.node: one.state.lower() for one in instances if one.state != LifecycleState.TERMINATED}
        counts: Counter[tuple[str, str, str]] = Counter(
            (node.pool, node_state(node), clouds.get(node.name, "none")) for node in nodes.values()
        )
        labels = ("pool", "node_state", "cloud_state")
        self._metrics.replace("nodes", [(dict(zip(labels, key, strict=True)), n) for key, n in counts.items()])
        there = [node for node in nodes.values() if node.in_service and not node.silent and node.address]
        info = [({"node": node.name, "pool": node.pool, "address": node.address}, 1.0) for node in there]
        self._metrics.replace("elastic_node_info", info)
