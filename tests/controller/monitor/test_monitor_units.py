"""The parts of the monitor that decide: rows of Slurm, series and their limits, lists of targets; and its page."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gpucluster.controller.http_server import MetricsServer
from gpucluster.controller.monitor import slurm_metrics, slurm_text, targets
from gpucluster.controller.monitor.collector import ElasticNodes, Lists, SlurmCollector, SlurmQueries
from gpucluster.controller.monitor.prometheus import Prometheus
from gpucluster.controller.monitor.settings import ElasticPool, MonitorSettings, ScrapedHost
from gpucluster.controller.rules.slurm_nodes import NodeLine, node_flags
from gpucluster.node_agent.errors import Failed
from tests.controller.monitor.real_prometheus import prometheus
from tests.node_agent.exposition import having, of, series
from tests.waiting import PATIENCE_S, wait_for

SETTINGS = MonitorSettings(
    slurm=True,
    interval=30,
    jobs={"node": 9100, "dcgm": 9400},
    hosts=(
        ScrapedHost("ctl", "10.0.0.2", "", "", ("node",)),
        ScrapedHost("gpu-1", "10.0.1.1", "gpu", "BM", ("node", "dcgm")),
    ),
    elastic={"gpu": ElasticPool("gpu-e[1-3]", "BM", ("node", "dcgm"))},
    optional=frozenset({"dcgm"}),
)


def node_line(name: str, state: str, *, gres: str = "gpu:8(S:0-1)", used: str = "gpu:(null):3(IDX:0-1,4)") -> str:
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=1 CPUAlloc=2 CPUEfctv=4 CPUTot=4 CPULoad=0.0 Gres={gres} "
        f"GresDrain=N/A GresUsed={used} NodeAddr=10.0.1.1 OS=Linux 6.1 CPUTot=9 State={state} ThreadsPerCore=1 "
        f"Owner=N/A Reason=a CPUAlloc=7 Gres=gpu:9 b [root@2026-01-01T00:00:00] Comment=CPUTot=3\n"
    )


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


SDIAG = """
*******************************************************
sdiag output at Mon Nov 23 02:41:00 2026 (1795401660)
Server thread count:  3
RPC queue enabled:    0
Agent queue size:     1
DBD Agent queue size: 2

Jobs submitted: 7
Jobs started:   6

Main schedule statistics (microseconds):
\tLast cycle:   1500
\tMean cycle:   900
\tLast queue length: 4

Backfilling stats
\tTotal backfilled jobs (since last slurm start): 5
\tLast cycle: 2500000
\tLast depth cycle: 8

Remote Procedure Call statistics by message type
\tREQUEST_JOB_INFO ( 2003) count:9      ave_time:200    total_time:1800
\tJobs submitted: 99
"""


def job(
    number: int, state: str = "RUNNING", name: str = "n", user: str = "alice", tasks: str = "N/A"
) -> tuple[str, ...]:
    return (str(number), str(number), tasks, "main", state, user, "root", name)


def test_the_numbers_of_a_node_are_its_own_and_not_those_of_its_reason() -> None:
    (row,) = slurm_text.nodes(node_line("gpu-1", "MIXED"))
    assert (row.cpus, row.gpus) == ((2, 4), (3, 8))
    (row,) = slurm_text.nodes(node_line("gpu-1", "IDLE", gres="(null)", used="gpu:0"))
    assert row.gpus == (0, 0)
    (row,) = slurm_text.nodes(node_line("gpu-1", "IDLE", gres="gpu:a100:4,nvme:1,gpu:h100:2", used="gpu:a100:1(IDX:0)"))
    assert row.gpus == (1, 6)


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("7", 1), ("0-99999", 100_000), ("1,3,5-9%2", 7), ("0-10:5", 3), ("", 1), ("0-9,...", 10), ("x", 1)],
)
def test_tasks_of_an_array_are_counted(text: str, tasks: int) -> None:
    assert slurm_text.tasks_of(text) == tasks


def test_sdiag_is_read_up_to_what_users_do() -> None:
    found = slurm_text.scheduler(SDIAG)
    assert found["jobs_submitted_total"] == 7
    assert (found["last_cycle_seconds"], found["backfill_last_cycle_seconds"]) == (0.0015, 2.5)
    assert set(found) <= {name.replace("gpucluster_slurm_scheduler_", "") for name in slurm_metrics.METRICS}
    with pytest.raises(ValueError, match="gone"):
        slurm_text.scheduler("slurmctld is gone")


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("IDLE", "idle"), ("IDLE+CLOUD+POWERED_DOWN", "powered_down"), ("IDLE~", "powered_down"),
        ("MIXED#", "powering_up"),
        ("ALLOCATED+CLOUD+POWERING_UP+POWERED_DOWN", "powering_up"), ("IDLE+POWERING_DOWN", "powering_down"),
        ("DOWN*", "down"), ("IDLE+DRAIN", "drained"), ("ALLOCATED+DRAIN", "draining"),
        ("IDLE*+CLOUD", "not_responding"),
        ("MIXED+COMPLETING", "completing"), ("FUTURE", "unknown"),
    ],
)  # fmt: skip
def test_a_node_has_one_state(state: str, word: str) -> None:
    assert slurm_metrics.state_of(node_flags(state)) == word


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


def node(name: str, state: str, address: str = "10.0.1.9") -> NodeLine:
    return NodeLine(name, node_flags(state), address)


def test_elastic_nodes_are_targets_while_they_are_in_service() -> None:
    nodes = [
        node("gpu-1", "IDLE"), node("gpu-e1", "IDLE+CLOUD"), node("gpu-e2", "IDLE+CLOUD+POWERED_DOWN", "gpu-e2"),
        node("gpu-e3", "ALLOCATED+CLOUD", "gpu-e3"), node("gpu-e9", "IDLE+CLOUD"), node("other", "IDLE"),
    ]  # fmt: skip
    assert [host.name for host in targets.elastic_hosts(SETTINGS, nodes)] == ["gpu-e1"]


def groups(folder: Path, job: str) -> dict[str, list[str]]:
    read = json.loads((folder / f"targets-{job}.json").read_text())
    return {each["labels"]["node"]: each["targets"] for each in read}


def test_lists_outlive_a_restart_a_full_disk_and_a_file_that_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = Lists(SETTINGS, tmp_path)
    lists.update([node("gpu-e1", "IDLE+CLOUD")])
    assert groups(tmp_path, "node") == {
        "ctl": ["10.0.0.2:9100"], "gpu-1": ["10.0.1.1:9100"], "gpu-e1": ["10.0.1.9:9100"]
    }  # fmt: skip
    again = Lists(SETTINGS, tmp_path)
    again.write()
    assert "gpu-e1" in groups(tmp_path, "node")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = {file.name: file.read_text() for file in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(targets, "write", full)
        again.update([])
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == before
    again.update([])
    assert "gpu-e1" not in groups(tmp_path, "node")
    (tmp_path / "targets-node.json").write_text('[{"labels": 3}, null')
    (tmp_path / "targets-old.json").write_text("[]")
    Lists(SETTINGS, tmp_path).write()
    assert set(groups(tmp_path, "node")) == {"ctl", "gpu-1"}
    assert not (tmp_path / "targets-old.json").exists()


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
            wait_for("a scrape", lambda: running.get("/api/v1/query?query=gpucluster_slurm_job_info")["result"])
            found = running.get("/api/v1/query?query=gpucluster_slurm_job_info")["result"]
            assert {each["metric"]["name"] for each in found if "name" in each["metric"]} == set(seen) - {""}
            (drained,) = running.get("/api/v1/query?query=gpucluster_slurm_node_drained")["result"]
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
