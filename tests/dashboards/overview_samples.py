"""A cluster with everything that a page can show: made-up facts, the same on every call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpucluster.dashboards.overview import (
    CheckLine,
    ClusterFacts,
    EndedJob,
    Health,
    History,
    JobSummary,
    NodeSummary,
    Overview,
    PoolSummary,
    Rail,
    Rails,
    RunSummary,
    Series,
    Source,
    SourcePart,
    VerdictSummary,
)

NOW = 1795399380.0  # 2026-11-23 02:03:00 UTC
HOUR = 3600.0
DAY = 24 * HOUR
HOSTILE = "</td></section><script>alert(1)</script>\"' onload=x"


def nodes(number: int) -> tuple[NodeSummary, ...]:
    """Nodes of a pool of RDMA nodes, and elastic ones, of which a few have each kind of trouble."""
    found = []
    for index in range(1, number + 1):
        name, state, more = f"gpu-{index}", ("allocated", "allocated", "mixed", "idle")[index % 4], _trouble(index)
        jobs = (f"{4000 + index // 8}",) if state != "idle" else ()
        base: dict[str, Any] = {
            "pool": "gpu", "gpus": 8, "health": "pass", "report_age": 40.0 + index % 200, "jobs": jobs
        }  # fmt: skip
        found.append(NodeSummary(name, **{"state": state, **base, **more}))
    elastic = ("idle~", "idle~", "idle~", "allocated#", "idle", "mixed", "idle%")
    found += [
        NodeSummary(f"burst-e{index}", elastic[index % 7], pool="burst", gpus=1) for index in range(1, number // 4 + 3)
    ]
    return tuple(found)


def _trouble(index: int) -> Mapping[str, Any]:
    fallen = "gpucluster: gpu_xids: Xid 79 on 0000:4f:00.0: the GPU has fallen off the bus"
    troubles: Mapping[int, Mapping[str, Any]] = {
        3: {"state": "drained", "reason": fallen, "health": "fail", "jobs": (),
            "failing": ("gpu_xids: Xid 79 on 0000:4f:00.0: the GPU has fallen off the bus", "gpus: 7 of 8 GPUs")},
        7: {"state": "down*", "reason": "Not responding", "health": "unknown", "report_age": 5400.0, "stale": True},
        11: {"state": "draining", "reason": "kernel update, anna", "jobs": ("4001",)},
        12: {"health": "fail", "failing": ("rdma_links: rdma5: the port is DOWN and its link Polling",)},
        13: {"health": "", "report_age": None},
        14: {"state": "maint", "health": "warn"},
    }  # fmt: skip
    return troubles.get(index, {})


def wave(low: float, high: float, *, step: float = 300.0, phase: float = 0.0, gap: bool = False) -> Series:
    """A day of values. With a gap: Prometheus was down for an hour."""
    number = int(DAY / step)
    points = []
    for index in range(number + 1):
        time = NOW - DAY + index * step
        if gap and NOW - 9 * HOUR < time < NOW - 8 * HOUR:
            continue
        part = 0.5 + 0.4 * math.sin(index / number * 9 + phase) + 0.1 * math.sin(index * 1.7 + phase)
        points.append((time, low + (high - low) * part))
    return Series({}, tuple(points))


def labelled(series: Series, *, whole: bool = False, **labels: str) -> Series:
    return Series(labels, tuple((time, float(round(value)) if whole else value) for time, value in series.values))


def history(number: int) -> History:
    by_node = number <= 64
    return History(
        NOW - DAY,
        NOW,
        300.0,
        {
            "nodes": tuple(
                labelled(wave(low, high, phase=low, gap=True), whole=True, state=state)
                for state, low, high in (
                    ("allocated", number * 0.4, number * 0.8), ("mixed", 0, number * 0.2), ("idle", 1, number * 0.3),
                    ("drained", 1, 3), ("down", 0, 2),
                )
            ),
            "jobs": (
                labelled(wave(2, 14, gap=True), whole=True, state="RUNNING"),
                labelled(wave(0, 40, phase=2, gap=True), whole=True, state="PENDING"),
            ),
            "gpu_low": (wave(0, 0.35, gap=True),),
            "gpu_middle": (wave(0.35, 0.9, gap=True),),
            "gpu_high": (wave(0.9, 1.0, gap=True),),
            "rdma_receive": (wave(1e9, 38e9 * number, gap=True),),
            "rdma_transmit": (wave(1e9, 37e9 * number, phase=0.2, gap=True),),
            "gpu_by_place": tuple(
                labelled(wave(0, (index % 5) / 4, step=900.0, phase=index, gap=True), node=f"gpu-{index}")
                for index in range(1, min(number, 20) + 1)
            )
            if by_node
            else tuple(labelled(wave(0, 0.9, step=900.0), pool=pool) for pool in ("gpu", "burst")),
        },
    )  # fmt: skip


def rails(number: int) -> Rails:
    listed = [
        Rail(f"gpu-{node}", f"rdma{device}", "1", True, 12.5e9, 9.1e9 + node * 1e8, 8.8e9 - node * 1e7, 0.0)
        for node in range(1, min(number, 4) + 1)
        for device in range(4)
    ]
    listed.append(Rail("gpu-12", "rdma5", "1", False, None, 0.0, 0.0, 0.0))
    listed.append(Rail("gpu-2", "rdma7", "1", True, 12.5e9, 4e9, 4e9, 0.25))
    return Rails(number * 16, tuple(listed), complete=False)


def jobs(number: int) -> tuple[JobSummary, ...]:
    running = [
        JobSummary(
            str(4000 + index), "RUNNING", ("anna", "björn", "li.wei")[index % 3], "gpu", 8, "1-03:12:44", "3-00:00:00",
            f"gpu-[{index * 8 + 1}-{index * 8 + 8}]", ("llama-pretrain", "nccl-test", HOSTILE)[index % 3])
        for index in range(max(1, number // 10))
    ]  # fmt: skip
    waiting = [
        JobSummary("4101", "PENDING", "anna", "gpu", 64, "0:00", "1-00:00:00", "Resources", "resnet-50"),
        JobSummary("4102_[1-100000]", "PENDING", "li.wei", "burst", 1, "0:00", "10:00", "Priority", "sweep"),
        JobSummary(
            "4103", "PENDING", "björn", "gpu", 2, "0:00", "1:00:00", "ReqNodeNotAvail, UnavailableNodes:gpu-7", "eval"
        ),
    ]
    return (*running, *waiting)


ENDED = tuple(
    EndedJob(str(3900 + index), state, "anna", "gpu", 2, "00:41:07", code, f"2026-11-22T{20 - index:02d}:14:09", name)
    for index, (state, code, name) in enumerate(
        [("COMPLETED", "0:0", "nccl-test"), ("FAILED", "1:0", "train"), ("TIMEOUT", "0:0", "train"),
         ("CANCELLED by 10001", "0:15", "eval"),
         ("NODE_FAIL", "0:0", "llama-pretrain"), ("OUT_OF_MEMORY", "0:9", "prep")]
    )
)  # fmt: skip

VERDICT = VerdictSummary(
    run="20261123T010203-a1b2c3",
    level="quick",
    status="fail",
    at=NOW - 2 * HOUR,
    counts={"fail": 2, "unknown": 1, "warn": 1, "pass": 312, "skip": 14},
    problems=(
        CheckLine("gpus", "GPUs of gpu-3", "gpu-3", "fail", "7 of 8 GPUs", "Replace it: gpucluster replace gpu-3"),
        CheckLine("rdma_links", "RDMA links of gpu-12 are up", "gpu-12", "fail", "rdma5: the port is DOWN and its link "
                  "Polling", "Look at the cable; replace it: gpucluster replace gpu-12"),
        CheckLine("reach", "gpu-7 answers", "gpu-7", "unknown", "ssh: connect to host 10.0.1.7 port 22: No route", ""),
        CheckLine("clock", "clock of gpu-14", "gpu-14", "warn", "1.2 s behind", "See chronyc tracking"),
    ),
    rails=tuple(
        CheckLine(check, check, f"gpu-{node}", "fail" if bad else "pass", said if bad else "all good")
        for check, fault, said in (
            ("rdma_devices", 0, ""), ("rdma_links", 12, "rdma5: the port is DOWN and its link Polling"),
            ("rdma_speed", 0, ""), ("rdma_errors", 0, ""),
        )
        for node in range(1, 17)
        for bad in [node == fault]
    ),
)  # fmt: skip

AUTOSCALER: Mapping[str, Any] = {
    "version": 1,
    "healthy": True,
    "problems": [],
    "paused": "",
    "last_success_age": 4.2,
    "pools": {
        "burst": {
            "max_nodes": 8, "baked": True, "instances": {"RUNNING": 3, "STARTING": 1}, "nodes": {"IDLE": 1, "MIXED": 1},
            "cool_down": {"until": "2026-11-23T02:10:00Z", "message": "no capacity for VM.GPU.A10.1 in AD-1"},
        }
    },
    "gangs": [{"jobs": "4102", "attempts": 2, "next_try": "2026-11-23T02:09:00Z", "message": "no capacity in AD-1"}],
    "cost_per_hour": 12.8,
}  # fmt: skip


def _decision(kind: str, node: str, ago: float, reason: str = "", *checks: str) -> Mapping[str, Any]:
    at = {"wall": NOW - ago, "boot": "b", "up": 1.0}
    return {"kind": kind, "node": node, "at": at, "pool": "gpu", "checks": list(checks), "reason": reason}


HEALTH = Health(
    300.0,
    shadow=False,
    breakers=({"pool": "gpu", "drained": 2, "limit": 6, "open": False},),
    suspects=({"pool": "burst", "check": "clock", "nodes": 3},),
    decisions=(
        _decision("drain", "gpu-5", 8 * HOUR, "gpucluster: dcgm: double-bit ECC error", "dcgm"),
        _decision("done", "gpu-5", 8 * HOUR - 1, "gpucluster: dcgm: double-bit ECC error", "dcgm"),
        _decision("ended", "gpu-5", 6 * HOUR),
        _decision("person", "gpu-3", 900, "gpucluster: gpu_xids: Xid 79", "gpu_xids"),
    ),
)
RUNS = (
    RunSummary("20261123T010203-a1b2c3", "verify", "failed", "2026-11-23T01:02:03+00:00", 41.5, "2 checks failed"),
    RunSummary("20261122T220000-ffee00", "apply", "success", "2026-11-22T22:00:00+00:00", 913.0),
    RunSummary("20261122T210000-ffee01", "apply", "killed", "2026-11-22T21:00:00+00:00", None),
)


def sample(number: int = 16, **changes: Any) -> Overview:
    """A cluster with so many permanent nodes, and a quarter as many elastic ones."""
    values: dict[str, Any] = {
        "version": "1.2",
        "made_at": NOW,
        "facts": ClusterFacts(
            "demo", "oci", "eu-frankfurt-1", "partial", "26.05", monitoring=True, controller_shape="VM.Standard.E5",
            pending=("not configured yet: gpu-16",), resources={"instance": number + 1, "vcn": 1, "cluster_network": 1},
        ),
        "pools": (
            PoolSummary("gpu", "BM.GPU.H100.8", "gpu", number, number, 8, 16, 200),
            PoolSummary("burst", "VM.GPU.A10.1", "burst", 0, number // 4 + 2, 1, 0),
        ),
        "verdict": SourcePart(VERDICT),
        "nodes": SourcePart(nodes(number)),
        "health": SourcePart(HEALTH),
        "jobs": SourcePart(jobs(number)),
        "ended": SourcePart(ENDED),
        "rails": SourcePart(rails(number)),
        "history": SourcePart(history(number)),
        "autoscaler": SourcePart(AUTOSCALER),
        "runs": RUNS,
        "sources": (
            Source("the cloud", "", "2026-11-23T02:03:00+00:00"),
            Source("Terraform's state", "", "2026-11-23T02:03:00+00:00"),
            Source("the health service", "", "2026-11-23T02:03:01+00:00"),
        ),
    }  # fmt: skip
    return Overview(**{**values, **changes})


def silent() -> Overview:
    """The same cluster, whose controller does not answer."""
    why = "the controller can't be reached: ssh: connect to host 192.0.2.7 port 22: Connection timed out"
    names = ("Slurm's nodes", "Slurm's jobs", "the accounting", "the health service", "Prometheus")
    parts: dict[str, Any] = {
        key: SourcePart(why=f"{name[:1].upper()}{name[1:]} could not be read: {why}.")
        for key, name in zip(("nodes", "jobs", "ended", "health", "history"), names, strict=True)
    }
    return sample(
        verdict=SourcePart(why="This machine has no verdict of this cluster. Run: gpucluster verify"),
        rails=parts["history"],
        autoscaler=SourcePart(why=f"The autoscaler could not be asked: {why}."),
        runs=(),
        sources=tuple(Source(name, why) for name in names),
        **parts,
    )
