"""From `sbatch` to the first line of the job, on the local cloud: what the autoscaler adds to an instance's own boot.

A subcommand of benchmarks/run.py. Every figure is of real parts: sbatch on the controller, real Slurm, the daemon, the
SDK, the API, containers that boot systemd and cloud-init. For comparison, on the same cluster in the same run, the way
of a stack without a daemon: a look at the queue each full minute, and then Terraform and site.yml for the new nodes.
"""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from description import cluster_yml  # type: ignore[import-not-found]  # beside this file

from gpucluster import load
from gpucluster.cloud.providers import open_cloud
from gpucluster.events import ignore
from gpucluster.paths import ClusterPaths

IDLE_TIMEOUT = 15
MOST = 16
POOLS = f"""\
elastic: {{shape: BM.GPU4.8, count: 0, max_count: {MOST}, idle_timeout: {IDLE_TIMEOUT}}}
fixed: {{shape: BM.GPU4.8, count: FIXED}}
"""
# From before sbatch to the first line, and when sshd of each node was ready, all by the one clock of this machine.
_JOB = """\
rm -f began ready
from=$(date +%s.%N)
cat > job <<'END'
#!/bin/bash
date +%s.%N > began
srun --output=ready bash -c 'read up _ < /proc/uptime
  echo "$(date +%s.%N) $up $(systemctl show -P ActiveEnterTimestampMonotonic ssh)"'
END
job=$(sbatch --parsable --partition=PARTITION --nodes=NODES --output=/dev/null job)
while [ -n "$(squeue --noheader --jobs=$job)" ]; do sleep 0.5; done
echo $from $(cat began)
cat ready
"""


class Bench(Protocol):
    """A scratch cluster (benchmarks/run.py): its folder and the command."""

    folder: Path
    env: dict[str, str]

    def command(self, description: str, *words: str) -> dict[str, Any]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Took:
    """One job: from sbatch to its first line, and of that from the first launch to the last sshd. Seconds."""

    total: float
    boot: float

    @property
    def added(self) -> float:
        return self.total - self.boot


class _Cluster:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._fixed = 1

    def run(self, *words: str) -> None:
        self._bench.command(cluster_yml(POOLS.replace("FIXED", str(self._fixed))), *words)

    def resize_fixed(self, nodes: int) -> None:
        self._fixed = nodes
        self.run("apply")

    def ssh(self, user: str, command: str) -> str:
        state = self._bench.folder / ".gpucluster" / "ssh"
        identity = ["-i", str(state / f"{user}_ed25519"), "-l", user] if user else []
        argv = ["ssh", "-F", str(state / "config"), *identity, "bench-controller", "bash -c " + shlex.quote(command)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=True, stdin=subprocess.DEVNULL)
        return done.stdout.strip()

    def job(self, partition: str, nodes: int) -> Took:
        said = self.ssh("alice", _JOB.replace("PARTITION", partition).replace("NODES", str(nodes))).splitlines()
        begin, end = map(float, said[0].split())
        ready = [now - up + since / 1e6 for now, up, since in (map(float, line.split()) for line in said[1:])]
        launched = [at for at in self._launches() if at > begin]
        return Took(end - begin, max(ready) - min(launched) if launched else 0.0)

    def _launches(self) -> list[float]:
        """When the cloud accepted the instances of the elastic pool."""
        file = self._bench.folder / "cluster.yml"
        access = open_cloud(load(file), ClusterPaths.of(file), ignore).access()
        listed = access.client("core", "ComputeClient").list_instances(access.compartment_id, limit=1000).data
        return [one.time_created.timestamp() for one in listed if "node" in one.freeform_tags]

    def empty(self) -> None:
        """Wait until the elastic nodes are gone, and Slurm would use their names again."""
        deadline = time.monotonic() + 300
        while self.ssh("", "sinfo --noheader -p elastic -N -o %T | grep -vc '^idle~$' || true") != "0":
            if time.monotonic() > deadline:
                sys.exit("the elastic nodes do not go")
            time.sleep(1)


def _elastic(cluster: _Cluster, nodes: int, runs: int) -> Took:
    took = []
    for _ in range(runs):
        cluster.empty()
        took.append(cluster.job("elastic", nodes))
    return Took(statistics.median(one.total for one in took), statistics.median(one.boot for one in took))


def _by_the_minute(cluster: _Cluster, nodes: int) -> float:
    """On average half a minute until an operator notices, then Terraform and site.yml for the nodes, then the job."""
    begin = time.monotonic()
    cluster.resize_fixed(1 + nodes)
    cluster.job("fixed", nodes)
    took = time.monotonic() - begin
    cluster.resize_fixed(1)
    return 30 + took


def autoscaler_speed(runs: int, new_bench: Callable[[], Bench]) -> None:
    """Two and sixteen nodes, without and with a baked image, and by the minute."""
    bench = new_bench()
    os.environ["GPUCLUSTER_HOME"] = bench.env["GPUCLUSTER_HOME"]  # for what we ask the cloud ourselves
    print("seconds from sbatch to the first line of the job; boot: from the first launch to the last sshd", flush=True)
    totals: dict[int, list[float]] = {2: [], MOST: []}
    try:
        cluster = _Cluster(bench)
        cluster.run("apply")
        for image in ("none", "baked"):
            if image == "baked":
                cluster.run("image", "bake", "elastic")
            for nodes, seen in totals.items():
                took = _elastic(cluster, nodes, runs)
                seen.append(took.total)
                print(f"{nodes:>3} nodes, image {image:<6}{took.total:7.1f}   boot {took.boot:6.1f}", end="")
                print(f"   added {took.added:6.1f}", flush=True)
        for nodes, seen in totals.items():
            minutes = _by_the_minute(cluster, nodes)
            ratios = ", ".join(f"{minutes / total:.1f}" for total in seen)
            print(
                f"{nodes:>3} nodes, by the minute {minutes:6.1f}: {ratios} x as long as without and with an image",
                flush=True,
            )
    finally:
        bench.close()
