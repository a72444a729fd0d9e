"""The questions of a report to Prometheus, by recording rules alone, and the answers as lines."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucluster.pages.plots import MOST_LINES
from gpucluster.pages.series import Band, SeriesLine
from gpucluster.pages.units import BYTES, BYTES_PER_SECOND, RATIO, WATTS, Unit

#: More nodes than this are shown as their minimum, median and maximum: a plot has at most two lines for each.
MOST_NODES = MOST_LINES // 2
#: Seconds between two points, at least: nothing is scraped more often.
SHORTEST_STEP = 15
_MOST_POINTS = 400
#: The part of a GPU's time below which it does nothing.
IDLE = 0.05
# Letters of a query for all nodes: `monitor query` refuses longer ones.
_LONGEST = 15_000


@dataclass(frozen=True)
class JobPanel:
    """One plot.

    Args:
        about: what the values are of.
        lines: by name, what is asked for: `{NODES}` stands for the choice of nodes.
    """

    key: str
    title: str
    unit: Unit
    about: str
    lines: Mapping[str, str]


PANELS = (
    JobPanel("gpu", "GPU use", RATIO, "Mean of the GPUs of each node.",
          {"": "avg by (node) (gpucluster:gpu_utilization:ratio{NODES})"}),
    JobPanel("gpu_memory", "GPU memory", BYTES, "Used on all GPUs of each node.",
          {"": "sum by (node) (gpucluster:gpu_memory_used:bytes{NODES})"}),
    JobPanel("power", "GPU power", WATTS, "Of all GPUs of each node.",
          {"": "sum by (node) (gpucluster:gpu_power:watts{NODES})"}),
    JobPanel("rdma", "RDMA network", BYTES_PER_SECOND, "All rails of each node.",
          {"received": "sum by (node) (gpucluster:rdma_receive:bytes_per_second{NODES})",
           "sent": "sum by (node) (gpucluster:rdma_transmit:bytes_per_second{NODES})"}),
    JobPanel("network", "Ethernet", BYTES_PER_SECOND, "All interfaces of each node.",
          {"received": "sum by (node) (gpucluster:node_network_receive:bytes_per_second{NODES})",
           "sent": "sum by (node) (gpucluster:node_network_transmit:bytes_per_second{NODES})"}),
    JobPanel("files", "Shared file systems", BYTES_PER_SECOND, "NFS, as each node sees it.",
          {"read": "sum by (node) (gpucluster:node_filesystem_read:bytes_per_second{NODES})",
           "written": "sum by (node) (gpucluster:node_filesystem_write:bytes_per_second{NODES})"}),
    JobPanel("cpu", "CPU use", RATIO, "Of all processors of each node.",
          {"": "avg by (node) (gpucluster:node_cpu_utilization:ratio{NODES})"}),
    JobPanel("memory", "Memory", BYTES, "Used on each node.",
          {"": "sum by (node) (gpucluster:node_memory_used:bytes{NODES})"}),
)  # fmt: skip
_BAND = {"min": "min({})", "median": "quantile(0.5, {})", "max": "max({})"}


@dataclass(frozen=True)
class Plot:
    """A panel with its lines."""

    panel: JobPanel
    lines: tuple[SeriesLine | Band, ...]


@dataclass(frozen=True)
class Means:
    """Values over the whole time of the job.

    Args:
        gpu: mean use by node and GPU, as a ratio.
        idle: part of the time in which a GPU did nothing, by node and GPU.
        rails: bytes a second sent, by node and device.
        throttled: part of the time in which GPUs were slowed down by heat or a fault, by node and cause.
        power: watts of the job's GPUs over time.
        use: mean use of the job's own GPUs over time.
        stuck: the labels of each time that the watcher of its nodes called it hung or straggling.
        wasted: GPU hours of its GPUs that had no process; 0 if that was short.
        instances: how many instances of divided GPUs (MIG) the job has had, by node.
    """

    gpu: Mapping[tuple[str, str], float] = field(default_factory=dict)
    idle: Mapping[tuple[str, str], float] = field(default_factory=dict)
    rails: Mapping[tuple[str, str], float] = field(default_factory=dict)
    throttled: Mapping[tuple[str, str], float] = field(default_factory=dict)
    power: tuple[tuple[float, float], ...] = ()
    use: tuple[tuple[float, float], ...] = ()
    stuck: tuple[Mapping[str, str], ...] = ()
    wasted: float = 0.0
    instances: Mapping[str, float] = field(default_factory=dict)


def step_of(span: tuple[float, float]) -> int:
    """Seconds between two points."""
    return max(SHORTEST_STEP, math.ceil((span[1] - span[0]) / _MOST_POINTS / SHORTEST_STEP) * SHORTEST_STEP)


def request(ids: Sequence[str], nodes: Sequence[str], span: tuple[float, float]) -> list[dict[str, Any]]:
    """The queries for `monitor query`.

    Args:
        ids: the numbers of the job: of all components.
        span: from, to; seconds since 1970.
    """
    start, end = span
    over, seconds = {"start": start, "end": end, "step": step_of(span)}, max(60, math.ceil(end - start))
    jobs = _string("|".join(map(re.escape, ids)))
    queries: list[dict[str, Any]] = [
        {"name": "job:power", "expr": f"sum(gpucluster:job_gpu_power:watts{{job_id=~{jobs}}})", **over},
        {"name": "job:use", "expr": f"avg(gpucluster:job_gpu_utilization:ratio{{job_id=~{jobs}}})", **over},
        {"name": "watch:stuck", "expr": f"max_over_time(gpucluster:job_stuck:info{{job_id=~{jobs}}}[{seconds}s])",
         "time": end},
        {"name": "watch:wasted", "time": end,
         "expr": f"sum(max_over_time(gpucluster:job_gpus_idle:hours{{job_id=~{jobs}}}[{seconds}s]))"},
        {"name": "watch:instances", "time": end,
         "expr": f"max by (node) (max_over_time(gpucluster:job_gpu_instances:count{{job_id=~{jobs}}}[{seconds}s]))"},
    ]  # fmt: skip
    names = _string("|".join(map(re.escape, nodes)))
    if not nodes or len(names) > _LONGEST:
        return queries
    chosen = f"{{node=~{names}}}"
    for panel in PANELS:
        for line, form in panel.lines.items():
            expr = form.replace("{NODES}", chosen)
            key = f"{panel.key}:{line}"
            if len(nodes) <= MOST_NODES:
                queries.append({"name": key, "expr": expr, **over})
            else:
                queries += [
                    {"name": f"{key}:{part}", "expr": of_all.format(expr), **over} for part, of_all in _BAND.items()
                ]
    use, rails = f"gpucluster:gpu_utilization:ratio{chosen}", f"gpucluster:rdma_transmit:bytes_per_second{chosen}"
    slowed = f'gpucluster:gpu_throttled:ratio{{cause!="power",node=~{names}}}'
    for name, expr in {
        "mean:gpu": f"avg_over_time({use}[{seconds}s])",
        "mean:idle": f"avg_over_time(({use} < bool {IDLE})[{seconds}s:{over['step']}s])",
        "mean:rails": f"avg_over_time({rails}[{seconds}s])",
        "mean:throttled": f"max by (node, cause) (avg_over_time({slowed}[{seconds}s]))",
    }.items():
        queries.append({"name": name, "expr": expr, "time": end})
    return queries


def request_now(job: str) -> list[dict[str, Any]]:
    """The queries for `monitor query` about the watcher's state of a job in this moment."""
    chosen = f"{{job_id={_string(job)}}}"
    return [
        {"name": "watch:stuck", "expr": f"gpucluster:job_stuck:info{chosen}"},
        {"name": "watch:wasted", "expr": f"sum(gpucluster:job_gpus_idle:hours{chosen})"},
    ]


def plots(results: Mapping[str, Any], nodes: Sequence[str], step: float) -> tuple[Plot, ...]:
    """The panels with the values of Prometheus. A panel without values is left out."""
    panels = []
    for panel in PANELS:
        lines: list[SeriesLine | Band] = []
        for name in panel.lines:
            key = f"{panel.key}:{name}"
            if len(nodes) <= MOST_NODES:
                lines += [
                    SeriesLine(" ".join(filter(None, [_label(row, "node"), name])), _points(row), step)
                    for row in sorted(_rows(results, key), key=lambda row: _label(row, "node"))
                ]
            else:
                lines += _band(results, key, name, len(nodes), step)
        if any(line.points for line in lines):
            panels.append(Plot(panel, tuple(lines)))
    return tuple(panels)


def _band(results: Mapping[str, Any], key: str, name: str, nodes: int, step: float) -> list[SeriesLine | Band]:
    at = {end: dict(_points(row)) for end in _BAND for row in _rows(results, f"{key}:{end}")[:1]}
    times = sorted(set.intersection(*map(set, at.values()))) if len(at) == len(_BAND) else []
    points = [(time, at["min"][time], at["median"][time], at["max"][time]) for time in times]
    return [Band(f"{name} (median of {nodes} nodes, and their range)".strip(), points, step)] if points else []


def means(results: Mapping[str, Any]) -> Means:
    """The values over the whole time."""

    def by(key: str, *labels: str) -> dict[Any, float]:
        rows = [(tuple(_label(row, each) for each in labels), _points(row)) for row in _rows(results, key)]
        return {names[0] if len(labels) == 1 else names: points[-1][1] for names, points in rows if points}

    def one(key: str) -> tuple[tuple[float, float], ...]:
        return tuple(point for row in _rows(results, key)[:1] for point in _points(row))

    return Means(
        gpu=by("mean:gpu", "node", "gpu"),
        idle=by("mean:idle", "node", "gpu"),
        rails=by("mean:rails", "node", "device"),
        throttled=by("mean:throttled", "node", "cause"),
        power=one("job:power"),
        use=one("job:use"),
        stuck=tuple(
            {key: _label(row, key) for key in ("state", "rank", "process", "host", "collective")}
            for row in _rows(results, "watch:stuck")
        ),
        instances=by("watch:instances", "node"),
        wasted=max((value for _time, value in one("watch:wasted")), default=0.0),
    )


def _rows(results: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    rows = results.get(key)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _label(row: Mapping[str, Any], name: str) -> str:
    return str((row.get("labels") or {}).get(name, ""))


def _points(row: Mapping[str, Any]) -> list[tuple[float, float]]:
    return [(float(time), float(value)) for time, value in row.get("values") or ()]


def _string(text: str) -> str:
    """A text as PromQL writes it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
