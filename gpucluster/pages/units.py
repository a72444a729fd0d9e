"""Numbers with their units, and the ticks of axes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

_SECOND, _MINUTE, _HOUR, _DAY = 1, 60, 3600, 86400
_TIME_STEPS = (
    *(each * _SECOND for each in (1, 2, 5, 10, 15, 30)),
    *(each * _MINUTE for each in (1, 2, 5, 10, 15, 30)),
    *(each * _HOUR for each in (1, 2, 3, 6, 12)),
    *(each * _DAY for each in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 200000, 1000000)),
)
# Seconds since 1970 that a date has: up to the year 9999.
LAST_TIME = 253402300799.0
# Beyond it, a value is a mistake of who measured, and is treated as one that is missing.
LARGEST = 1e30
_THOUSAND, _KIBI = 1000, 1024
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_SMALL = ("", "m", "µ", "n")
NOTHING = "—"


@dataclass(frozen=True)
class Unit:
    """What a number counts.

    Args:
        name: stands after the number.
        factor: a value times it is what is shown: 100 for a ratio in percent.
        base: 1000 or 1024 for prefixes (kB, KiB); 0 for none.
        small: whether values below one have prefixes too (ms).
        from_zero: whether an axis begins at zero.
        top: the end of an axis unless a value is above it, as a value; None: the largest value.
        whole: whether only whole numbers have a meaning.
    """

    name: str
    factor: float = 1.0
    base: int = 0
    small: bool = False
    from_zero: bool = True
    top: float | None = None
    whole: bool = False

    def text(self, value: float | None) -> str:
        """The value with three digits that count: "1.23 GB/s". A dash for one that is missing or no number."""
        if value is None or not usable(value):
            return NOTHING
        scale = self.scale(abs(value))
        return scale.text(value)

    def scale(self, largest: float) -> UnitScale:
        """The prefix for values of up to `largest`."""
        shown = largest * self.factor
        if not self.base or not shown:
            return UnitScale(1 / self.factor, self.name)
        if shown < 1:
            power = min(len(_SMALL) - 1, max(0, math.ceil(-math.log10(shown) / 3 - 1e-9))) if self.small else 0
            return UnitScale(_THOUSAND**-power / self.factor, _SMALL[power] + self.name)
        prefixes = _BINARY if self.base == _KIBI else _DECIMAL
        power = min(len(prefixes) - 1, int(math.log(shown, self.base) + 1e-9))
        return UnitScale(self.base**power / self.factor, prefixes[power] + self.name)


@dataclass(frozen=True)
class UnitScale:
    """A unit with its prefix.

    Args:
        size: a value divided by it is what is shown.
    """

    size: float
    name: str

    def text(self, value: float, decimals: int | None = None) -> str:
        """The value in this scale.

        Args:
            decimals: digits after the point; None: as many as three digits need.
        """
        number = _number(value / self.size, decimals)
        return f"{number} {self.name}" if self.name else number


RATIO = Unit("%", factor=100, top=1)
BYTES = Unit("B", base=_KIBI)
BYTES_PER_SECOND = Unit("B/s", base=_THOUSAND)
BITS_PER_SECOND = Unit("b/s", base=_THOUSAND)
WATTS = Unit("W", base=_THOUSAND)
CELSIUS = Unit("°C", from_zero=False)
SECONDS = Unit("s", base=_THOUSAND, small=True)
COUNT = Unit("", whole=True)
NUMBER = Unit("")


def per_second(what: str) -> Unit:
    """A rate of something: images/s."""
    return Unit(f"{what}/s")


def usable(value: float) -> bool:
    """Whether a value can be drawn: no NaN, no infinity, and of a size that something can have."""
    return math.isfinite(value) and abs(value) <= LARGEST


def ticks(low: float, high: float, most: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers (1, 2, 2.5, 5 times a power of ten) from one at or below `low` to one at or above `high`.

    Args:
        most: about how many.
        whole: only whole numbers.
    """
    span = high - low
    if span <= max(abs(low), abs(high)) * 1e-9 or span < 1e-30:  # noqa: PLR2004 - one value: make room around it
        room = max(abs(high) * 0.5, 1.0 if whole or not high else 0.0) or 1.0
        low, high = (low - room if low < 0 else max(0.0, low - room)), high + room
        span = high - low
    step = _round_step(span / most)
    if whole:
        step = max(1.0, math.ceil(step))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def decimals_of(values: Iterable[float]) -> int:
    """How many digits after the point tell the ticks apart."""
    listed = sorted(values)
    step = min((b - a for a, b in pairwise(listed)), default=1.0)
    for digits in range(7):
        if abs(round(step, digits) - step) <= abs(step) * 1e-6:
            return digits
    return 6


def time_ticks(start: float, end: float, most: int = 8) -> list[tuple[float, str]]:
    """Round times in UTC between two, with their labels: the time of the day, and the date where a day begins.

    Args:
        start: seconds since 1970, as `end`.
    """
    span = end - start
    step = next((each for each in _TIME_STEPS if span / each <= most), _TIME_STEPS[-1])
    first = math.ceil(start / step - 1e-9)
    last = math.floor(end / step + 1e-9)
    times = [float(number * step) for number in range(first, last + 1)]
    if not times:
        times = [start]
        step = _SECOND
    return [(each, _time_label(each, step)) for each in times]


def utc(seconds: float) -> str:
    """A time in UTC, to the second: "2026-11-23 02:03:00 UTC". A dash for one that no calendar has."""
    return f"{_at(seconds):%Y-%m-%d %H:%M:%S} UTC" if 0 <= seconds <= LAST_TIME else NOTHING


def duration(seconds: float) -> str:
    """A span of time in its two largest parts: "3 d 4 h", "5 min 2 s"."""
    if not usable(seconds):
        return NOTHING
    left = round(abs(seconds))
    parts: list[str] = []
    for size, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (_SECOND, "s")):
        number, left = divmod(left, size)
        if number or parts:
            parts.append(f"{number} {name}" if number else "")
    shown = " ".join(part for part in parts[:2] if part) or "0 s"
    return f"-{shown}" if seconds <= -1 else shown


def _time_label(seconds: float, step: float) -> str:
    at = _at(min(max(seconds, 0), LAST_TIME))
    if seconds % _DAY == 0:
        return f"{at:%Y-%m-%d}" if step >= 100 * _DAY else f"{at:%d %b}"
    return f"{at:%H:%M:%S}" if step < _MINUTE else f"{at:%H:%M}"


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return float(next(each for each in (1, 2, 2.5, 5, 10, 20) if each * power >= least * (1 - 1e-9)) * power)


def _number(value: float, decimals: int | None) -> str:
    if abs(value) >= 1e15:  # noqa: PLR2004 - more digits than anyone reads
        return f"{value:.2e}"
    if decimals is None:
        size = math.floor(math.log10(abs(value))) if value else 0
        if value and size < -6:  # noqa: PLR2004 - the same
            return f"{value:.2e}"
        text = f"{value:,.{max(0, 2 - size)}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value + 0.0:,.{decimals}f}"
