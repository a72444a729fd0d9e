"""A thousand nodes that really register: one job for all of them, and a thousand jobs for one node each.

Real are slurmctld, a slurmd for each node, the SDK, the local cloud's server and the daemon; a host is a process that
boots in a second (`tests.autoscaler.cluster_harness`). So what is measured is everything but the boot. The nodes
take 45 to 50 s of processor time of this machine, which no real controller shares with its nodes: with two processors
that alone is 25 s until all jobs run. The processor time of the daemon depends less on what else runs.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from tests.autoscaler.cluster_harness import LAUNCH, ClusterHarness, HarnessPool

NODES = 1000
# Neither of the two jobs may take longer; it needs about a tenth of that.
_LIMIT = 420.0
_TIMES = {"tick": 10.0, "busy_tick": 1.0, "listing_lag": 120.0, "launch_deadline": 600.0, "join_deadline": 300.0}
_EVERY = 1.0


class _Watch:
    """Observed once a second, so that observing costs little."""

    def __init__(self, harness: ClusterHarness) -> None:
        self.harness, self.began, self.memory = harness, time.monotonic(), 0
        self.marks: dict[str, float] = {}

    @property
    def passed(self) -> float:
        return time.monotonic() - self.began

    def until(self, *marks: str) -> None:
        """Note when each of these was first seen."""
        while len(self.marks) < len(marks) and self.passed < _LIMIT:
            seen = self._look()
            self.marks.update({mark: self.passed for mark in marks if seen.get(mark) and mark not in self.marks})
            self.memory = max(self.memory, _resident(self.harness.daemon_pid))
            time.sleep(_EVERY)

    def _look(self) -> dict[str, bool]:
        jobs = self.harness.slurm_harness.run("squeue", "-h", "-r", "-o", "%T").stdout.split()
        return {
            "asked for": len(self.harness.events("launched")) >= NODES,
            "registered": sum(map(_in_service, self.harness.flags("big").values())) >= NODES,
            "running": set(jobs) == {"RUNNING"},
        }


def _in_service(flags: set[str]) -> bool:
    return not any(word.startswith("POWER") or word in ("DOWN", "NOT_RESPONDING") for word in flags)


def _resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def _processor_seconds(pid: int) -> float:
    """Of a process and its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _ticks(harness: ClusterHarness) -> tuple[float, float]:
    """The number of reconcile passes, and the seconds that all of them took, by the daemon's metrics."""
    import urllib.request

    (event,) = harness.events("metrics")[-1:]
    with urllib.request.urlopen(f"http://{event['address']}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    values = [re.search(rf"^\S*loop_seconds_{part} (\S+)$", text, re.MULTILINE) for part in ("count", "sum")]
    count, total = (float(found.group(1)) if found else 0.0 for found in values)
    return count, total


def run(what: str) -> None:
    """One measurement: "one job" or "many jobs"."""
    pool = HarnessPool("big", NODES, names=NODES)
    slurm_harness = {"suspend_time": 600, "suspend_timeout": 30, "resume_timeout": 600}
    with ClusterHarness([pool], times=_TIMES, slurm_harness=slurm_harness, subnet="10.77.0.0/20") as harness:
        harness.until("the daemon looks", lambda: harness.events("metrics"))
        looks, seconds = _ticks(harness)
        used = _processor_seconds(harness.daemon_pid)
        watch = _Watch(harness)
        if what == "one job":
            harness.sbatch("big", NODES, script="sleep 600")
        else:
            # an array is one request to slurmctld, and a thousand jobs to everybody after it
            harness.sbatch("big", 1, f"--array=1-{NODES}", script="sleep 600")
        watch.until("asked for", "registered", "running")
        more, longer = _ticks(harness)
        calls = harness.calls("big", LAUNCH)
        print(f"{what}, {NODES} nodes")
        for mark, at in watch.marks.items():
            print(f"  {mark:<32}{at:8.1f} s after sbatch")
        print(f"  launches: {dict(calls)}")
        print(f"  looks: {more - looks:.0f}, of {(longer - seconds) / max(1.0, more - looks):.2f} s on average")
        print(f"  processor time of the daemon    {_processor_seconds(harness.daemon_pid) - used:8.1f} s")
        print(f"  memory of the daemon            {watch.memory / 2**20:8.0f} MiB at most")


def main(runs: int = 1) -> None:
    """Both measurements."""
    for _ in range(runs):
        for what in ("one job", "many jobs"):
            run(what)
