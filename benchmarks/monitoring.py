"""What monitoring costs: Slurm's metrics with 10,000 nodes and 10,000 jobs, and Prometheus with 1,000 hosts.

Real are slurmctld, its commands and Prometheus. No slurmd runs: the nodes do not answer, and the jobs wait, so that
squeue prints as much as for jobs that run. The 1,000 hosts are addresses of the loopback device (127.0.0.0/8) with one
server behind them, which answers with recorded pages of node_exporter and of our exporter.
"""

from __future__ import annotations

import http.server
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

from gpucluster.controller.monitor.collector import SlurmCollector, SlurmQueries
from gpucluster.controller.monitor.settings import ElasticPool, MonitorSettings
from tests.autoscaler.slurm_harness import SlurmHarness, SlurmPool
from tests.controller.monitor.real_prometheus import prometheus

NODES, JOBS, HOSTS = 10_000, 10_000, 1_000
_SAMPLES = Path(__file__).parents[1] / "tests" / "dashboards" / "samples"
_SUBMIT = (
    f"seq {JOBS} | "
    "xargs -P 4 -n 1 sh -c 'sbatch --hold --output=/dev/null --job-name=job-$1 --wrap=true > /dev/null' sh"
)


def slurm_exporter() -> None:
    """One collection of each kind, and one scrape."""
    settings = MonitorSettings(
        True, 30, {"node": 9100}, elastic={"a": ElasticPool(f"a-e[1-{NODES}]", "BM.GPU4.8", ("node",))}
    )
    extra = {"MaxJobCount": str(2 * JOBS)}
    with SlurmHarness([SlurmPool("a-e", NODES, cloud=False)], extra=extra) as slurm:
        began = time.perf_counter()
        slurm.run("sh", "-c", _SUBMIT, timeout=1200)
        print(f"submitting {JOBS} jobs: {time.perf_counter() - began:.0f} s")
        collected = SlurmCollector(settings, SlurmQueries(slurm.command_prefix))
        for name, collect in (
            ("nodes", collected.nodes),
            ("jobs, scheduler", collected.jobs),
            ("scrape", collected.page),
        ):
            rows = []
            for _ in range(5):
                begun, before = time.perf_counter(), os.times()
                collect()
                after = os.times()
                own = after.user + after.system - before.user - before.system
                asked = after.children_user + after.children_system - before.children_user - before.children_system
                rows.append((time.perf_counter() - begun, own, asked))
            took, own, asked = (statistics.median(column) * 1000 for column in zip(*rows, strict=True))
            print(f"{name:<16}{took:8.0f} ms; processor time: {own:.0f} ms, of Slurm's commands {asked:.0f} ms")
        page = collected.page()
        print(f"{page.count(bytes([10]))} lines, {len(page) / 1e6:.1f} MB; {NODES} nodes, {JOBS} jobs")


def scrape() -> None:
    """Prometheus' processor time and memory for each host, with two exporters every 15 s."""
    samples = {"/node": "node_exporter.prom", "/own": "exporter.prom"}
    now = str(int(time.time())).encode()
    pages = {path: (_SAMPLES / name).read_bytes().replace(b"@NOW@", now) for path, name in samples.items()}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = pages[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler)  # all of 127.0.0.0/8
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        groups = [
            {
                "targets": [f"127.1.{number // 250}.{number % 250 + 1}:{server.server_port}"],
                "labels": {"node": f"gpu-{number}", "pool": "gpu", "shape": "BM.GPU4.8"},
            }
            for number in range(HOSTS)
        ]
        (Path(folder) / "hosts.json").write_text(json.dumps(groups))
        jobs = "\n".join(
            f"- {{job_name: {name[1:]}, metrics_path: {name}, file_sd_configs: [{{files: ['{folder}/hosts.json']}}]}}"
            for name in pages
        )
        text = f"global: {{scrape_interval: 15s}}\nscrape_configs:\n{jobs}\n"
        with prometheus(Path(folder), text) as running:
            time.sleep(30)
            begun, before = time.monotonic(), _cpu(running.process.pid)
            time.sleep(45)
            share = (_cpu(running.process.pid) - before) / (time.monotonic() - begun)
            up = running.get("/api/v1/query?query=count(up==1)")["result"][0]["value"][1]
            status = running.get("/api/v1/status/tsdb")["headStats"]["numSeries"]
            memory = _resident(running.process.pid)
    print(f"{up} of {len(pages) * HOSTS} targets up, {status} series")
    print(f"Prometheus: {share * 100:.1f} % of a core, {share / HOSTS * 1e6:.0f} millionths of a core for each host")
    print(f"memory: {memory / 2**20:.0f} MiB, {memory / HOSTS / 1024:.0f} KiB for each host")
    server.shutdown()


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
