import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.pages.units import (
    BITS_PER_SECOND,
    BYTES,
    BYTES_PER_SECOND,
    CELSIUS,
    COUNT,
    NOTHING,
    RATIO,
    SECONDS,
    WATTS,
    Unit,
    duration,
    per_second,
    ticks,
    time_ticks,
    utc,
)

NOON = 1764072000  # 2025-11-25 12:00:00 UTC


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (BYTES_PER_SECOND, 2.81e9, "2.81 GB/s"),
        (BYTES_PER_SECOND, 999, "999 B/s"),
        (BITS_PER_SECOND, 23.14e9, "23.1 Gb/s"),
        (BYTES, 80 * 2**30, "80 GiB"),
        (RATIO, 0.97, "97 %"),
        (WATTS, 412.25, "412 W"),
        (WATTS, 10_200, "10.2 kW"),
        (CELSIUS, -4.5, "-4.5 °C"),
        (COUNT, 12_345, "12,345"),
        (COUNT, 0, "0"),
        (SECONDS, 0.0031, "3.1 ms"),
        (per_second("images"), 1234.5, "1,234 images/s"),
        (BYTES, math.nan, NOTHING),
        (BYTES, math.inf, NOTHING),
        (BYTES, None, NOTHING),
        (BYTES, 1e300, NOTHING),
    ],
)
def test_a_value_is_written_with_its_unit(unit: Unit, value: float | None, text: str) -> None:
    assert unit.text(value) == text


@given(
    st.sampled_from([BYTES, BYTES_PER_SECOND, RATIO, SECONDS, COUNT, CELSIUS]),
    st.floats(allow_nan=True, allow_infinity=True),
)
def test_every_number_can_be_written(unit: Unit, value: float) -> None:
    assert 0 < len(unit.text(value)) < 32


@given(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30), st.booleans())
def test_ticks_enclose_the_values_and_are_few(one: float, other: float, whole: bool) -> None:
    low, high = sorted((one, other))
    marks = ticks(low, high, whole=whole)
    room = max(abs(low), abs(high)) * 1e-6 + (1e-9 if whole else 0)  # what is not a whole number counts as the next one
    assert 2 <= len(marks) <= 12
    assert marks[0] <= low + room
    assert marks[-1] >= high - room
    assert marks == sorted(set(marks))


def test_ticks_are_round() -> None:
    assert ticks(0, 97) == [0, 20, 40, 60, 80, 100]
    assert ticks(0, 3, whole=True) == [0, 1, 2, 3]
    assert ticks(-3, 4) == [-4, -2, 0, 2, 4]


def test_ticks_of_time_are_round_in_utc() -> None:
    assert [label for _, label in time_ticks(NOON - 86400, NOON)] == [
        "12:00", "15:00", "18:00", "21:00", "25 Nov", "03:00", "06:00", "09:00", "12:00",
    ]  # fmt: skip
    assert [label for _, label in time_ticks(NOON, NOON + 45)] == [
        "12:00:00", "12:00:10", "12:00:20", "12:00:30", "12:00:40",
    ]  # fmt: skip


@given(st.floats(0, 253402300799), st.floats(0.001, 1e11))
def test_every_span_of_time_has_ticks(start: float, span: float) -> None:
    assert 1 <= len(time_ticks(start, start + span)) <= 10


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (3661, "1 h 1 min"), (90061, "1 d 1 h"), (-120, "-2 min"), (math.nan, NOTHING)],
)
def test_a_duration_has_its_two_largest_parts(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_times_are_in_utc() -> None:
    assert utc(NOON) == "2025-11-25 12:00:00 UTC"
    assert utc(math.nan) == utc(1e18) == utc(-5) == NOTHING
