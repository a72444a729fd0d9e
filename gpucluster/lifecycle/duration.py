"""How long an apply will take: from the runs that this cluster had on this machine. Pure, but for the shipped file.

Runs are comparable if they did the same kind of work. Of those that changed hosts, the ones with a similar number of
them are taken where there are some. The time that jobs need to end is in the time of a run that waited for them.
"""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Any

from gpucluster.workspace.run_history import PastRun
from gpucluster.workspace.run_log import RunStatus

_FILE = "first_apply.toml"
_TENTHS = 0.9
# Hosts that are changed take about as long as half or twice as many: they are worked on at the same time.
_SIMILAR = 2


class WorkKind(StrEnum):
    """What a run has to do, from the least to the most."""

    NOTHING = "nothing"
    CONFIGURATION = "configuration"
    RESOURCES = "resources"
    HOSTS = "hosts"
    FIRST = "first apply"


@dataclass(frozen=True)
class Work:
    """What a run does, as far as its time depends on it.

    Args:
        hosts: how many are added, removed, replaced or rebooted.
    """

    kind: WorkKind
    hosts: int = 0

    @classmethod
    def of(cls, *, first: bool, hosts: int, resources: bool, configuration: bool) -> Work:
        """The work of a run that changes these."""
        kinds = (
            (WorkKind.FIRST, first),
            (WorkKind.HOSTS, hosts > 0),
            (WorkKind.RESOURCES, resources),
            (WorkKind.CONFIGURATION, configuration),
        )
        return cls(next((kind for kind, is_it in kinds if is_it), WorkKind.NOTHING), hosts)

    def to_dict(self) -> dict[str, Any]:
        """As the run log has it."""
        return {"kind": str(self.kind), "hosts": self.hosts}


@dataclass(frozen=True)
class Duration:
    """How long an apply will take.

    Args:
        work: the kind of work.
        runs: how many comparable runs there are; 0: nothing is known.
        median_s, p90_s: seconds: the median, and what 90 % of the runs did not exceed; None without a run.
        source: where they are from, as a text.
    """

    work: str
    runs: int
    median_s: float | None = None
    p90_s: float | None = None
    source: str = ""


def expected(work: Work, past: Iterable[PastRun], *, cloud: str) -> Duration:
    """How long an apply with this work will take.

    Args:
        past: the runs of this cluster.
        cloud: the provider; a first apply has the figures that were measured there.
    """
    if work.kind is WorkKind.FIRST:
        return _first(work, cloud)
    similar = [
        (run.elapsed, int(run.work.get("hosts", 0)))
        for run in past
        if run.command == "apply"
        and run.status == RunStatus.SUCCESS
        and run.elapsed is not None
        and run.work.get("kind") == work.kind
    ]
    near = [took for took, hosts in similar if work.hosts <= hosts * _SIMILAR and hosts <= work.hosts * _SIMILAR]
    return _of(work, near or [took for took, _ in similar], "runs of this cluster on this machine")


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of these values that `share` of them do not exceed (nearest rank)."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def shipped() -> tuple[Mapping[str, Any], ...]:
    """The measured first applies."""
    text = (files(__package__) / _FILE).read_text(encoding="utf-8")
    return tuple(tomllib.loads(text).get("measured", ()))


def _first(work: Work, cloud: str) -> Duration:
    figures = [each for each in shipped() if each["cloud"] == cloud]
    if not figures:
        return Duration(work.kind, 0, source=f"no first apply was measured with provider {cloud}")
    # The one whose number of hosts is the nearest, by its ratio.
    nearest = min(figures, key=lambda each: abs(math.log(max(work.hosts, 1) / (each["nodes"] + 1))))
    text = f"measured with {nearest['nodes']} nodes on {nearest['date']}: {nearest['source']}"
    return _of(work, nearest["seconds"], text)


def _of(work: Work, times: Sequence[float], source: str) -> Duration:
    if not times:
        return Duration(work.kind, 0, source=f"no comparable {source}")
    return Duration(
        work.kind, len(times), round(statistics.median(times), 1), round(percentile(times, _TENTHS), 1), source
    )
