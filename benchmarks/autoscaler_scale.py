"""A thousand nodes that really register: one job for all of them, and a thousand jobs for one node each.

Real are slurmctld, a slurmd for each node, the SDK, the local cloud's server and the daemon; a host is a process that
boots in a second (`tests.autoscaler.cluster_harness`). So what is measured is everything but the boot. The times on
the clock include what no real controller does: it shares this machine with a thousand nodes, with the cloud, and with
this program. So the processor time of each part is printed, too. It depends little on what else runs.
"""

from __future__ import annotations

import contextlib
import json
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
_CONTROLLER = "slurmctld and its prologs"
# The programs of Slurm that are not a node's. The first one starts prologs.
_SLURM = {"slurmscriptd": _CONTROLLER, "slurmctld": _CONTROLLER, "prolog": _CONTROLLER, "munged": _CONTROLLER}
_PARTS = ("the daemon", _CONTROLLER, "the nodes", "the cloud's server", "this program, with what it asks Slurm")


class _Watch:
    """Observed once a second, and only for the next thing that is to happen, so that observing costs little."""

    def __init__(self, harness: ClusterHarness) -> None:
        self.harness, self.began, self.memory = harness, time.monotonic(), 0
        self.marks: dict[str, float] = {}

    @property
    def passed(self) -> float:
        return time.monotonic() - self.began

    def until(self) -> None:
        """Note when each of these was first seen, in their order."""
        for mark, holds in (
            ("asked for", self._launched),
            ("registered", self._registered),
            ("running", self._running),
        ):
            while self.passed < _LIMIT and not holds():
                self.memory = max(self.memory, _resident(self.harness.daemon_pid))
                time.sleep(_EVERY)
            self.marks[mark] = self.passed

    def _launched(self) -> bool:
        return self.harness.daemon_log.read_bytes().count(b'"event": "launched"') >= NODES

    def _registered(self) -> bool:
        lines = self.harness.slurm_harness.run("sinfo", "--noheader", "--format=%D %T").stdout.split("\n")
        states = [line.split() for line in lines if line]
        return sum(int(nodes) for nodes, state in states if state.isalpha()) >= NODES

    def _running(self) -> bool:
        states = self.harness.slurm_harness.run("squeue", "--noheader", "--format=%T").stdout.split()
        return set(states) == {"RUNNING"}


def _resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def _processor_seconds(pid: int | str) -> float:
    """Of a process and its children that have ended; 0 if it has ended itself."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _by_part(harness: ClusterHarness) -> dict[str, float]:
    """Processor seconds of each part until now. Processes of Slurm are those in its container."""
    parts = dict.fromkeys(_PARTS, 0.0)
    parts["the daemon"] = _processor_seconds(harness.daemon_pid)
    parts["the cloud's server"] = _processor_seconds(json.loads((harness.home / "endpoint.json").read_text())["pid"])
    parts["this program, with what it asks Slurm"] = _processor_seconds(os.getpid())
    container = os.readlink(f"/proc/{harness.slurm_harness.pid}/ns/pid")
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and os.readlink(process / "ns/pid") == container:
                name = (process / "comm").read_text().strip()
                parts[_SLURM.get(name, "the nodes")] += _processor_seconds(process.name)
    return parts


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
        used = _by_part(harness)
        watch = _Watch(harness)
        if what == "one job":
            harness.sbatch("big", NODES, script="sleep 600")
        else:
            # an array is one request to slurmctld, and a thousand jobs to every later request
            harness.sbatch("big", 1, f"--array=1-{NODES}", script="sleep 600")
        watch.until()
        now = _by_part(harness)
        more, longer = _ticks(harness)
        calls = harness.calls("big", LAUNCH)
        print(f"{what}, {NODES} nodes")
        for mark, at in watch.marks.items():
            print(f"  {mark:<32}{at:8.1f} s after sbatch")
        print(f"  launches: {dict(calls)}")
        print(f"  looks: {more - looks:.0f}, of {(longer - seconds) / max(1.0, more - looks):.2f} s on average")
        for part in _PARTS:
            print(f"  processor time {part:<42}{now[part] - used[part]:8.1f} s")
        print(f"  memory of the daemon            {watch.memory / 2**20:8.0f} MiB at most")


def main(runs: int = 1) -> None:
    """Both measurements."""
    for _ in range(runs):
        for what in ("one job", "many jobs"):
            run(what)
