"""Each series that a rule or a dashboard names is one that an exporter makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpucluster.autoscaler.daemon.metrics import Metrics
from gpucluster.controller.backup import schedule
from gpucluster.controller.drift import watch
from gpucluster.controller.health import metrics as health
from gpucluster.controller.logs import collect
from gpucluster.controller.monitor import slurm_metrics
from gpucluster.dashboards import boards, metrics
from gpucluster.node_agent.exporter import exposition
from gpucluster.node_agent.standby import keeping
from tests.dashboards import promql, promtool

SAMPLES = Path(__file__).parent / "samples"
DCGM_FIELDS = promtool.REPOSITORY / "ansible" / "roles" / "exporters" / "files" / "dcgm-fields.csv"


def of_samples(name: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+)", (SAMPLES / f"{name}.prom").read_text(), flags=re.MULTILINE))


def of_the_autoscaler() -> set[str]:
    made: set[str] = set()
    for family in Metrics().registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        made |= {family.name + suffix for suffix in suffixes}
    return made


OURS = {
    "exporter": set(exposition.METRICS),
    "monitor": set(slurm_metrics.METRICS),
    "health": set(health._HELP),
    "backup": set(schedule.METRICS),
    "drift": set(watch.METRICS),
    "logs": set(collect.METRICS),
    "standby": set(keeping.METRICS),
    "autoscaler": of_the_autoscaler(),
}


def named() -> set[str]:
    """Every series that a rule, a panel or a choice names."""
    expressions = [rule["expr"] for kind in ("record", "alert") for rule in promtool.rules(kind)]
    for board in boards.all_dashboards().values():
        expressions += [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
        expressions += [
            each["query"]["query"].partition("(")[2].partition(",")[0] for each in board["templating"]["list"][1:]
        ]
    return set().union(*(promql.names(expr) for expr in expressions)) - {"vector"}


@pytest.mark.parametrize(
    ("expr", "names"),
    [
        ('sum by (a, b) (rate(x_total{c="y{z}", d=~"up|down"}[2m])) / 1e9', {"x_total"}),
        ("a:b:c * on (node) group_left () max by (node) (d) > 0", {"a:b:c", "d"}),
        ('{__name__=~"X_(A|B)"} or vector(0) unless on () e offset 5m', {"X_A", "X_B", "e"}),
        ('label_replace(f, "g", "h i", "", "")', {"f"}),
    ],
)
def test_names_are_found(expr: str, names: set[str]) -> None:
    assert promql.names(expr) - {"m"} == names


def test_every_series_is_made_by_an_exporter_or_a_rule() -> None:
    made = set(metrics.RECORDED).union(*metrics.USED.values(), *OURS.values())
    assert named() - made == set()


def test_what_is_listed_is_used() -> None:
    assert set().union(*metrics.USED.values()) - named() == set()


def test_every_recording_rule_is_described() -> None:
    assert set(metrics.RECORDED) == {rule["record"] for rule in promtool.rules("record")}


def test_dcgm_is_asked_for_what_is_used() -> None:
    asked = {line.partition(",")[0] for line in DCGM_FIELDS.read_text().splitlines() if not line.startswith("#")}
    assert set(metrics.USED["dcgm-exporter"]) - asked == set()


def test_the_samples_are_those_of_the_exporters() -> None:
    assert of_samples("exporter") <= OURS["exporter"]
    assert of_samples("exporter_without_dcgm") <= OURS["exporter"]
    assert of_samples("monitor") <= OURS["monitor"]
    assert of_samples("health") <= OURS["health"]
    assert set(metrics.USED["node_exporter"]) <= of_samples("node_exporter")
    assert set(metrics.USED["dcgm-exporter"]) <= of_samples("dcgm_exporter")
