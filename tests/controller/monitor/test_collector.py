"""Series of Slurm and their limits, answers that are old, and the page as Prometheus reads it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.http_server import MetricsServer
from gpucluster.controller.monitor import slurm_metrics, targets
from gpucluster.controller.monitor.collector import ElasticNodes, Lists, SlurmCollector, SlurmQueries
from gpucluster.controller.monitor.prometheus import Prometheus
from gpucluster.controller.monitor.settings import MonitorSettings, ScrapedHost
from gpucluster.node_agent.errors import Failed
from tests.controller.monitor.real_prometheus import prometheus
from tests.controller.monitor.slurm_lines import SDIAG, SETTINGS, groups, job, node_line
from tests.node_agent.exposition import having, of, series
from tests.waiting import PATIENCE_S, wait_for


class Answers(SlurmQueries):
    """A double of Slurm's commands: what they print, or a fault. It proves nothing about Slurm."""

    def __init__(self, jobs: list[tuple[str, ...]], nodes: str = "", fault: str = "") -> None:
        super().__init__()
        self._jobs, self._nodes, self.fault = jobs, nodes, fault

    def nodes(self) -> str:
        return self._said(self._nodes)

    def jobs(self, word: str) -> str:
        return self._said("".join(word.join(row) + word * 2 + "\n" for row in self._jobs))

    def scheduler(self) -> str:
        return self._said(SDIAG)

    def _said(self, text: str) -> str:
        if self.fault:
            raise Failed(self.fault)
        return text


def test_series_have_limits_and_what_is_left_out_is_counted() -> None:
    rows = [job(number, user=f"user{number}") for number in range(1, 7001)]
    rows += [job(number, tasks=str(number)) for number in range(10_001, 60_001)]
    rows.append(job(99_999, "PENDING", tasks="0-99999"))
    collected = SlurmCollector(SETTINGS, Answers(rows, node_line("gpu-1", "IDLE")))
    collected.jobs()
    found = series(collected.page().decode())
    infos = having(found, "gpucluster_slurm_job_info")
    assert len(infos) == slurm_metrics.MOST_JOBS
    # What had a series keeps it: jobs before tasks of arrays, old before new.
    assert dict(next(iter(infos)))["job_id"] == "1"
    assert of(found, "gpucluster_slurm_jobs_left_out") == 7000 + 50_000 - slurm_metrics.MOST_JOBS
    assert len(having(found, "gpucluster_slurm_user_jobs")) == slurm_metrics.MOST_USERS
    assert (of(found, "gpucluster_slurm_users_left_out") or 0) > 0
    jobs = {dict(labels)["state"]: value for labels, value in having(found, "gpucluster_slurm_jobs").items()}
    assert jobs == {"running": 57_000, "pending": 100_000}
    assert len(found) < 6100


def test_answers_that_are_old_are_not_shown_and_the_wall_clock_does_not_matter() -> None:
    now = [1000.0]
    slurm = Answers([job(1)], node_line("gpu-1", "IDLE"))
    collected = SlurmCollector(SETTINGS, slurm, clock=lambda: now[0])
    collected.nodes()
    collected.jobs()
    assert "gpucluster_slurm_up 1\n" in collected.page().decode()
    slurm.fault = "slurmctld hangs"
    collected.nodes()
    now[0] += 70
    page = collected.page().decode()
    assert "gpucluster_slurm_up 0\n" in page
    assert 'gpucluster_slurm_age_seconds{query="nodes"} 70' in page
    now[0] += 10
    assert [line for line in collected.page().decode().splitlines() if line[0] != "#"] == ["gpucluster_slurm_up 0"]


def test_what_is_optional_is_scraped_where_a_program_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        hosts = (
            ScrapedHost("with", "127.0.0.1", "p", "S", ("node", "dcgm")),
            ScrapedHost("without", "127.0.0.2", "p", "S", ("dcgm",)),
        )
        lists = Lists(
            MonitorSettings(True, 30, {"node": 9100, "dcgm": port}, hosts, optional=frozenset({"dcgm"})), tmp_path
        )
        lists.write()
        assert groups(tmp_path, "dcgm") == {}
        lists.look()
        assert set(groups(tmp_path, "dcgm")) == {"with"}
        assert set(groups(tmp_path, "node")) == {"with"}


@pytest.mark.slow
def test_prometheus_and_promtool_read_the_page_with_the_worst_names(tmp_path: Path) -> None:
    names = ['a"b\\c|d\ne{f="g"} 1', "\x00\x01\x1b[31m", "\ufffd\ufffd", "x" * 5000, "# HELP y", ""]
    rows = [job(number, name=name) for number, name in enumerate(names)]
    collected = SlurmCollector(SETTINGS, Answers(rows, node_line("gpu-1", "DOWN")))
    collected.nodes()
    collected.jobs()
    page = collected.page()
    seen = [dict(labels)["name"] for labels in having(series(page.decode()), "gpucluster_slurm_job_info")]
    assert seen[0] == names[0]
    assert seen[3] == "x" * slurm_metrics.MOST_LETTERS
    assert seen[1] == "\ufffd\ufffd\ufffd[31m"
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("this machine has no promtool")
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)
    assert b"error while" not in done.stderr, done.stderr
    server = MetricsServer(("127.0.0.1", 0), collected.page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    try:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE_S)
        scrape = f"""
scrape_configs:
- job_name: slurm
  scrape_interval: 1s
  honor_labels: true
  static_configs: [{{targets: ["127.0.0.1:{port}"], labels: {{node: ctl}}}}]
"""
        with prometheus(tmp_path, scrape) as running:
            # Each waits: where a busy machine does not answer a scrape in time, the series end until the next one.
            def scraped(name: str) -> Any:
                return wait_for("a scrape", lambda: running.get(f"/api/v1/query?query={name}")["result"])

            found = scraped("gpucluster_slurm_job_info")
            assert {each["metric"]["name"] for each in found if "name" in each["metric"]} == set(seen) - {""}
            (drained,) = scraped("gpucluster_slurm_node_drained")
            assert drained["metric"]["node"] == "gpu-1"
    finally:
        server.shutdown()
        server.server_close()


METRICS = """\
gpucluster_last_success_timestamp {looked}
gpucluster_elastic_node_info{{node="gpu-e1",pool="gpu",address="10.0.1.7"}} 1
gpucluster_elastic_node_info{{node="stranger",pool="gpu",address="10.0.1.8"}} 1
"""


@pytest.mark.slow
def test_with_kubernetes_prometheus_itself_reports_which_elastic_nodes_there_are(tmp_path: Path) -> None:
    """A real Prometheus, which scrapes a page with the series of the autoscaler."""
    shown = {"text": METRICS.format(looked=0)}
    folder = tmp_path / "lists"
    folder.mkdir()

    def scraped() -> str:
        return (folder / "targets-node.json").read_text()

    asked = f"/api/v1/query?query={targets.ELASTIC_NODES}"
    page = MetricsServer(("127.0.0.1", 0), lambda: bytes(shown["text"], "ascii"))
    port = page.server_address[1]
    threading.Thread(target=page.serve_forever, daemon=True).start()
    jobs = [{"job_name": "autoscaler", "honor_labels": True, "scrape_interval": "1s", "scrape_timeout": "1s",
             "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"node": "ctl"}}]}]  # fmt: skip
    with prometheus(tmp_path, json.dumps({"scrape_configs": jobs})) as running:
        lists = Lists(SETTINGS, folder)
        lists.write()
        looking = ElasticNodes(Prometheus(port=running.port), lists.update)
        wait_for("a scrape", lambda: running.get(asked)["result"])
        looking.look()
        # An autoscaler that has not looked yet reports nothing of any node.
        assert "gpu-e1" not in scraped()
        shown["text"] = METRICS.format(looked=1_000_000)
        wait_for("the node", lambda: looking.look() and "10.0.1.7:9100" in scraped())
        assert '"shape": "BM"' in scraped()
        assert "10.0.1.8" not in scraped()
        page.shutdown()
        page.server_close()
        wait_for("the end of the series", lambda: not running.get(asked)["result"])
        looking.look()
        assert "10.0.1.7:9100" in scraped()
    # Without Prometheus the lists stay.
    looking.look()
    assert "10.0.1.7:9100" in scraped()
