"""Plots as SVG inside of a page: lines over time, bars, strips of heat, and small lines for tables.

Each has its text alternative: a title, a description, and its numbers in a table. Text keeps its size on every screen:
only the lines are stretched, which are in a coordinate system of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from gpucluster.pages.colours import HEAT_LEVELS, LINES
from gpucluster.pages.markup import element, joined
from gpucluster.pages.series import Band, Point, SeriesLine, across, has_ended, summary, times_of, values_of
from gpucluster.pages.units import NOTHING, Unit, decimals_of, ticks, time_ticks, usable, utc

# Coordinates of the stretched drawing.
_WIDTH, _HEIGHT = 2000, 1000
_HEIGHT_PIXELS = 180
# Seconds: labels of a shorter axis have seconds, so fewer fit.
_SHORT = 300
_NEAR_END = 0.95
# Values that begin later than in this part of the axis are all of it: an hour of a day would be a dot.
_LATE = 0.1
# More lines than this are nothing that anyone can tell apart: they become a band.
MOST_LINES = 12
_DASHES = (None, "7 3", "2 3", "9 3 2 3")
# Rows and columns of a heat strip.
MOST_ROWS, MOST_COLUMNS = 64, 120


@dataclass(frozen=True)
class Mark:
    """A level to compare with: what was expected, a limit."""

    name: str
    value: float


@dataclass(frozen=True)
class Bar:
    """One bar. A value of None is shown as missing."""

    name: str
    value: float | None
    note: str = ""


@dataclass(frozen=True)
class Strip:
    """One row of a heat strip; None where a value is missing."""

    name: str
    values: Sequence[float | None] = field(default_factory=tuple)


def time_series(
    title: str,
    lines: Sequence[SeriesLine | Band],
    unit: Unit,
    *,
    start: float | None = None,
    end: float | None = None,
    marks: Sequence[Mark] = (),
    about: str = "",
    empty: str = "There are no values.",
) -> Markup:
    """Lines over time, with a legend that has their least, mean, most and last value.

    More than `MOST_LINES` lines are drawn as one band: the minimum, the median and the maximum of them.

    Args:
        start: where the axis of time begins, in seconds since 1970; None, and where the values begin much later: at the
            first value.
        end: where it ends; None: at the last value. A line that ends before has no last value.
        marks: levels to compare with, drawn across.
        about: a sentence below the title.
        empty: the text without any value.
    """
    lines = _few(lines)
    times = [time for line in lines for time in times_of(line)]
    values = [value for line in lines for value in values_of(line)]
    if not times:
        return _figure(title, about, element("p", empty, class_="nothing"))
    marks = [mark for mark in marks if usable(mark.value)]
    high = max(times) if end is None else end
    late = start is None or min(times) - start > (high - start) * _LATE
    low = min(times) if late or start is None else start
    if high <= low:
        low, high = low - 30, high + 30
    axis = _Axis.over([*values, *(mark.value for mark in marks)], unit)
    across_ = _Span(low, high)
    drawing = element(
        "svg",
        *(_shape(line, index, across_, axis) for index, line in enumerate(lines)),
        viewbox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveaspectratio="none",
        width="100%",
        height="100%",
    )
    chart = element(
        "svg",
        element("title", title),
        element("desc", _described(lines, unit, low, high)),
        *_levels(axis),
        *_times(across_),
        drawing,
        *_marks(marks, axis),
        *(_lonely(line, index, across_, axis) for index, line in enumerate(lines)),
        role="img",
        width="100%",
        height=_HEIGHT_PIXELS,
    )
    return _figure(title, about, element("div", chart, class_="chart"), _legend(lines, unit, end))


def bars(
    title: str, items: Sequence[Bar], unit: Unit, *, mark: Mark | None = None, about: str = "", top: float | None = None
) -> Markup:
    """One bar a row, from zero.

    Args:
        mark: a level to compare with, as a line across every bar.
        top: the end of the bars; None: the largest value, or the end that the unit has.
    """
    known = [item.value for item in items if item.value is not None and usable(item.value)]
    if not items:
        return _figure(title, about, element("p", "There are no values.", class_="nothing"))
    compared = mark if mark and usable(mark.value) else None
    ends = [0.0, *known, *([compared.value] if compared else []), *([top or unit.top or 0.0])]
    span = _Span(min(ends), max(ends) or 1.0)
    rows = [
        element(
            "tr",
            element("th", item.name, scope="row"),
            element("td", _bar(item.value, span, compared), class_="drawn"),
            element("td", unit.text(item.value), class_="number"),
            element("td", item.note) if any(each.note for each in items) else "",
        )
        for item in items
    ]
    legend = (
        element("p", element("span", _key("mark"), f"{compared.name}: {unit.text(compared.value)}"), class_="key")
        if compared
        else ""
    )
    table = element("table", element("caption", title, class_="unseen"), element("tbody", *rows), class_="bars")
    return _figure(title, about, _scrolling(title, table), legend)


def heat_strips(
    title: str,
    rows: Sequence[Strip],
    unit: Unit,
    *,
    ends: tuple[str, str] = ("", ""),
    about: str = "",
    low: float | None = None,
    high: float | None = None,
) -> Markup:
    """A row of coloured cells for each thing, and its highest value beside it.

    Rows beyond `MOST_ROWS` are left out, with a note. More than `MOST_COLUMNS` cells are put together: the highest
    stays.

    Args:
        ends: what the first and the last cell are, such as two times.
        low: the value of the faintest colour; None: the smallest, or zero where the unit begins there.
        high: that of the strongest colour; None: the largest, or the end that the unit has.
    """
    values = [value for row in rows for value in row.values if value is not None and usable(value)]
    if not values:
        return _figure(title, about, element("p", "There are no values.", class_="nothing"))
    least = min([0.0, *values]) if unit.from_zero else min(values)
    first = least if low is None else low
    last = max([unit.top or first, *values]) if high is None else high
    span = _Span(first, last if last > first else first + 1)
    shown = rows[:MOST_ROWS]
    body = [
        element(
            "tr",
            element("th", row.name, scope="row"),
            element("td", _strip(_columns(row.values), span), class_="drawn"),
            element("td", unit.text(max(_known(row.values), default=None)), class_="number"),
        )
        for row in shown
    ]
    head = element(
        "tr",
        element("th", element("span", "Row", class_="unseen"), scope="col"),
        element("th", element("span", ends[0]), element("span", ends[1]), class_="ends", scope="col"),
        element("th", "highest", class_="number", scope="col"),
    )
    left_out = len(rows) - len(shown)
    table = element(
        "table",
        element("caption", title, class_="unseen"),
        element("thead", head),
        element("tbody", *body),
        class_="strips",
    )
    more = element("p", f"{left_out} more are not shown.", class_="key") if left_out else ""
    return _figure(title, about, _scrolling(title, table), _heat_key(span, unit), more)


def sparkline(name: str, points: Sequence[Point], unit: Unit) -> Markup:
    """A line of a word's size, for a cell of a table."""
    line = SeriesLine(name, points)
    drawn, numbers = line.drawn, summary(line)
    if not drawn:
        return element("span", NOTHING, class_="soft")
    times = times_of(line)
    axis = _Axis.over(values_of(line), unit)
    span = _Span(min(times), max(times)) if max(times) > min(times) else _Span(times[0] - 1, times[0] + 1)
    title = f"{name}: {unit.text(numbers.least)} to {unit.text(numbers.most)}, last {unit.text(numbers.last)}"
    return element(
        "svg",
        element("title", title),
        element("path", d=_path(drawn, span, axis), class_="stroke c1"),
        role="img",
        class_="spark",
        viewbox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveaspectratio="none",
    )


# --- axes -----


@dataclass(frozen=True)
class _Span:
    """From a lowest to a highest value."""

    low: float
    high: float

    def part(self, value: float) -> float:
        """Where a value is: 0 at the low end, 1 at the high one; what is outside is at the end."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


@dataclass(frozen=True)
class _Axis:
    """An axis of values with its ticks."""

    span: _Span
    ticks: tuple[tuple[float, str], ...]

    @classmethod
    def over(cls, values: Sequence[float], unit: Unit) -> _Axis:
        low, high = min(values), max(values)
        if unit.from_zero:
            low, high = min(0.0, low), max(high, 0.0)
        if unit.top is not None:
            high = max(high, unit.top)
        scale = unit.scale(max(abs(low), abs(high)))
        places = ticks(low / scale.size, high / scale.size, whole=unit.whole)
        digits = decimals_of(places)
        labelled = tuple((place * scale.size, scale.text(place * scale.size, digits)) for place in places)
        return cls(_Span(places[0] * scale.size, places[-1] * scale.size), labelled)

    def down(self, value: float) -> float:
        """How far below the upper end a value is, as a part of the axis."""
        return 1 - self.span.part(value)


def _percent(part: float) -> str:
    return f"{part * 100:.2f}".rstrip("0").rstrip(".") + "%"


def _levels(axis: _Axis) -> Iterable[Markup]:
    for value, label in axis.ticks:
        down = _percent(axis.down(value))
        yield element("line", x1="0", x2="100%", y1=down, y2=down, class_="grid")
        yield element("text", label, x="-8", y=down, dy=".35em", class_="level")


def _times(span: _Span) -> Iterable[Markup]:
    marks = time_ticks(span.low, span.high, 8 if span.high - span.low > _SHORT else 5)
    for index, (time, label) in enumerate(marks):
        at = _percent(span.part(time))
        wide = " wide" if len(marks) > 4 and index % 2 else ""  # noqa: PLR2004 - what fits on a narrow screen
        # A long label at the end of the axis would leave the plot.
        anchor = "level" if span.part(time) > _NEAR_END and len(label) > len("00:00") else "time"
        yield element("text", label, x=at, y="100%", dy="1.5em", class_=f"{anchor}{wide}")
    yield element("text", "UTC", x="-72", y="100%", dy="1.5em")


# --- drawings -----


def _few(lines: Sequence[SeriesLine | Band]) -> Sequence[SeriesLine | Band]:
    single = [line for line in lines if isinstance(line, SeriesLine)]
    if len(lines) <= MOST_LINES:
        return lines
    bands = [line for line in lines if isinstance(line, Band)]
    return [across(f"median of {len(single)}, and their range", single), *bands[: MOST_LINES - 1]]


def _shape(line: SeriesLine | Band, index: int, span: _Span, axis: _Axis) -> Markup:
    colour = index % LINES + 1
    stroke = {"class_": f"stroke c{colour}", "stroke_dasharray": _dash(index)}
    if isinstance(line, SeriesLine):
        drawn = [part for part in line.drawn if len(part) > 1]
        return element("path", d=_path(drawn, span, axis), **stroke) if drawn else Markup("")
    parts = [part for part in line.drawn if len(part) > 1]
    if not parts:
        return Markup("")
    area = "".join(
        _polyline([(time, high) for time, _, _, high in part], span, axis)
        + _polyline([(time, low) for time, low, _, _ in reversed(part)], span, axis).replace("M", "L")
        + "Z"
        for part in parts
    )
    middle = [[(time, value) for time, _, value, _ in part] for part in parts]
    return element("path", d=area, class_=f"area f{colour}") + element("path", d=_path(middle, span, axis), **stroke)


def _dash(index: int) -> str | None:
    return _DASHES[index % len(_DASHES)]


def _lonely(line: SeriesLine | Band, index: int, span: _Span, axis: _Axis) -> Markup:
    """Values without neighbours: a line has no length there."""
    if isinstance(line, SeriesLine):
        single: list[Point] = [part[0] for part in line.drawn if len(part) == 1]
    else:
        single = [(part[0][0], part[0][2]) for part in line.drawn if len(part) == 1]
    return joined(
        element(
            "circle",
            cx=_percent(span.part(time)),
            cy=_percent(axis.down(value)),
            r="2.5",
            class_=f"f{index % LINES + 1}",
        )
        for time, value in single
    )


def _path(parts: Sequence[Sequence[Point]], span: _Span, axis: _Axis) -> str:
    return "".join(_polyline(part, span, axis) for part in parts)


def _polyline(points: Sequence[Point], span: _Span, axis: _Axis) -> str:
    places = [(round(span.part(time) * _WIDTH), round(axis.down(value) * _HEIGHT)) for time, value in points]
    return "M" + "L".join(f"{x} {y}" for x, y in places)


def _marks(marks: Sequence[Mark], axis: _Axis) -> Iterable[Markup]:
    for mark in marks:
        down = _percent(axis.down(mark.value))
        yield element("line", x1="0", x2="100%", y1=down, y2=down, class_="mark")
        yield element("text", mark.name, x="100%", y=down, dy="-4", class_="marked")


def _bar(value: float | None, span: _Span, mark: Mark | None) -> Markup:
    zero = span.part(0.0)
    drawn = Markup("")
    if value is not None and usable(value):
        at = span.part(value)
        drawn = element("rect", x=_percent(min(zero, at)), width=_percent(abs(at - zero)), height="100%", class_="f1")
    level = Markup("")
    if mark:
        at_mark = _percent(span.part(mark.value))
        level = element("line", x1=at_mark, x2=at_mark, y1="0", y2="100%", class_="mark")
    return element("svg", drawn, level, width="100%", height="14", aria_hidden="true")


# --- heat -----


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and usable(value)]


def _columns(values: Sequence[float | None]) -> list[float | None]:
    width = math.ceil(len(values) / MOST_COLUMNS) or 1
    return [max(_known(values[at : at + width]), default=None) for at in range(0, len(values), width)]


def _strip(values: Sequence[float | None], span: _Span) -> Markup:
    """Cells of the same colour beside each other are one rectangle."""
    runs: dict[int, str] = {}
    at = 0
    while at < len(values):
        level, until = _level(values[at], span), at + 1
        while until < len(values) and _level(values[until], span) == level:
            until += 1
        if level is not None:
            runs[level] = runs.get(level, "") + f"M{at} 0h{until - at}v1h-{until - at}z"
        at = until
    return element(
        "svg",
        *(element("path", d=path, class_=f"h{level}") for level, path in sorted(runs.items())),
        viewbox=f"0 0 {max(1, len(values))} 1",
        preserveaspectratio="none",
        width="100%",
        height="16",
        aria_hidden="true",
    )


def _level(value: float | None, span: _Span) -> int | None:
    if value is None or not usable(value):
        return None
    return min(HEAT_LEVELS - 1, int(span.part(value) * HEAT_LEVELS))


def _heat_key(span: _Span, unit: Unit) -> Markup:
    step = (span.high - span.low) / HEAT_LEVELS
    keys = [
        element("span", _swatch(f"h{level}"), f"from {unit.text(span.low + level * step)}")
        for level in range(HEAT_LEVELS)
    ]
    return element("p", *keys, element("span", _swatch("none"), "no value"), class_="key")


def _swatch(name: str) -> Markup:
    return element(
        "svg",
        element("rect", width="100%", height="100%", class_=name),
        width="14",
        height="10",
        class_="swatch",
        aria_hidden="true",
    )


# --- around them -----


def _figure(title: str, about: str, *content: Markup | str) -> Markup:
    caption = element("figcaption", element("strong", title), element("span", about) if about else "")
    return element("figure", caption, *content, class_="plot")


def _scrolling(title: str, content: Markup) -> Markup:
    """What may be wider than the screen, in a box that the keyboard reaches too."""
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=title)


def _legend(lines: Sequence[SeriesLine | Band], unit: Unit, end: float | None) -> Markup:
    head = [element("th", name, scope="col") for name in ("min", "mean", "max", "last")]
    rows = []
    for index, line in enumerate(lines):
        numbers = summary(line)
        shown = (numbers.least, numbers.mean, numbers.most, None if has_ended(line, end) else numbers.last)
        rows.append(
            element(
                "tr",
                element("th", _key(f"c{index % LINES + 1}", _dash(index)), line.name, scope="row"),
                *(element("td", unit.text(number)) for number in shown),
            )
        )
    heads = element("thead", element("tr", element("th", element("span", "Line", class_="unseen"), scope="col"), *head))
    table = element("table", heads, element("tbody", *rows), class_="legend")
    return _scrolling("Legend", table)


def _key(name: str, dash: str | None = None) -> Markup:
    line = element("line", x1="0", x2="100%", y1="50%", y2="50%", class_=f"stroke {name}", stroke_dasharray=dash)
    return element("svg", line, width="28", height="8", class_="swatch", aria_hidden="true")


def _described(lines: Sequence[SeriesLine | Band], unit: Unit, low: float, high: float) -> str:
    parts = [f"From {utc(low)} to {utc(high)}."]
    for line in lines:
        numbers = summary(line)
        parts.append(f"{line.name}: {unit.text(numbers.least)} to {unit.text(numbers.most)}.")
    return " ".join(parts)
