"""What would have been: a trace of real jobs against a policy, with the real `plan.decide` on a virtual clock.

Needs no cluster, no cloud and no network. What it says rests on models (the package `simulation` says of what): waiting
times and hours are estimates for comparing policies with each other, no promise.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from gpucluster.autoscaler.policy import Authentication, Limits, Policy, PoolPolicy
from gpucluster.autoscaler.simulation.cloud_model import CloudSettings, FaultRates
from gpucluster.autoscaler.simulation.engine import World
from gpucluster.autoscaler.simulation.report import NodeHours, SimulationReport, Waiting, as_json, table
from gpucluster.autoscaler.simulation.slurm_model import ModelJob, SlurmSettings
from gpucluster.autoscaler.simulation.traces import FORMATS, Trace, TraceJob, from_zero, read_traces
from gpucluster.errors import InputError

BOOT_SECONDS = 300.0
IDLE_TIMEOUT = 600.0
# When nothing has started or ended for so long, and nothing runs, nothing will.
_STALLED = 7 * 86400.0
# Instances may outlive the last job by the idle time and what it takes to end them.
_AFTERMATH = 2 * 3600.0
_MOST_NODES = 100_000

__all__ = ["add_arguments", "run", "simple_policy", "simulate", "with_nodes"]


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
    world = World(
        policy,
        SlurmSettings(idle_timeout=idle_timeout, max_powered_nodes=nodes),
        CloudSettings(boot_seconds=boot_seconds),
        FaultRates.every(fault_rate),
        seed=seed,
    )
    course = _Course(world, trace)
    course.finish()
    world.cloud.settle()
    hours = NodeHours(**{name: seconds / 3600 for name, seconds in world.cloud.seconds.items()})
    left = list(world.slurm.jobs.values())
    return SimulationReport(
        label=label or f"{nodes} nodes, idle {idle_timeout:g} s",
        nodes=nodes,
        idle_timeout=idle_timeout,
        jobs_done=len(course.waits),
        jobs_unfinished=len(left),
        jobs_held=sum(job.held for job in left),
        jobs_rejected=course.rejected,
        jobs_moved=course.moved,
        waiting=Waiting.of(course.waits),
        node_hours=hours,
        span_hours=course.last_end / 3600,
        launches=world.cloud.accepted,
        calls=world.executor.sent,
        requeues=world.slurm.requeues,
        looks=world.looks,
        cost=_cost(policy, world.cloud.seconds_of_pool),
    )


class _Course:
    """The jobs of a trace on their way through a world."""

    def __init__(self, world: World, trace: Trace) -> None:
        self.waits: list[float] = []
        self.rejected = self.moved = 0
        self.last_end = 0.0
        self._world = world
        self._partitions = list(world.slurm.partitions)
        self._coming: Iterator[tuple[int, TraceJob]] = enumerate(from_zero(trace).jobs, 1)
        self._all_came = False
        world.slurm.ended = self._ended
        self._next()

    def finish(self) -> None:
        """Until every job has ended and no instance is left, or nothing moves any more."""
        while not self._over() and self._world.clock.step():
            pass

    def _over(self) -> bool:
        world = self._world
        if not self._all_came:
            return False
        quiet = world.clock.now - self.last_end
        if not world.slurm.jobs:
            return not any(instance.billed for instance in world.cloud.alive.values()) or quiet > _AFTERMATH + (
                world.slurm.settings.idle_timeout
            )
        return quiet > _STALLED and not any(job.state == "RUNNING" for job in world.slurm.jobs.values())

    def _next(self) -> None:
        """Only the next job is in the clock's queue: a trace may be long."""
        entry = next(self._coming, None)
        if entry is None:
            self._all_came = True
            return
        number, job = entry
        self._world.clock.at(job.submitted_at, lambda: self._submit(number, job))

    def _submit(self, number: int, job: TraceJob) -> None:
        partition = job.partition if job.partition in self._partitions else self._partitions[0]
        self.moved += bool(job.partition) and partition != job.partition
        taken = self._world.slurm.submit(
            ModelJob(
                number=number,
                node_count=job.node_count,
                run_seconds=job.run_seconds,
                limit=job.limit,
                partition=partition,
                submitted_at=self._world.clock.now,
                user=job.user,
            )
        )
        self.rejected += not taken
        self.last_end = max(self.last_end, self._world.clock.now)
        self._next()

    def _ended(self, job: ModelJob) -> None:
        self.last_end = self._world.clock.now
        if job.state == "COMPLETED":
            self.waits.append(job.started_at - job.submitted_at)


def _most(policy: Policy) -> int:
    """How many nodes may exist at once."""
    pools = sum(pool.max_nodes for pool in policy.pools.values())
    return pools if policy.limits.max_nodes is None else min(pools, policy.limits.max_nodes)


def _cost(policy: Policy, seconds_of_pool: dict[str, float]) -> float | None:
    prices = {name: policy.prices.get(policy.pools[name].shape) for name in seconds_of_pool}
    if any(price is None for price in prices.values()) or not policy.prices:
        return None
    return sum(seconds / 3600 * (prices[name] or 0.0) for name, seconds in seconds_of_pool.items())


# --- policies -----


def simple_policy(nodes: int, *, price: float | None = None, max_cost_per_hour: float | None = None) -> Policy:
    """One pool of so many nodes, for whoever has no cluster yet."""
    pool = PoolPolicy(
        name="compute",
        partition="compute",
        prefix="compute-e",
        names=2 * nodes + 2,
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
        limits=Limits(max_cost_per_hour=max_cost_per_hour),
        prices={} if price is None else {"any": price},
    )


def with_nodes(policy: Policy, nodes: int) -> Policy:
    """The same policy with so many nodes in each pool."""
    pools = {
        name: replace(pool, max_nodes=nodes, names=max(pool.names, 2 * nodes + 2))
        for name, pool in policy.pools.items()
    }
    return replace(policy, pools=pools)


# --- the command -----


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the program's subcommand `simulate`."""
    parser.description = "Run jobs of the past against a policy: how long would they wait, and what would it cost?"
    parser.add_argument("trace", nargs="+", type=Path, help="files with jobs, read as one trace; may be gzipped")
    parser.add_argument("--format", choices=FORMATS, default="sacct", help="of the trace (default: sacct)")
    parser.add_argument("--processors-per-node", type=_count, default=1, metavar="N", help="for swf (default: 1)")
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="autoscaler.json of a cluster; else one simple pool"
    )
    parser.add_argument("--nodes", type=_count, nargs="+", metavar="N", help="of each pool; several are compared")
    parser.add_argument(
        "--idle-timeout",
        type=_seconds,
        nargs="+",
        default=[IDLE_TIMEOUT],
        metavar="SECONDS",
        help=f"until an idle node goes; several are compared (default: {IDLE_TIMEOUT:g})",
    )
    parser.add_argument(
        "--boot-seconds",
        type=_seconds,
        default=BOOT_SECONDS,
        metavar="SECONDS",
        help=f"from a launch to a node that takes jobs (default: {BOOT_SECONDS:g})",
    )
    parser.add_argument("--price", type=_amount, metavar="PRICE", help="of a node and hour, in any currency")
    parser.add_argument("--max-cost-per-hour", type=_amount, metavar="PRICE", help="the policy's rail")
    parser.add_argument("--fault-rate", type=_rate, default=0.0, metavar="P", help="of each kind of fault (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same numbers (default: 0)")
    parser.add_argument("--output", choices=("text", "json"), default="text", help="(default: text)")


def run(args: argparse.Namespace) -> int:
    """Carry out `simulate`, and write the result to stdout.

    Raises:
        InputError: the policy or the trace is wrong.
    """
    trace = read_traces(args.trace, args.format, processors_per_node=args.processors_per_node)
    policies = _policies(args)
    reports = [
        simulate(
            trace,
            policy,
            idle_timeout=idle_timeout,
            boot_seconds=args.boot_seconds,
            seed=args.seed,
            fault_rate=args.fault_rate,
        )
        for policy, idle_timeout in product(policies, args.idle_timeout)
    ]
    if args.output == "json":
        sys.stdout.write(as_json(reports, jobs=len(trace.jobs), left_out=trace.left_out, seed=args.seed))
    else:
        sys.stdout.write(f"{len(trace.jobs)} jobs; {trace.left_out} lines without a job that ran\n{table(reports)}")
    return 0


def _policies(args: argparse.Namespace) -> Sequence[Policy]:
    if args.policy is None:
        if not args.nodes:
            raise InputError("how many nodes?", hint="Say --nodes N, or --policy FILE")
        return [simple_policy(n, price=args.price, max_cost_per_hour=args.max_cost_per_hour) for n in args.nodes]
    policy = Policy.load(args.policy)
    if not policy.pools:
        raise InputError("the policy has no elastic pool", where=str(args.policy), hint="Give a pool max_count > count")
    if args.price is not None:
        policy = replace(policy, prices={pool.shape: args.price for pool in policy.pools.values()})
    if args.max_cost_per_hour is not None:
        policy = replace(policy, limits=replace(policy.limits, max_cost_per_hour=args.max_cost_per_hour))
    return [with_nodes(policy, nodes) for nodes in args.nodes] if args.nodes else [policy]


def _count(text: str) -> int:
    number = int(text)
    if not 0 < number <= _MOST_NODES:
        raise argparse.ArgumentTypeError(f"must be from 1 to {_MOST_NODES}")
    return number


def _amount(text: str) -> float:
    number = float(text)
    if not math.isfinite(number) or number < 0:
        raise argparse.ArgumentTypeError("must be a number, and not negative")
    return number


def _seconds(text: str) -> float:
    number = _amount(text)
    if number == 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return number


def _rate(text: str) -> float:
    number = _amount(text)
    if number >= 1:
        raise argparse.ArgumentTypeError("must be from 0 to less than 1")
    return number
