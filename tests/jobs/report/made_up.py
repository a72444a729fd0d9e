"""Jobs that never ran, as the controller and Prometheus would tell of them. The numbers are made up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpucluster.jobs.report import facts
from gpucluster.jobs.report.build import JobReport, build, request
from gpucluster.node_agent.record.node import record

START = 1_790_000_000.0


def row(**more: Any) -> dict[str, Any]:
    """A job of Slurm as `monitor jobs` has it."""
    return {
        "id": "12", "name": "nccl", "shown_as": "12", "step": "", "user": "ann", "account": "research",
        "partition": "gpu",
        "state": "COMPLETED", "exit_code": "0:0", "submitted": START - 90, "started": START, "ended": START + 3600,
        "elapsed": 3600, "nodes": 2, "tasks": None, "cpus": 512, "gpus": 16, "cpu_time": "1-00:00:00", "memory": "",
        "node_list": ["gpu-1", "gpu-2"], **more,
    }  # fmt: skip


def run(
    node: str,
    rdma: Mapping[str, Mapping[str, int]] | None = None,
    *,
    booted: bool = False,
    ethernet: Mapping[str, int] | None = None,
    started: float = START,
) -> dict[str, Any]:
    """The record of a node: its counters began at 0."""
    after = {
        "rdma": rdma or {},
        "ethernet": {"eth0": ethernet or {"rx_bytes": 5_000_000, "tx_bytes": 4_000_000}},
    }
    before = {
        kind: {device: dict.fromkeys(counters, 0) for device, counters in devices.items()}
        for kind, devices in after.items()
    }
    job = {"job_id": "12", "user": "ann", "gpus": [str(at) for at in range(8)], "started": started}
    begun = {"boot": "a", "up": 0.0, "complete": True, **before}
    ended = {"boot": "b" if booted else "a", "up": 3600.0, "at": started + 3600, "complete": True, **after}
    return record(job, begun, ended, node)


def rails(count: int = 8, size: int = 10**12, **of_first: int) -> dict[str, dict[str, int]]:
    """RDMA devices that carried the same; the first has more counters."""
    found = {f"mlx5_{at}/1": {"port_rcv_data": size // 4, "port_xmit_data": size // 4} for at in range(count)}
    found["mlx5_0/1"].update(of_first)
    return found


def known(**more: Any) -> dict[str, Any]:
    """What `monitor jobs` reports."""
    return {
        "version": 1, "now": START + 4000, "id": "12", "job": row(), "components": [row()], "tasks": [],
        "steps": [row(step="batch", name="batch", tasks=1), row(step="0", name="all_reduce_perf", tasks=16)],
        "steps_left_out": 0, "records": [run("gpu-1", rails()), run("gpu-2", rails())], "result": {}, "problems": [],
        **more,
    }  # fmt: skip


def wave(middle: float, at: float, phase: float = 0.0) -> float:
    """Something that looks like a measurement."""
    return middle * (1 + 0.08 * math.sin(at / 170 + phase) + 0.03 * math.sin(at / 23 + 2 * phase))


LEVELS = {
    "gpu": 0.82, "gpu_memory": 5.5e11, "power": 4800.0, "rdma": 1.2e11, "network": 4e7, "files": 6e8, "cpu": 0.21,
    "memory": 2.5e11,
}  # fmt: skip


def answer(raw: Mapping[str, Any], *, gap: tuple[float, float] = (0, 0), idle: float = 0.04) -> dict[str, Any]:
    """What `monitor query` would answer to the questions about this job."""
    of = facts.read(raw)
    results: dict[str, Any] = {}
    for each in request(of):
        results[each["name"]] = _series(each, of.nodes, gap, idle)
    return {"prometheus": True, "why": "", "results": results, "errors": {}}


def _series(query: Mapping[str, Any], nodes: tuple[str, ...], gap: tuple[float, float], idle: float) -> list[Any]:
    name = query["name"]
    key, _, rest = name.partition(":")
    if key in ("mean", "watch"):
        time = query["time"]
        if rest == "gpu":
            return [_row({"node": node, "gpu": str(at)}, [[time, 0.82]]) for node in nodes for at in range(8)]
        if rest == "idle":
            return [_row({"node": node, "gpu": str(at)}, [[time, idle]]) for node in nodes for at in range(8)]
        return []
    times = [
        query["start"] + at * query["step"] for at in range(int((query["end"] - query["start"]) / query["step"]) + 1)
    ]
    times = [time for time in times if not gap[0] <= time < gap[1]]
    if key == "job":
        level = 4800.0 * len(nodes) if rest == "power" else 0.82
        return [_row({}, [[time, level] for time in times])]
    level = LEVELS[key]
    factor = {"min": 0.7, "median": 1.0, "max": 1.1}.get(rest.rpartition(":")[2])
    if factor is not None:
        return [_row({}, [[time, factor * wave(level, time)] for time in times])]
    return [_row({"node": node}, [[time, wave(level, time, at)] for time in times]) for at, node in enumerate(nodes)]


def _row(labels: dict[str, str], values: list[list[float]]) -> dict[str, Any]:
    return {"labels": labels, "values": values}


def report(raw: Mapping[str, Any], said: Mapping[str, Any] | None = None, *, anonymous: bool = False) -> JobReport:
    """The report of a job that never ran."""
    return build(facts.read(raw, anonymous=anonymous), answer(raw) if said is None else said)
