import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.pages.series import MOST_POINTS, Band, Point, SeriesLine, Summary, across, counted, has_ended, summary

T = 1764072000.0
ANY = st.floats(allow_nan=True, allow_infinity=True)


def test_a_missing_value_is_a_gap() -> None:
    line = SeriesLine("a", [(T, 1), (T + 60, 2), (T + 120, math.nan), (T + 180, 3), (T + 240, math.inf), (T + 300, 4)])
    assert line.drawn == [[(T, 1), (T + 60, 2)], [(T + 180, 3)], [(T + 300, 4)]]


def test_a_time_without_points_is_a_gap() -> None:
    points = [(T + 60 * each, 1.0) for each in (0, 1, 2, 6, 7, 8)]
    assert [len(part) for part in SeriesLine("a", points).drawn] == [3, 3]
    assert [len(part) for part in SeriesLine("a", points, step=240).drawn] == [6]


def test_points_are_drawn_in_the_order_of_time() -> None:
    assert SeriesLine("a", [(T + 60, 2), (T, 1)]).drawn == [[(T, 1), (T + 60, 2)]]


def test_of_many_points_the_extremes_stay() -> None:
    points: list[Point] = [(T + each, math.sin(each / 500)) for each in range(100_000)]
    points[54_321] = (T + 54_321, 9.0)
    points[77_777] = (T + 77_777, -9.0)
    (part,) = SeriesLine("a", points).drawn
    assert len(part) <= MOST_POINTS + 2
    assert part[0][0] == T
    assert {9.0, -9.0} <= {value for _, value in part}
    assert part == sorted(part)


def test_of_many_points_a_gap_that_can_be_seen_stays() -> None:
    line = SeriesLine("a", [(T + each, 1.0) for each in range(100_000) if not 40_000 < each < 60_000])
    assert len(line.drawn) == 2


def test_a_hundred_thousand_gaps_are_still_few_points() -> None:
    points = [(T + each, math.nan if each % 2 else float(each)) for each in range(100_000)]
    drawn = SeriesLine("a", points).drawn
    assert sum(map(len, drawn)) <= 2 * MOST_POINTS


@given(st.lists(st.tuples(ANY, ANY), max_size=30))
def test_any_numbers_can_be_points(points: list[Point]) -> None:
    line = SeriesLine("a", points)
    assert all(math.isfinite(number) for part in line.drawn for point in part for number in point)
    numbers = summary(line)
    assert (numbers.least is None) == (not line.drawn)
    if numbers.least is not None and numbers.most is not None:
        assert numbers.least <= numbers.most


def test_several_lines_become_their_range() -> None:
    lines = [
        SeriesLine("a", [(T, 1), (T + 60, 5)]),
        SeriesLine("b", [(T, 3)]),
        SeriesLine("c", [(T, 8), (T + 60, math.nan)]),
    ]
    assert across("all", lines) == Band("all", [(T, 1, 3, 8), (T + 60, 5, 5, 5)])


def test_a_summary_has_the_extremes() -> None:
    assert summary(SeriesLine("a", [(T, 2), (T + 60, 4), (T + 30, 9)])) == Summary(2, 5, 9, 4)
    assert summary(SeriesLine("a", [])) == Summary(None, None, None, None)
    assert summary(Band("a", [(T, 1, 2, 3), (T + 1, 0, 4, 9)])) == Summary(0, 3, 9, 4)


def test_what_is_counted_and_has_no_value_is_none_of_that_kind() -> None:
    idle, busy = counted([SeriesLine("idle", [(T, 3.0)]), SeriesLine("busy", [(T + 60, 2.0)])])
    assert (idle.points, busy.points) == ([(T, 3.0), (T + 60, 0.0)], [(T, 0.0), (T + 60, 2.0)])


@pytest.mark.parametrize(("end", "ended"), [(None, False), (T + 60, False), (T + 150, False), (T + 300, True)])
def test_a_line_has_ended_where_several_of_its_values_are_missing(end: float | None, ended: bool) -> None:
    assert has_ended(SeriesLine("idle", [(T, 3.0), (T + 60, 3.0)]), end) is ended
    assert not has_ended(SeriesLine("idle", []), end)
