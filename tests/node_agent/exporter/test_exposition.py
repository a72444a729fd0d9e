"""The text format, read by Prometheus' own parser."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.node_agent.exporter.exposition import METRICS, MOST_LABEL, page, sample
from tests.node_agent.exposition import series

# Names of files and devices as os.listdir gives them: bytes that are no UTF-8 are surrogates.
NAMES = st.one_of(
    st.text(max_size=300),
    st.binary(max_size=60).map(lambda data: data.decode("utf-8", "surrogateescape")),
    st.sampled_from(['a"b', "a\\", 'a\\"', "a\nb", "a\\nb", "{}", 'x="y"', ",", " ", "a 1", "# HELP x", "\0", "\r\n"]),
)


@given(st.lists(st.tuples(st.sampled_from(sorted(METRICS)), NAMES, NAMES, st.integers(0, 2**64)), max_size=20))
def test_whatever_a_label_is_the_page_is_read_as_it_was_meant(rows: list[tuple[str, str, str, int]]) -> None:
    lines = [sample(name, value, device=first, counter=second) for name, first, second, value in rows]
    assert all("\n" not in line for line in lines)
    text = page(lines)
    text.encode()
    meant: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for name, first, second, value in rows:
        labels = {"device": first, "counter": second}
        kept = {
            key: "".join("\ufffd" if "\ud800" <= sign <= "\udfff" else sign for sign in value[:MOST_LABEL])
            for key, value in labels.items()
        }
        meant.setdefault((name, frozenset(kept.items())), float(value))
    assert series(text) == meant


@pytest.mark.parametrize(("value", "read"), [(0.1, 0.1), (2**64, 2.0**64), (1e300, 1e300), (-5, -5.0), (True, 1.0)])
def test_numbers_are_read_as_they_are(value: float, read: float) -> None:
    assert list(series(page([sample("gpucluster_job_node", value)])).values()) == [read]


def test_what_is_not_a_finite_number_has_the_words_of_the_format() -> None:
    values = [math.nan, math.inf, -math.inf]
    assert [sample("gpucluster_job_node", value).split()[1] for value in values] == ["NaN", "+Inf", "-Inf"]


def test_counters_are_called_total_and_nothing_else_is() -> None:
    for name, metric in METRICS.items():
        assert name.endswith("_total") == (metric.type == "counter"), name
        assert "\n" not in metric.help


def test_a_line_that_is_not_a_sample_is_left_out() -> None:
    assert page(["", "None", "nosuch 1", 'nosuch{a="b"} 1', "gpucluster_job_node 1"]).splitlines()[2:] == [
        "gpucluster_job_node 1"
    ]
