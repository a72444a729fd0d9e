"""How long things take: medians and ratios, printed, never asserted.

    .venv/bin/python benchmarks/run.py [cli] [apply] [verify] [scale] [autoscaler-tick] [hook] [simulate]
                                   [autoscaler-scale] [autoscaler-speed] [fabric] [check] [exporters] [nccl]
                                   [slurm-exporter] [scrape] [kubernetes] [failover]
                                   [--runs N]

cli    --help, `import gpucluster`, and `job render` without and with a cluster file (at most 0.3 s), against bare
       Python and against `import oci`.
apply  the first apply (cached image), the second (nothing to do) and destroy; where the time goes.
verify `verify --level quick` on two nodes, against an apply that has nothing to do (at most 15 s).
scale  the same pool with 2 and with 16 nodes: seconds for each further node.
check  `gpucluster-agent check --profile prolog` on this machine: without GPUs, and with those that it has.
exporters  what a scrape costs a node: our exporter with 16 RDMA devices, and node_exporter if it is installed.

Only when they are named, because most take minutes (the first three start nothing but a hook):

autoscaler-tick  one decision of the autoscaler about 10,000 nodes and 10,000 waiting jobs.
hook             a call of Slurm's hook for 2,000 nodes (at most 0.2 s).
simulate         traces of up to 100,000 jobs.
autoscaler-scale  a thousand slurmd of real Slurm: one job for all of them, and a thousand jobs.
fabric            10,000 simulated networks with faults: what the search for them needs, and whether it finds all.
nccl              an output of nccl-tests with 10 MB of NCCL's own lines: cleaning it of secrets, and judging it.
slurm-exporter    Slurm's metrics with 10,000 nodes and 10,000 jobs.
scrape            Prometheus with 1,000 hosts: its processor time and memory.
kubernetes        a control plane and two nodes (at most 120 s), and a pod that waits for its node, which joins in
                  at most 20 s after its boot. Builds Kubernetes first where the cache has none.
failover          the controller gives way to its standby (at most 60 s).
autoscaler-speed  from sbatch to a job's first line on nodes that have to come, 2 and 16 of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autoscaler_speed import autoscaler_speed  # type: ignore[import-not-found]  # beside this file
from autoscaler_tick import autoscaler_tick, hook, simulation  # type: ignore[import-not-found]  # beside this file
from bench import Bench  # type: ignore[import-not-found]  # beside this file


def _median(argv: list[str], runs: int, *, check: bool = True) -> float:
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        subprocess.run(argv, check=check, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


_RENDER = ("job", "render", "nccl_tests", "--shape", "BM.GPU4.8", "--set", "image=/images/i.sqsh")
_ROOT = Path(__file__).resolve().parent.parent
_RENDER_FOR_FILE = ("--file", str(_ROOT / "inventories/local/cluster.yml"), "job", "render", "mpi_allreduce")


def cli(runs: int) -> None:
    """How long starting takes."""
    python = sys.executable
    bare = _median([python, "-c", "pass"], runs)
    rows = {
        "python -c pass": bare,
        "python -c 'import gpucluster'": _median([python, "-c", "import gpucluster"], runs),
        "gpucluster --help": _median([str(Path(python).parent / "gpucluster"), "--help"], runs),
        "python -m gpucluster --help": _median([python, "-m", "gpucluster", "--help"], runs),
        "gpucluster job render": _median([python, "-m", "gpucluster", *_RENDER], runs),
        "gpucluster job render, a file": _median([python, "-m", "gpucluster", *_RENDER_FOR_FILE], runs),
        "python -c 'import oci'": _median([python, "-c", "import oci"], runs),
    }
    for name, took in rows.items():
        print(f"{name:<34}{took * 1000:8.0f} ms{took / bare:8.1f} x bare")


def _where(result: dict[str, Any]) -> str:
    phases = ", ".join(f"{name} {took:.1f}" for name, took in result["phases"].items())
    roles = ", ".join(f"{name} {took:.1f}" for name, took in result["roles"].items())
    return f"    phases: {phases}\n    roles:  {roles or '-'}"


def apply(runs: int) -> None:
    """First apply, second apply, destroy."""
    walls: dict[str, list[float]] = {"first apply": [], "second apply": [], "destroy": []}
    for _ in range(runs):
        bench = Bench()
        try:
            bench.run(2, "local", "start")
            first = bench.run(2, "apply")
            second = bench.run(2, "apply")
            walls["first apply"].append(first["wall"])
            walls["second apply"].append(second["wall"])
            walls["destroy"].append(bench.run(2, "destroy", "--delete-data")["wall"])
        finally:
            bench.close()
    for name, times in walls.items():
        print(f"{name:<34}{statistics.median(times):8.1f} s   (of {len(times)}: {min(times):.1f} to {max(times):.1f})")
    print(f"second / first{statistics.median(walls['second apply']) / statistics.median(walls['first apply']):28.2f}")
    print(f"  the last first apply:\n{_where(first)}\n  the last second apply:\n{_where(second)}")
    print(f"    changed tasks of the second: {second['changed']}")
    print("\n# For gpucluster/lifecycle/first_apply.toml, if nothing else ran on this machine:")
    print(_first_apply_row(walls["first apply"]))


def _first_apply_row(seconds: list[float]) -> str:
    """The measured first applies, as that file has them."""
    listed = ", ".join(f"{took:.1f}" for took in seconds)
    what = f"benchmarks/run.py apply --runs {len(seconds)}, {os.cpu_count()} processors, cached image"
    today = datetime.now(UTC).date()
    return f'[[measured]]\ncloud = "local"\nnodes = 2\nseconds = [{listed}]\ndate = {today}\nsource = "{what}"'


def verify(runs: int) -> None:
    """Checks alone, of a cluster that is as it should be."""
    bench = Bench()
    try:
        bench.run(2, "apply")
        applied = statistics.median(bench.run(2, "apply")["wall"] for _ in range(runs))
        results = [bench.run(2, "verify") for _ in range(runs)]
    finally:
        bench.close()
    walls = [result["wall"] for result in results]
    print(f"{'verify':<34}{statistics.median(walls):8.1f} s   (of {runs}: {min(walls):.1f} to {max(walls):.1f})")
    print(f"verify / second apply{statistics.median(walls) / applied:21.2f}\n  the last verify:\n{_where(results[-1])}")


def scale(runs: int) -> None:
    """2 nodes, then 16."""
    per_node = []
    for _ in range(runs):
        bench = Bench()
        try:
            small = bench.run(2, "apply")
            large = bench.run(16, "apply")
            per_node.append(large["wall"] / 14)
        finally:
            bench.close()
    print(f"from 2 to 16 nodes, per node      {statistics.median(per_node):8.2f} s")
    print(f"  2 nodes:\n{_where(small)}\n  2 -> 16 nodes ({large['wall']:.1f} s):\n{_where(large)}")


def _monitoring(name: str) -> None:
    """What monitoring costs."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from benchmarks import monitoring

    getattr(monitoring, name)()


def autoscaler_scale() -> None:
    """One job for a thousand nodes, and a thousand jobs."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the cluster harness is in tests
    from benchmarks.autoscaler_scale import main as measure

    measure()


def fabric(cases: int = 10_000) -> None:
    """The search for bad nodes, on simulated networks with planted faults."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the simulator is in tests
    from benchmarks.fabric_search import main as measure

    measure(cases)


def check(runs: int) -> None:
    """A prolog's checks, as the program that hosts have: an archive."""
    from gpucluster.artifacts import agent_archive
    from gpucluster.node_agent.checks.expected import NodeExpectation

    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    bare = NodeExpectation(
        shape="this machine", hardware_emulated=False, gpus_emulated=False, gpus=0, gpu_vendor="", gpu_model="",
        gpu_device_files=(), gpu_pcie_width=0, nvlinks=0, nvlink_gb_per_s=0, fabric_manager=False,
        dcgm=False, rdma_devices=(), rdma_link_gbps=0, drives=0, memory_mib=0, mounts=("/",), local_disk="",
        services=(), mig=(), off=(),
    )  # fmt: skip
    files = tuple(f"/dev/nvidia{index}" for index in range(gpus))
    with_gpus = replace(bare, gpus=gpus, gpu_vendor="nvidia", gpu_device_files=files, gpu_pcie_width=16, nvlinks=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "gpucluster-agent").write_bytes(agent_archive.of_node())
        for what, expected, aim in (("prolog without GPUs", bare, 0.5), (f"prolog, {gpus} GPUs", with_gpus, 2.0)):
            (folder / "checks.json").write_text(json.dumps(expected.to_dict()))
            argv = [sys.executable, "-I", str(folder / "gpucluster-agent"), "check", "--profile", "prolog"]
            argv += [f"--expected={folder / 'checks.json'}", f"--state={folder / 'state'}"]
            if expected.gpus or expected is bare:
                print(f"{what:<34}{_median(argv, runs, check=False):8.2f} s   (aim: {aim} s)")


def exporters(runs: int) -> None:
    """The processor time of a scrape, as a part of a core at one scrape every 15 s."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the role's command line is rendered in tests
    from benchmarks.exporters import main as measure

    measure(runs)


def nccl(runs: int) -> None:
    """What a large output of nccl-tests costs."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the outputs are in tests
    from benchmarks.nccl_log import main as measure

    measure(runs)


def kubernetes(runs: int) -> None:
    """From nothing to two ready nodes, and from a pod to its node."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the cluster and its programs are in tests
    from benchmarks.kubernetes_speed import main as measure

    measure(runs, _where)


def failover(runs: int) -> None:
    """From a controller to its standby."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the cluster is in tests
    from benchmarks.failover import main as measure

    measure(runs)


#: By its name, what runs a benchmark; its argument is the wanted number of runs.
_BENCHMARKS: dict[str, Callable[[int], None]] = {
    "cli": lambda runs: cli(max(runs * 5, 15)),
    "apply": apply,
    "verify": verify,
    "scale": lambda _runs: scale(1),
    "autoscaler-tick": autoscaler_tick,
    "hook": hook,
    "simulate": lambda _runs: simulation(1),
    "autoscaler-scale": lambda _runs: autoscaler_scale(),
    "slurm-exporter": lambda _runs: _monitoring("slurm_exporter"),
    "scrape": lambda _runs: _monitoring("scrape"),
    "autoscaler-speed": lambda runs: autoscaler_speed(runs, Bench),
    "check": lambda runs: check(max(runs, 5)),
    "exporters": lambda runs: exporters(runs * 10),
    "fabric": lambda _runs: fabric(),
    "nccl": nccl,
    "kubernetes": kubernetes,
    "failover": failover,
}
_BY_DEFAULT = ("cli", "apply", "verify", "scale")


def main() -> None:
    """Run the benchmarks that were named, in their order; without any, those of the command itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", choices=[*_BENCHMARKS, []], default=[])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    for name in options.which or _BY_DEFAULT:
        _BENCHMARKS[name](options.runs)


if __name__ == "__main__":
    main()
