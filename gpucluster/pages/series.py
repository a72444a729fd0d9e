"""Values over time: what is missing in them, what is drawn of many, and their extremes."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from gpucluster.pages.units import LAST_TIME, usable

# A time in seconds since 1970, and a value. NaN is a value that is missing.
Point = tuple[float, float]
# A time, and the lowest, the middle and the highest of several values.
BandPoint = tuple[float, float, float, float]
AnyPoint = TypeVar("AnyPoint", Point, BandPoint)
# Which of the points in one place are drawn.
_Choice = Callable[[list[AnyPoint]], list[AnyPoint]]

# Points of a line that are drawn. A screen has not many more columns.
MOST_POINTS = 400
# A gap: so many times the usual distance of two points has none.
_GAP = 2.5


@dataclass(frozen=True)
class SeriesLine:
    """One line.

    Args:
        points: in any order.
        step: seconds between two points; None: the usual distance.
    """

    name: str
    points: Sequence[Point]
    step: float | None = None

    @property
    def drawn(self) -> list[list[Point]]:
        """Its parts between gaps, with at most some hundred points in all. Extremes stay."""
        return _reduced(_parts(self.points, self.step), _extremes)


@dataclass(frozen=True)
class Band:
    """A line with an area around it: what several things did together.

    Args:
        points: in any order.
        step: seconds between two points; None: the usual distance.
    """

    name: str
    points: Sequence[BandPoint]
    step: float | None = None

    @property
    def drawn(self) -> list[list[BandPoint]]:
        """Its parts between gaps, with at most some hundred points in all. Extremes stay."""
        return _reduced(_parts(self.points, self.step), _widest)


@dataclass(frozen=True)
class Summary:
    """A line in numbers; None where it has no value."""

    least: float | None
    mean: float | None
    most: float | None
    last: float | None


def across(name: str, lines: Sequence[SeriesLine]) -> Band:
    """The minimum, the median and the maximum of several lines at each time."""
    at: dict[float, list[float]] = defaultdict(list)
    for line in lines:
        for time, value in line.points:
            if usable(value):
                at[time].append(value)
    points = [(time, min(values), statistics.median(values), max(values)) for time, values in sorted(at.items())]
    steps = [line.step for line in lines if line.step]
    return Band(name, points, max(steps) if steps else None)


def summary(line: SeriesLine | Band) -> Summary:
    """The least, the mean, the most and the last value. For a band: the mean and the last of its middle."""
    rows = sorted(_usable(line.points))
    if not rows:
        return Summary(None, None, None, None)
    middle = [row[len(row) // 2] for row in rows]
    return Summary(min(row[1] for row in rows), statistics.fmean(middle), max(row[-1] for row in rows), middle[-1])


def has_ended(line: SeriesLine | Band, end: float | None) -> bool:
    """Whether the line has no value any more at the end of the time that is shown: its last one is an old one."""
    times = sorted(times_of(line))
    if end is None or not times:
        return False
    distances = [b - a for a, b in pairwise(times) if b > a]
    usual = line.step or (statistics.median(distances) if distances else 0.0)
    return bool(usual) and end - times[-1] > usual * _GAP


def counted(lines: Sequence[SeriesLine]) -> list[SeriesLine]:
    """Lines that count things by their state, each with a zero where others have a value and it has none: nothing was
    in that state then.
    """
    times = sorted({time for line in lines for time in times_of(line)})
    known = [dict(line.points) for line in lines]
    return [
        SeriesLine(line.name, [(time, values.get(time, 0.0)) for time in times], line.step)
        for line, values in zip(lines, known, strict=True)
    ]


def values_of(line: SeriesLine | Band) -> list[float]:
    """Every value that can be drawn."""
    return [value for point in _usable(line.points) for value in point[1:]]


def times_of(line: SeriesLine | Band) -> list[float]:
    """Every time that has a value."""
    return [point[0] for point in _usable(line.points)]


def _usable(points: Iterable[tuple[float, ...]]) -> list[tuple[float, ...]]:
    return [point for point in points if 0 <= point[0] <= LAST_TIME and all(map(usable, point[1:]))]


def _parts(points: Sequence[AnyPoint], step: float | None) -> list[list[AnyPoint]]:
    """The points in the order of time, cut where values are missing."""
    ordered = sorted((point for point in points if 0 <= point[0] <= LAST_TIME), key=lambda point: point[0])
    distances = [b[0] - a[0] for a, b in pairwise(ordered) if b[0] > a[0]]
    usual = step or (statistics.median(distances) if distances else 0.0)
    parts: list[list[AnyPoint]] = []
    before: float | None = None
    for point in ordered:
        if not all(map(usable, point[1:])):
            before = None
            continue
        if before is None or point[0] - before > usual * _GAP:
            parts.append([])
        parts[-1].append(point)
        before = point[0]
    return parts


def _reduced(parts: list[list[AnyPoint]], chosen: _Choice[AnyPoint]) -> list[list[AnyPoint]]:
    """Parts with fewer points. A gap that is narrower than what one point stands for is not seen, and not kept."""
    if sum(map(len, parts)) <= MOST_POINTS:
        return parts
    first, last = parts[0][0][0], parts[-1][-1][0]
    width = (last - first) / (MOST_POINTS // 2)
    if not width:
        return [chosen(parts[0])]
    together: list[list[AnyPoint]] = []
    for part in parts:
        if together and part[0][0] - together[-1][-1][0] < width:
            together[-1].extend(part)
        else:
            together.append(list(part))
    return [_reduced_part(part, first, width, chosen) for part in together]


def _reduced_part(part: list[AnyPoint], first: float, width: float, chosen: _Choice[AnyPoint]) -> list[AnyPoint]:
    buckets: dict[int, list[AnyPoint]] = defaultdict(list)
    for point in part:
        buckets[int((point[0] - first) / width)].append(point)
    return [point for _, bucket in sorted(buckets.items()) for point in chosen(bucket)]


def _extremes(bucket: list[Point]) -> list[Point]:
    """The lowest and the highest point, in the order of time."""
    low, high = min(bucket, key=lambda point: point[1]), max(bucket, key=lambda point: point[1])
    return sorted({low, high})


def _widest(bucket: list[BandPoint]) -> list[BandPoint]:
    """One point with the lowest and the highest value."""
    middle = statistics.fmean(point[2] for point in bucket)
    return [(bucket[len(bucket) // 2][0], min(point[1] for point in bucket), middle, max(point[3] for point in bucket))]
