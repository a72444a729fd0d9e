"""Runs a trace of real jobs against a policy, with the real `plan.decide` on a virtual clock.

It needs no cluster, no cloud and no network. Slurm and the cloud are models (the modules' docstrings have the details),
so waiting times and hours are estimates for comparing policies with each other, and no promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpucluster.autoscaler.policy import Authentication, Policy, PolicyLimits, PoolPolicy
from gpucluster.autoscaler.simulation.cloud_model import CloudSettings, FaultRates
from gpucluster.autoscaler.simulation.engine import SimulatedCluster
from gpucluster.autoscaler.simulation.report import NodeHours, SimulationReport, WaitingTimes
from gpucluster.autoscaler.simulation.slurm_model import ModelJob, SlurmSettings
from gpucluster.autoscaler.simulation.traces import Trace, TraceJob, from_zero
from gpucluster.oci.names import elastic_name_count, elastic_prefix
from gpucluster.slurm.states import JobState

BOOT_SECONDS = 300.0
IDLE_TIMEOUT = 600.0
# If no job runs, and none has started or ended for so long, the rest never will.
_STALLED = 7 * 86400.0
# Instances may outlive the last job by the idle time and the time of their termination.
_AFTERMATH = 2 * 3600.0


def simulate(
    trace: Trace,
    policy: Policy,
    *,
    idle_timeout: float = IDLE_TIMEOUT,
    boot_seconds: float = BOOT_SECONDS,
    seed: int = 0,
    fault_rate: float = 0.0,
    label: str = "",
) -> SimulationReport:
    """Run a trace's jobs on the elastic nodes of a policy.

    Args:
        idle_timeout: seconds without a job after which Slurm gives a node up.
        boot_seconds: from an accepted launch to a node that takes jobs; they vary by a tenth.
        fault_rate: how likely each kind of fault of the cloud is, per launch (0 to 1).
        seed: the same one gives the same report.
    """
    nodes = _most(policy)
    cluster = SimulatedCluster(
        policy,
        SlurmSettings(idle_timeout=idle_timeout, max_powered_nodes=nodes),
        CloudSettings(boot_seconds=boot_seconds),
        FaultRates.every(fault_rate),
        seed=seed,
    )
    run = _Run(cluster, trace)
    run.finish()
    cluster.cloud.settle()
    hours = NodeHours(**{name: seconds / 3600 for name, seconds in cluster.cloud.seconds.items()})
    left = list(cluster.slurm.jobs.values())
    return SimulationReport(
        label=label or f"{nodes} nodes, idle {idle_timeout:g} s",
        nodes=nodes,
        idle_timeout=idle_timeout,
        jobs_done=len(run.waits),
        jobs_unfinished=len(left),
        jobs_held=sum(job.held for job in left),
        jobs_rejected=run.rejected,
        jobs_moved=run.moved,
        waiting=WaitingTimes.of(run.waits),
        node_hours=hours,
        span_hours=run.last_end / 3600,
        launches=cluster.cloud.accepted,
        calls=cluster.executor.sent,
        requeues=cluster.slurm.requeues,
        looks=cluster.passes,
        cost=_cost(policy, cluster.cloud.seconds_of_pool),
    )


class _Run:
    """The jobs of a trace in a simulated cluster."""

    def __init__(self, cluster: SimulatedCluster, trace: Trace) -> None:
        self.waits: list[float] = []
        self.rejected = self.moved = 0
        self.last_end = 0.0
        self._cluster = cluster
        self._partitions = list(cluster.slurm.partitions)
        self._remaining: Iterator[tuple[int, TraceJob]] = enumerate(from_zero(trace).jobs, 1)
        self._all_submitted = False
        cluster.slurm.ended = self._ended
        self._next()

    def finish(self) -> None:
        """Run until every job has ended and no instance is left, or nothing changes any more."""
        while not self._over() and self._cluster.clock.step():
            pass

    def _over(self) -> bool:
        cluster = self._cluster
        if not self._all_submitted:
            return False
        quiet = cluster.clock.now - self.last_end
        if not cluster.slurm.jobs:
            return not any(instance.billed for instance in cluster.cloud.alive.values()) or quiet > _AFTERMATH + (
                cluster.slurm.settings.idle_timeout
            )
        return quiet > _STALLED and not any(job.state == JobState.RUNNING for job in cluster.slurm.jobs.values())

    def _next(self) -> None:
        """Schedule the next job only, because a trace may be long."""
        entry = next(self._remaining, None)
        if entry is None:
            self._all_submitted = True
            return
        number, job = entry
        self._cluster.clock.at(job.submitted_at, lambda: self._submit(number, job))

    def _submit(self, number: int, job: TraceJob) -> None:
        partition = job.partition if job.partition in self._partitions else self._partitions[0]
        self.moved += bool(job.partition) and partition != job.partition
        taken = self._cluster.slurm.submit(
            ModelJob(
                number=number,
                node_count=job.node_count,
                run_seconds=job.run_seconds,
                limit=job.limit,
                partition=partition,
                submitted_at=self._cluster.clock.now,
                user=job.user,
            )
        )
        self.rejected += not taken
        self.last_end = max(self.last_end, self._cluster.clock.now)
        self._next()

    def _ended(self, job: ModelJob) -> None:
        self.last_end = self._cluster.clock.now
        if job.state == JobState.COMPLETED:
            self.waits.append(job.started_at - job.submitted_at)


def _most(policy: Policy) -> int:
    """How many nodes may exist at once."""
    pools = sum(pool.max_nodes for pool in policy.pools.values())
    return pools if policy.limits.max_nodes is None else min(pools, policy.limits.max_nodes)


def _cost(policy: Policy, seconds_of_pool: dict[str, float]) -> float | None:
    prices = {name: policy.price(name) for name in seconds_of_pool}
    if any(price is None for price in prices.values()) or not policy.prices:
        return None
    return sum(seconds / 3600 * (prices[name] or 0.0) for name, seconds in seconds_of_pool.items())


# --- policies -----


def simple_policy(nodes: int, *, price: float | None = None, max_cost_per_hour: float | None = None) -> Policy:
    """One pool of so many nodes, for users who have no cluster yet."""
    pool = PoolPolicy(
        name="compute",
        partition="compute",
        prefix=elastic_prefix("compute"),
        names=elastic_name_count(nodes),
        max_nodes=nodes,
        shape="any",
        availability_domain="AD-1",
        instance_configuration_id="simulation",
        compute_cluster_id="simulation",
        baked=True,
    )
    return Policy(
        cluster="simulation",
        compartment_id="simulation",
        region="simulation",
        authentication=Authentication("none"),
        pools={"compute": pool},
        limits=PolicyLimits(max_cost_per_hour=max_cost_per_hour),
        prices={} if price is None else {"any": price},
    )


def with_nodes(policy: Policy, nodes: int) -> Policy:
    """The same policy with so many nodes in each pool."""
    pools = {
        name: replace(pool, max_nodes=nodes, names=max(pool.names, elastic_name_count(nodes)))
        for name, pool in policy.pools.items()
    }
    return replace(policy, pools=pools)
