import math
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.pages.plots import MOST_LINES, MOST_ROWS, Bar, Mark, Strip, bars, heat_strips, sparkline, time_series
from gpucluster.pages.series import Band, Point, SeriesLine
from gpucluster.pages.units import BYTES_PER_SECOND, COUNT, NOTHING, RATIO, WATTS, Unit
from tests.examples import examples
from tests.pages.reading import drawings, read

T = 1764072000.0
ANY = st.floats(allow_nan=True, allow_infinity=True)
HOSTILE = "</title><script>alert(1)</script>\"'&\n\x00\u202e\ud800"


def line(*values: float, name: str = "a", step: float = 60) -> SeriesLine:
    return SeriesLine(name, [(T + step * index, value) for index, value in enumerate(values)])


def paths(html: str) -> list[str]:
    return re.findall(r' d="([^"]*)"', html)


def test_a_plot_states_its_content_in_words_too() -> None:
    html = time_series("Power", [line(100, 300, 200, name="gpu 0")], WATTS, about="of one node")
    chart, *keys = drawings(html)
    assert [child.text for child in chart][:2] == [
        "Power",
        "From 2025-11-25 12:00:00 UTC to 2025-11-25 12:02:00 UTC. gpu 0: 100 W to 300 W.",
    ]
    assert chart.get("role") == "img"
    assert all(key.get("aria-hidden") for key in keys)
    text = read(html).text
    assert "of one node" in text
    assert [each.text for each in read(html).all("td")] == ["100 W", "200 W", "300 W", "200 W"]


def test_the_highest_value_is_drawn_at_the_top_and_the_first_at_the_left() -> None:
    (path,) = paths(time_series("Use", [line(0, 1, 0.5)], RATIO))
    assert path == "M0 1000L1000 0L2000 500"


def test_a_gap_is_not_drawn_over() -> None:
    (path,) = paths(time_series("Use", [line(1, 1, math.nan, 1, 1)], RATIO))
    assert path == "M0 0L500 0M1500 0L2000 0"


def test_a_value_without_neighbours_is_a_dot() -> None:
    html = time_series("Use", [line(0.5)], RATIO)
    assert [(each.attributes["cx"], each.attributes["cy"]) for each in read(html).all("circle")] == [("50%", "50%")]
    assert paths(html) == []


def test_a_band_is_an_area_with_its_middle() -> None:
    area, middle = paths(time_series("Use", [Band("all", [(T, 0, 0.5, 1), (T + 60, 0, 0.5, 1)])], RATIO))
    assert area == "M0 0L2000 0L2000 1000L0 1000Z"
    assert middle == "M0 500L2000 500"


def test_without_values_a_plot_states_this() -> None:
    for lines in ([], [SeriesLine("a", [])], [line(math.nan, math.inf)]):
        html = time_series("Use", lines, RATIO, empty="Monitoring is off.")
        assert "Monitoring is off." in html
        assert drawings(html) == []


def test_lines_are_told_apart_without_their_colour() -> None:
    html = time_series("Use", [line(1, 2, name=str(each)) for each in range(4)], COUNT)
    shown = read(html).all("path")
    assert len({each.attributes.get("stroke-dasharray") for each in shown}) == 4


def test_more_lines_than_one_can_read_become_their_range() -> None:
    html = time_series("Use", [line(1, 2, name=f"gpu {each}") for each in range(MOST_LINES + 1)], COUNT)
    assert "median of 13, and their range" in html
    assert "gpu 0" not in html


def test_a_mark_is_inside_of_the_plot_however_high() -> None:
    html = time_series("Bandwidth", [line(1e9, 2e9)], BYTES_PER_SECOND, marks=[Mark("expected", 48e9)])
    assert "50 GB/s" in html
    assert "expected" in read(html).text


def test_a_hundred_thousand_points_are_a_small_plot() -> None:
    points = [(T + each, math.sin(each / 100) * 1e9) for each in range(100_000)]
    assert len(time_series("Use", [SeriesLine("a", points)], BYTES_PER_SECOND)) < 12_000


@examples(60)
@given(
    st.lists(st.lists(st.tuples(ANY, ANY), max_size=6), max_size=4),
    st.text(max_size=20),
    st.sampled_from([RATIO, COUNT, BYTES_PER_SECOND]),
)
def test_any_numbers_and_names_make_a_sound_plot(series: Sequence[list[Point]], name: str, unit: Unit) -> None:
    html = time_series(name, [SeriesLine(name, points) for points in series], unit, marks=[Mark(name, 1e300)])
    assert read(html).faults == []
    assert not re.search(r"nan|inf\b", " ".join(paths(html)))
    drawings(html)


@pytest.mark.parametrize(
    "html",
    [
        time_series(HOSTILE, [line(1, 2, name=HOSTILE)], COUNT, about=HOSTILE, marks=[Mark(HOSTILE, 1)]),
        bars(HOSTILE, [Bar(HOSTILE, 1, HOSTILE)], COUNT, mark=Mark(HOSTILE, 1), about=HOSTILE),
        heat_strips(HOSTILE, [Strip(HOSTILE, [1, 2])], COUNT, ends=(HOSTILE, HOSTILE), about=HOSTILE),
        sparkline(HOSTILE, [(T, 1), (T + 1, 2)], COUNT),
    ],
)
def test_names_are_only_text(html: str) -> None:
    page = read(html)
    assert page.faults == []
    assert "alert(1)" in page.text
    assert not set("\x00\u202e\ud800\n") & set(html)
    drawings(html)


def test_a_bar_is_as_long_as_its_value() -> None:
    page = read(bars("Bandwidth", [Bar("8 MiB", 25), Bar("1 GiB", 100), Bar("8 GiB", None)], COUNT, top=200))
    assert [each.attributes["width"] for each in page.all("rect")] == ["12.5%", "50%"]
    assert [each.text for each in page.all("td") if each.attributes.get("class") == "number"] == ["25", "100", "—"]


def test_bars_below_zero_go_to_the_other_side() -> None:
    page = read(bars("Change", [Bar("a", -1), Bar("b", 3)], COUNT))
    assert [(each.attributes["x"], each.attributes["width"]) for each in page.all("rect")] == [
        ("0%", "25%"),
        ("25%", "75%"),
    ]


def test_heat_shows_missing_values_as_missing() -> None:
    html = heat_strips("Use", [Strip("gpu-1", [0, 0, None, 1, math.nan, 0.5])], RATIO, ends=("02:00", "03:00"))
    assert paths(html) == ["M0 0h2v1h-2z", "M5 0h1v1h-1z", "M3 0h1v1h-1z"]
    assert [each.text for each in read(html).all("td")] == ["", "100 %"]


@pytest.mark.slow
def test_heat_of_many_rows_and_cells_stays_small_and_keeps_the_highest() -> None:
    rows = [Strip(f"gpu-{row}", [(row + cell) % 7 / 7 for cell in range(5000)]) for row in range(1000)]
    html = heat_strips("Use", rows, RATIO)
    assert len(html) < 300_000
    assert f"{1000 - MOST_ROWS} more are not shown." in html
    one = heat_strips("Use", [Strip("a", [0.0] * 4999 + [1.0])], RATIO)
    assert "h4" in [each.attributes["class"] for each in read(one).all("path")]


def test_the_same_input_gives_the_same_text() -> None:
    assert time_series("Use", [line(1, 2, 3)], COUNT) == time_series("Use", [line(1, 2, 3)], COUNT)


def test_an_axis_begins_where_the_values_do_if_that_is_much_later() -> None:
    hour = [line(0, 1, 0.5, step=1800)]
    (path,) = paths(time_series("Use", hour, RATIO, start=T - 82800, end=T + 3600))
    assert path.startswith("M0 ")
    assert path.endswith("L2000 500")
    (path,) = paths(time_series("Use", hour, RATIO, start=T - 60, end=T + 3600))
    assert not path.startswith("M0 "), "the first minute of an hour is empty"


def test_a_line_that_has_ended_has_no_last_value() -> None:
    html = time_series("Nodes", [line(3, 3), line(1, 1, 1, 1, 1, 1, name="b")], COUNT, start=T, end=T + 300)
    assert [each.text for each in read(html).all("td")] == ["3", "3", "3", NOTHING, "1", "1", "1", "1"]
