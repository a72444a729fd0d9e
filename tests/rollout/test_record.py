"""The record of a rollout: what it is after each step, and that a run that was killed reads back what it wrote."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.rollout.record import RolloutRecord, begin, parse, with_answer, with_outcomes, with_request

NODES = ("a", "b", "c")
STARTED = begin(dict.fromkeys(NODES, "old"), "new")
TEXTS = st.text(max_size=8)


def test_a_node_has_the_image_that_it_was_asked_for_and_keeps_it_once_it_has_passed() -> None:
    changing = with_request(STARTED, {"a": "new"})
    assert changing.images == {"a": "new", "b": "old", "c": "old"}
    assert changing.in_work == {"a"}
    passed = with_outcomes(with_answer(changing, ["a"]), {"a": ""})
    assert (passed.passed, passed.booted, passed.changing) == (("a",), (), {})
    assert passed.images["a"] == "new"
    assert passed.text == "1 of 3 nodes have the new image"


def test_a_node_that_fails_stays_in_work_until_it_has_its_old_image_again() -> None:
    failed = with_outcomes(with_request(STARTED, {"a": "new"}), {"a": "no GPU"})
    assert (dict(failed.failed), failed.in_work) == ({"a": "no GPU"}, frozenset("a"))
    assert failed.images["a"] == "old", "what it is about to get"
    back = with_outcomes(with_request(failed, {"a": "old"}), {"a": ""})
    assert (back.reverted, back.in_work) == (("a",), frozenset())
    assert "failed: a" in back.text


@pytest.mark.parametrize(("silent", "lost", "gone"), [(False, {"a": "why"}, {}), (True, {}, {"a": "why"})])
def test_a_node_that_is_bad_with_its_old_image_too_is_given_up(
    silent: bool, lost: dict[str, str], gone: dict[str, str]
) -> None:
    failed = with_outcomes(with_request(STARTED, {"a": "new"}), {"a": "no GPU"})
    back = with_outcomes(with_request(failed, {"a": "old"}), {"a": "why"}, silent=silent)
    assert (dict(back.lost), dict(back.silent), back.in_work) == (lost, gone, frozenset())


def test_a_new_attempt_with_the_same_image_takes_back_what_the_first_has_changed() -> None:
    first = with_outcomes(with_request(STARTED, {"a": "new"}), {"a": ""})
    again = begin({"a": "new", "b": "old", "c": "old"}, "new", first)
    assert (again.passed, dict(again.before)) == (("a",), dict.fromkeys(NODES, "old"))
    other = begin({"a": "new", "b": "old", "c": "old"}, "third", first)
    assert (other.passed, other.before["a"]) == ((), "new")


@given(st.builds(
    RolloutRecord,
    target=TEXTS, before=st.dictionaries(TEXTS, TEXTS), changing=st.dictionaries(TEXTS, TEXTS),
    booted=st.lists(TEXTS).map(tuple), passed=st.lists(TEXTS).map(tuple), failed=st.dictionaries(TEXTS, TEXTS),
    reverted=st.lists(TEXTS).map(tuple), lost=st.dictionaries(TEXTS, TEXTS), silent=st.dictionaries(TEXTS, TEXTS),
    taking_back=TEXTS, ended=TEXTS,
))  # fmt: skip
def test_what_was_written_is_read_back(record: RolloutRecord) -> None:
    assert parse(record.to_json()) == record


@pytest.mark.parametrize("text", ["", "{", "7", "[]", '{"format": 2}', '{"format": 1}', '{"format": 1, "booted": 7}'])
def test_what_is_damaged_or_of_another_format_is_no_record(text: str) -> None:
    assert parse(text) is None


def test_a_record_with_a_field_that_this_version_does_not_know_is_not_read() -> None:
    raw = {**json.loads(STARTED.to_json()), "more": 1}
    assert parse(json.dumps(raw)) is None
