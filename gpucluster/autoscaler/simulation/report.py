"""The results of a simulation: numbers, a table, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

VERSION = 1


@dataclass(frozen=True, slots=True)
class WaitingTimes:
    """Seconds from a job's submission to the start of the run that ended."""

    mean: float
    median: float
    p95: float
    max: float

    @classmethod
    def of(cls, waits: Sequence[float]) -> WaitingTimes:
        """The statistics of these waits; all zero if there are none."""
        if not waits:
            return cls(0.0, 0.0, 0.0, 0.0)
        ordered = sorted(waits)
        return cls(sum(ordered) / len(ordered), _rank(ordered, 0.5), _rank(ordered, 0.95), ordered[-1])


def _rank(ordered: Sequence[float], share: float) -> float:
    """The smallest value that this share of all values does not exceed."""
    return ordered[max(-(-int(share * 1000) * len(ordered) // 1000) - 1, 0)]


@dataclass(frozen=True, slots=True)
class NodeHours:
    """Paid node hours, by what the nodes did: from the acceptance of a launch to the request to terminate.

    Args:
        booting: until slurmd registered, or while a node that was up waited for the others of its job.
        idle: up without a job.
    """

    busy: float
    booting: float
    idle: float

    @property
    def total(self) -> float:
        """All paid hours."""
        return self.busy + self.booting + self.idle


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """One policy against one trace.

    Args:
        nodes: how many could exist at once. `span_hours`: from the first submission to the end of the last job.
        jobs_unfinished: still waiting when nothing changed any more; `jobs_held`: those that the autoscaler held.
        jobs_rejected: larger than any pool. `jobs_moved`: of a partition that the policy lacks, run in the first.
        launches: instances that the cloud accepted. `calls`: requests that were sent for them. `requeues`: of jobs.
        looks: reconcile passes. The name is that of the JSON member.
        cost: None if a pool's shape has no price.
    """

    label: str
    nodes: int
    idle_timeout: float
    jobs_done: int
    jobs_unfinished: int
    jobs_held: int
    jobs_rejected: int
    jobs_moved: int
    waiting: WaitingTimes
    node_hours: NodeHours
    span_hours: float
    launches: int
    calls: int
    requeues: int
    looks: int
    cost: float | None

    @property
    def idle_share(self) -> float:
        """The share of the paid hours in which nodes were idle."""
        return self.node_hours.idle / self.node_hours.total if self.node_hours.total else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "idle_share": self.idle_share}


_COLUMNS: tuple[tuple[str, Callable[[SimulationReport], str]], ...] = (
    ("policy", lambda report: report.label),
    ("done", lambda report: str(report.jobs_done)),
    ("wait mean", lambda report: duration(report.waiting.mean)),
    ("median", lambda report: duration(report.waiting.median)),
    ("p95", lambda report: duration(report.waiting.p95)),
    ("max", lambda report: duration(report.waiting.max)),
    ("node hours", lambda report: f"{report.node_hours.total:.1f}"),
    ("busy", lambda report: f"{report.node_hours.busy:.1f}"),
    ("booting", lambda report: f"{report.node_hours.booting:.1f}"),
    ("idle", lambda report: f"{report.node_hours.idle:.1f}"),
    ("idle %", lambda report: f"{100 * report.idle_share:.1f}"),
    ("launches", lambda report: str(report.launches)),
    ("cost", lambda report: "-" if report.cost is None else f"{report.cost:.2f}"),
)


def duration(seconds: float) -> str:
    """Such as 45 s, 12:30 min or 3:05 h."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes_left:02} h"
    return f"{minutes}:{rest:02} min" if minutes else f"{rest} s"


def table(reports: Sequence[SimulationReport]) -> str:
    """One line for each policy, and below the jobs that did not run as submitted."""
    rows = [[name for name, _ in _COLUMNS], *([cell(report) for _, cell in _COLUMNS] for report in reports)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(_COLUMNS))]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, *(line for report in reports for line in _remarks(report))]) + "\n"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if index else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _remarks(report: SimulationReport) -> list[str]:
    jobs = {
        "never ran": report.jobs_unfinished - report.jobs_held,
        "were held by the autoscaler": report.jobs_held,
        "are larger than any pool, and were refused": report.jobs_rejected,
        "name a partition that the policy lacks, and ran in the first one": report.jobs_moved,
    }
    return [f"{report.label}: {count} jobs {words}" for words, count in jobs.items() if count]


def as_json(reports: Sequence[SimulationReport], *, jobs: int, left_out: int, seed: int) -> str:
    """The same numbers for programs."""
    document = {
        "version": VERSION,
        "trace": {"jobs": jobs, "left_out": left_out},
        "seed": seed,
        "results": [report.as_dict() for report in reports],
    }
    return json.dumps(document, indent=2) + "\n"
