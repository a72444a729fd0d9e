"""The autoscaler's numbers: one decision about a large cluster, a hook of Slurm, and the simulation of long traces.

Subcommands of benchmarks/run.py; they need no cloud and no Slurm.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

from gpucluster.autoscaler.daemon import hooks
from gpucluster.autoscaler.decide import plan
from gpucluster.autoscaler.decide.types import ClaimState, CloudInstance, Job, Memory, Node, NodeClaim, Observation
from gpucluster.autoscaler.policy import Policy
from gpucluster.autoscaler.simulation.simulator import simple_policy, simulate
from gpucluster.autoscaler.simulation.traces import Trace, TraceJob

NODES = JOBS = 10_000
NOW = 1_000_000.0
_SERVICE, _COMING, _OFF = (
    {"CLOUD", "ALLOCATED"},
    {"CLOUD", "ALLOCATED", "POWERING_UP"},
    {"CLOUD", "IDLE", "POWERED_DOWN"},
)


def _waiting(first: int, count: int) -> dict[str, Job]:
    return {
        str(number): Job(str(number), str(number), "PENDING", "Resources", ("compute",), (), 8, priority=number)
        for number in range(first, first + count)
    }


def _standing(policy: Policy, names: list[str]) -> tuple[Observation, Memory]:
    """Every node runs a job of eight, and ten thousand jobs wait."""
    memory = Memory(id="bench", node_count=len(names))
    jobs = _waiting(1_000_000, JOBS)
    claims, instances = {}, []
    for index, name in enumerate(names):
        gang, instance = str(index // 8 + 1), f"ocid1.instance.{index}"
        claims[name] = NodeClaim(name, "compute", 1, memory.token(name, 1), ClaimState.UP, NOW, NOW, (gang,), instance)
        instances.append(CloudInstance(instance, name, "compute", 1, "RUNNING", NOW))
        if index % 8 == 0:
            held = tuple(names[index : index + 8])
            jobs[gang] = Job(gang, gang, "RUNNING", "None", ("compute",), held, len(held))
    nodes = {name: Node(name, "compute", frozenset(_SERVICE), instance_id=claims[name].instance_id) for name in names}
    return Observation(nodes, jobs, tuple(instances)), Memory("bench", claims=claims, node_count=len(names))


def _starting(policy: Policy, names: list[str]) -> tuple[Observation, Memory]:
    """Every node powers up for a job of eight at once, and ten thousand jobs wait: the largest plan there is."""
    jobs = _waiting(1_000_000, JOBS)
    for index in range(0, len(names), 8):
        gang, held = str(index // 8 + 1), tuple(names[index : index + 8])
        jobs[gang] = Job(gang, gang, "CONFIGURING", "None", ("compute",), held, len(held))
    nodes = {name: Node(name, "compute", frozenset(_COMING)) for name in names}
    return Observation(nodes, jobs, ()), Memory("bench", node_count=len(names))


def _asleep(policy: Policy, names: list[str]) -> tuple[Observation, Memory]:
    """Every node is off, and ten thousand jobs wait for something else."""
    nodes = {name: Node(name, "compute", frozenset(_OFF)) for name in names}
    return Observation(nodes, _waiting(1, JOBS), ()), Memory("bench", node_count=len(names))


def autoscaler_tick(runs: int) -> None:
    """One `decide` with 10,000 nodes and 10,000 waiting jobs: median seconds, and the memory that it takes at most."""
    policy = simple_policy(NODES)
    names = [f"compute-e{number}" for number in range(1, NODES + 1)]
    for case, what in ((_asleep, "all off"), (_standing, "all in service"), (_starting, "all power up at once")):
        observation, memory = case(policy, names)
        times = []
        for _ in range(max(runs, 3)):
            begin = time.perf_counter()
            decided = plan.decide(observation, memory, policy, NOW)
            times.append(time.perf_counter() - begin)
        tracemalloc.start()
        plan.decide(observation, memory, policy, NOW)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        took = statistics.median(times) * 1000
        print(f"{what:<24}{took:8.0f} ms{peak / 2**20:8.1f} MiB at most{len(decided.actions):8} actions")


def _trace(jobs: int, nodes: int) -> Trace:
    """Jobs of one to sixteen nodes that keep two thirds of the nodes busy."""
    dice = random.Random(1)
    sizes, mean = [1, 1, 1, 1, 2, 2, 4, 8, 16], 3600.0
    gap = statistics.mean(sizes) * mean / (nodes * 0.66)
    made, now = [], 0.0
    for _ in range(jobs):
        now += dice.expovariate(1 / gap)
        seconds = dice.expovariate(1 / mean) + 30
        made.append(TraceJob(now, dice.choice(sizes), seconds, seconds * dice.uniform(1, 4)))
    return Trace(tuple(made))


def simulation(runs: int) -> None:
    """Traces of 1,000, 10,000 and 100,000 jobs on 200 nodes: seconds, jobs a second, reconcile passes."""
    for jobs in (1_000, 10_000, 100_000):
        trace = _trace(jobs, 200)
        times = []
        for _ in range(runs if jobs < 100_000 else 1):
            begin = time.perf_counter()
            report = simulate(trace, simple_policy(200))
            times.append(time.perf_counter() - begin)
        took = statistics.median(times)
        print(
            f"{jobs:>7} jobs, {report.span_hours / 24:5.1f} days{took:8.1f} s{jobs / took:8.0f} jobs/s"
            f"{report.looks:9} looks{report.launches:8} launches"
        )


def hook(runs: int) -> None:
    """A call of Slurm's hook for 2,000 nodes and their jobs, as a process: at most 0.2 s, because slurmctld waits."""
    with tempfile.TemporaryDirectory(prefix="gpucluster-bench-") as name:
        folder = Path(name)
        (folder / "spool").mkdir()
        shutil.copyfile(hooks.__file__, folder / "resume")
        (folder / "hooks.json").write_text(json.dumps({"spool": str(folder / "spool"), "poke": str(folder / "poke")}))
        jobs = [{"job_id": n, "nodes_resume": f"gpu-e{n}", "nodes_alloc": f"gpu-e{n}"} for n in range(2000)]
        (folder / "jobs").write_text(json.dumps({"jobs": jobs, "all_nodes_resume": "gpu-e[0-1999]"}))
        argv = [sys.executable, "-IS", str(folder / "resume"), "gpu-e[0-1999]"]
        times = []
        for _ in range(max(runs, 5)):
            begin = time.perf_counter()
            subprocess.run(argv, env={"SLURM_RESUME_FILE": str(folder / "jobs")}, check=True)
            times.append(time.perf_counter() - begin)
        print(f"a hook for 2,000 nodes: median {statistics.median(times):.3f} s, at most {max(times):.3f} s")
