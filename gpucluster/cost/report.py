"""Adds shares up by user, account, pool, job or day."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, tzinfo
from typing import Any, Literal, get_args

from gpucluster.cost.model import Share, Use

By = Literal["user", "account", "pool", "job", "day"]
BY: tuple[By, ...] = get_args(By)
#: The row of what no user, account or job has.
UNATTRIBUTED = "-"


@dataclass(frozen=True)
class CostRow:
    """Money by what it was paid for, in the currency of the prices.

    Args:
        key: the user, account, pool, job or day.
        money: of each use that there is.
        hours: hours of whole instances, of each use.
        unpriced_hours: those without a known price; they are not in `money`.
        held: of the money of jobs, that of GPUs which had no process.
    """

    key: str
    money: Mapping[Use, float] = field(default_factory=dict)
    hours: Mapping[Use, float] = field(default_factory=dict)
    unpriced_hours: float = 0.0
    held: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self.money.values())

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "key": self.key,
            **{use.value: round(self.money.get(use, 0.0), 6) for use in Use},
            "held": round(self.held, 6),
            "total": round(self.total, 6),
            "hours": {use.value: round(hours, 4) for use, hours in sorted(self.hours.items())},
            "unpriced_hours": round(self.unpriced_hours, 4),
        }


@dataclass(frozen=True)
class Days:
    """The days of a time zone in a window: some have 23 or 25 hours.

    Args:
        begins: when each begins, in order. `names`: its date.
    """

    begins: Sequence[float]
    names: Sequence[str]

    def name_at(self, at: float) -> str:
        """The date of a moment."""
        return self.names[max(bisect_right(self.begins, at) - 1, 0)]


def midnight(day: date, zone: tzinfo) -> float:
    """When a day begins."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()


def days(window: tuple[float, float], zone: tzinfo) -> Days:
    """The days that a window touches."""
    day, begins, names = datetime.fromtimestamp(window[0], zone).date(), [], []
    while (begin := midnight(day, zone)) < window[1]:
        begins.append(begin)
        names.append(day.isoformat())
        day += timedelta(days=1)
    return Days(begins, names)


def month(at: float, zone: tzinfo) -> tuple[float, float]:
    """The calendar month of a moment: when it begins, and when the next one does."""
    first = datetime.fromtimestamp(at, zone).date().replace(day=1)
    following = (first + timedelta(days=31)).replace(day=1)
    return midnight(first, zone), midnight(following, zone)


def summarize(
    shares: Iterable[Share], by: By, calendar: Days | None = None, held: Mapping[str, float] | None = None
) -> list[CostRow]:
    """One row for each key, the dearest first; days in their order.

    Args:
        calendar: with `day`; the shares must be cut at its days.
        held: job -> the part of it, from 0 to 1, in which its GPUs had no process.
    """
    key_of = _key(by, calendar)
    money: defaultdict[str, defaultdict[Use, float]] = defaultdict(lambda: defaultdict(float))
    hours: defaultdict[str, defaultdict[Use, float]] = defaultdict(lambda: defaultdict(float))
    unpriced: defaultdict[str, float] = defaultdict(float)
    unused: defaultdict[str, float] = defaultdict(float)
    for share in shares:
        key = key_of(share)
        hours[key][share.use] += share.hours
        if share.money is None:
            unpriced[key] += share.hours
        else:
            money[key][share.use] += share.money
            if held and share.run is not None:
                unused[key] += share.money * held.get(share.run.id, 0.0)
    rows = [CostRow(key, dict(money[key]), dict(used), unpriced[key], unused[key]) for key, used in hours.items()]
    return sorted(rows, key=lambda row: row.key) if by == "day" else sorted(rows, key=lambda row: (-row.total, row.key))


def held_parts(gpu_hours: Mapping[str, float], shares: Iterable[Share]) -> dict[str, float]:
    """The part of each job in which its GPUs had no process.

    Args:
        gpu_hours: job -> hours of GPUs without a process.
    """
    had: defaultdict[str, float] = defaultdict(float)
    for share in shares:
        run = share.run
        if run is not None and run.id in gpu_hours:
            had[run.id] += run.resources.gpus / max(len(run.nodes), 1) * (share.end - share.begin) / 3600.0
    return {job: min(gpu_hours[job] / hours, 1.0) for job, hours in had.items() if hours > 0}


def total(rows: Sequence[CostRow]) -> CostRow:
    """The sum of rows."""
    return CostRow(
        "total",
        {use: sum(row.money.get(use, 0.0) for row in rows) for use in Use},
        {use: sum(row.hours.get(use, 0.0) for row in rows) for use in Use},
        sum(row.unpriced_hours for row in rows),
        sum(row.held for row in rows),
    )


def _key(by: By, calendar: Days | None) -> Callable[[Share], str]:
    def of_run(share: Share) -> str:
        run = share.run
        return (
            UNATTRIBUTED
            if run is None
            else {"user": run.user, "account": run.account, "job": run.id}[by] or UNATTRIBUTED
        )

    if by == "pool":
        return lambda share: share.host.pool
    if by == "day" and calendar is not None:
        return lambda share: calendar.name_at(share.begin)
    return of_run
