"""What a scrape costs a node: processor time of our exporter and of the real node_exporter, started as the role does.

The RDMA devices are a tree of files: what the drivers of real devices do for each counter is not in it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from gpucluster.node_agent.exporter.collect import Place

DEVICES, COUNTERS, INTERVAL_S = 16, 60, 15.0
_TICKS = os.sysconf("SC_CLK_TCK")


def tree(root: Path) -> None:
    """A node with 16 RDMA devices of 60 counters, and a job on 8 GPUs."""
    for device in range(DEVICES):
        port = root / f"sys/class/infiniband/mlx5_{device}/ports/1"
        for number in range(COUNTERS):
            file = port / ("counters" if number < 20 else "hw_counters") / f"counter_with_a_name_{number}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{10**12 + number}\n")
        (port / "state").write_text("4: ACTIVE\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (root / "jobs").mkdir()
    (root / "jobs/12.json").write_text(
        '{"version": 1, "job_id": "12", "gpus": ["0", "1", "2", "3", "4", "5", "6", "7"]}'
    )


def spent(pid: int) -> float:
    """Processor seconds of a process and its children."""
    total = 0.0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(name) == pid or int(fields[1]) == pid:
            total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def scrape(argv: list[str], port: int, runs: int, pause: float) -> tuple[float, float, int]:
    """Processor seconds of a scrape, its median duration in seconds, and the bytes of the page."""
    started = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"})

    def get() -> bytes:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            data: bytes = answer.read()
        return data

    try:
        size, until = 0, time.monotonic() + 30
        while not size:
            try:
                size = len(get())
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        time.sleep(pause)
        before, took = spent(started.pid), []
        for _ in range(runs):
            begin = time.perf_counter()
            get()
            took.append(time.perf_counter() - begin)
            time.sleep(pause)
        return (spent(started.pid) - before) / runs, statistics.median(took), size
    finally:
        started.terminate()
        started.wait()


def main(runs: int) -> None:
    """Print both."""
    from tests.agent_program import install
    from tests.ansible.test_exporters import UNITS, command, known

    def say(name: str, found: tuple[float, float, int]) -> None:
        print(
            f"{name:<34}{found[0] * 1000:8.1f} ms of a core a scrape, {found[0] / INTERVAL_S:8.3%} at one every "
            f"{INTERVAL_S:g} s; it takes {found[1] * 1000:.0f} ms and {found[2] / 1024:.0f} KiB"
        )

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        tree(root)
        agent = install(root)
        options = [f"--sysfs-root={root / 'sys'}", f"--proc-root={Place().proc}", f"--jobs={root / 'jobs'}"]
        argv = [sys.executable, "-I", str(agent), "exporter", "serve", "--listen=127.0.0.1:19500", *options]
        # A page serves all clients for a second.
        say(f"ours, {DEVICES} x {COUNTERS} counters", scrape(argv, 19500, runs, 1.05))
        if shutil.which("prometheus-node-exporter"):
            given = known(monitoring_host_address="127.0.0.1", exporter_ports={"node": 19100})
            given["agent_program"] = str(agent)
            say("node_exporter", scrape(command(UNITS[1], given), 19100, runs, 0.05))
