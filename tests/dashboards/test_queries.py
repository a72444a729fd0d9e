"""Every query of every dashboard and every rule, against a real Prometheus that scrapes recorded outputs.

What this does not prove: how Grafana draws them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.autoscaler.daemon.metrics import Metrics
from gpucluster.controller.monitor import prometheus as agent
from gpucluster.dashboards import boards
from gpucluster.process import Completed
from tests.dashboards import prometheus, promtool
from tests.dashboards.prometheus import Prometheus
from tests.operations.test_overview import MONITORED, PageController, collect
from tests.waiting import PATIENCE_S, wait_for

SAMPLES = Path(__file__).parent / "samples"
SHAPE = "BM.GPU.H100.8"

#: What a user may have chosen.
CHOSEN = {
    "$__rate_interval": "2m",
    "$__range": "1h",
    "$node": "gpu-1",
    "$job_id": "12",
    "$pool": ".*",
}


def sample(name: str) -> str:
    return (SAMPLES / f"{name}.prom").read_text()


def autoscaler() -> str:
    """The autoscaler's own output, with a value for each metric."""
    metrics = Metrics()
    metrics.set("last_success_timestamp", 1.0)
    metrics.set("oci_throttle_tokens", 8)
    metrics.set("oci_launch_rate", 2)
    metrics.set("cost_usd_per_hour", 612.5)
    metrics.count("gang_total", result="satisfied")
    metrics.count("oci_requests_total", 5, op="launch", code="200")
    metrics.count("capacity_errors_total", shape=SHAPE, ad="AD-1")
    metrics.count("idle_node_seconds_total", 300, pool="gpu")
    metrics.observe("scaleup_seconds", 420, phase="boot")
    metrics.observe("loop_seconds", 0.2)
    metrics.replace("nodes", [({"pool": "gpu", "node_state": "idle", "cloud_state": "running"}, 2.0)])
    metrics.replace("breaker_open", [({"pool": "gpu", "fault": "capacity"}, 0.0)])
    return metrics.text()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    pages = {
        "/node/gpu-1": sample("node_exporter"),
        "/node/ctl": sample("node_exporter") + sample("health"),
        "/dcgm/gpu-1": sample("dcgm_exporter"),
        "/ours/gpu-1": sample("exporter"),
        "/ours/gpu-2": sample("exporter_without_dcgm"),
        "/monitor": sample("monitor"),
        "/autoscaler": autoscaler(),
    }
    with prometheus.outputs(pages) as port:

        def at(path: str, node: str, *, gpu: bool = True) -> dict[str, Any]:
            labels = {"node": node, **({"pool": "gpu", "shape": SHAPE} if gpu else {})}
            return {"targets": [f"127.0.0.1:{port}"], "labels": labels, "path": path}

        targets = {
            "node": [at("/node/gpu-1", "gpu-1"), at("/node/ctl", "ctl", gpu=False)],
            "dcgm": [at("/dcgm/gpu-1", "gpu-1"), at("/nothing", "gpu-2")],
            "exporter": [at("/ours/gpu-1", "gpu-1"), at("/ours/gpu-2", "gpu-2")],
            "monitor": [at("/monitor", "ctl", gpu=False)],
            "autoscaler": [at("/autoscaler", "ctl", gpu=False)],
        }
        with prometheus.running(tmp_path_factory.mktemp("prometheus"), targets) as found:
            yield found


def chosen(query: str) -> str:
    # The job of the samples that has an instance of a divided GPU: it has no power, for example.
    query = query.replace("$job_id", "13") if "gpu_instance_utilization" in query else query
    for variable, value in CHOSEN.items():
        query = query.replace(variable, value)
    return query


def queries() -> list[str]:
    """Every query of every panel, as it is sent with the choices."""
    found = []
    for board in boards.all_dashboards().values():
        for panel in board["panels"]:
            found += [chosen(target["expr"]) for target in panel.get("targets", ())]
    return found


@pytest.mark.slow
def test_every_query_of_every_panel_returns_series(live: Prometheus) -> None:
    assert len(queries()) > 100
    assert [query for query in queries() if "$" in query] == []
    live.await_series(queries())


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 100])
def test_every_query_of_the_static_page_has_an_answer(live: Prometheus, nodes: int) -> None:
    class AsksPrometheus(PageController):
        """Asks by the controller's own program."""

        def ask(self, command: str, *, host: str | None = None, text: str = "", timeout: float) -> Completed:
            if "monitor query" not in command:
                return super().ask(command, host=host, text=text, timeout=timeout)
            found = agent.answer(agent.Prometheus(port=live.port), agent.parse_request(text))
            return Completed((), 0, json.dumps(found), "")

    text = MONITORED.replace("count: 2", f"count: {nodes}")
    # Above 64 nodes only ports with a fault are asked for, and the samples have none that is down.
    may_be_empty = {"rail_up", "rail_errors"} if nodes == 100 else set()
    seen: dict[str, Any] = {}

    def complete() -> bool:
        found = collect(AsksPrometheus(), text=text, timeout=PATIENCE_S)
        history, rails = found.history.value, found.rails.value
        seen.clear()
        seen.update(history=found.history.why, rails=found.rails.why)
        # On a busy machine Prometheus answers a query too late, or has just missed a scrape.
        if history is None or rails is None:
            return False
        seen["empty"] = {
            name for name, series in history.series.items() if not any(each.values for each in series)
        } - may_be_empty
        seen["places"] = {label for each in history.series["gpu_by_place"] for label in each.labels}
        seen.update(errors=history.errors, rails=rails.number)
        return not seen["empty"] and not history.errors and rails.number > 0

    # Rules are evaluated one group after the other.
    wait_for("every query has an answer", complete, interval=0.5, state=lambda: seen)
    assert seen["places"] == ({"pool"} if nodes == 100 else {"node"})


@pytest.mark.slow
def test_every_choice_has_values(live: Prometheus) -> None:
    for board in boards.all_dashboards().values():
        for variable in board["templating"]["list"][1:]:
            metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            live.await_series([f"count by ({label}) ({metric})"])
            assert live.ask(f"label/{label}/values", **{"match[]": metric}), variable["query"]["query"]


@pytest.mark.slow
def test_every_recording_rule_returns_series(live: Prometheus) -> None:
    rules = promtool.rules("record")
    # No GPU of the samples has an Xid that asks for a reset.
    names = {rule["record"] for rule in rules} - {"gpucluster:gpu_xid_of_hardware:code"}
    live.await_series(sorted(names))


@pytest.mark.slow
def test_no_rule_fails_in_prometheus(live: Prometheus) -> None:
    for rule in promtool.rules("alert"):
        live.query(rule["expr"])
    # After the series are there: without any, no join can fail.
    live.await_series(["gpucluster:job_gpu_utilization:ratio", "prometheus_rule_evaluations_total"])
    groups = live.ask("rules")["groups"]
    assert sum(len(group["rules"]) for group in groups) == sum(len(group["rules"]) for group in promtool.groups())
    assert [
        (rule["name"], rule.get("lastError")) for group in groups for rule in group["rules"] if rule["health"] == "err"
    ] == []
