"""What judges share: values that are absent, and several things that make one outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from gpucluster.node_agent.checks.judges import parts
from gpucluster.node_agent.checks.judges.parts import Absent, Broken, NoValue, PartResult
from tests.node_agent.checks.judges.results import FAIL, PASS, SKIP, UNKNOWN, WARN

LEAVES = {"gpu/ecc/mode": "Enabled", "gpu/ecc/errors": "N/A", "gpu/pages": "Unknown Error", "gpu/rows": "N/A"}


def test_a_value_is_found_by_its_path() -> None:
    assert parts.leaf(LEAVES, "gpu/ecc/mode") == "Enabled"


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        ("gpu/ecc/errors", NoValue, "errors is 'N/A'"),
        ("gpu/pages", Absent, "pages is 'Unknown Error'"),
        ("gpu/none", Absent, "there is no none"),
        ("gpu/rows/bank/high", NoValue, "there is no high"),  # in place of the whole group
    ],
)
def test_a_value_that_is_not_there(path: str, kind: type[Absent], message: str) -> None:
    with pytest.raises(kind, match=message) as raised:
        parts.leaf(LEAVES, path)
    assert type(raised.value) is kind


def test_a_gpu_that_does_not_work_is_broken_and_not_without_a_value() -> None:
    with pytest.raises(Broken, match="GPU is lost"):
        parts.leaf({"gpu/ecc": "GPU is lost"}, "gpu/ecc")
    assert not parts.is_broken("N/A")


@pytest.mark.parametrize(("text", "value"), [("16x", 16.0), (" 26.562 GB/s", 26.562), ("-3 C", -3.0), (8, 8.0)])
def test_the_number_at_the_start_of_a_text(text: object, value: float) -> None:
    assert parts.number(text) == value


@pytest.mark.parametrize("text", ["", "x16", "GB/s 3", None])
def test_a_text_that_starts_with_none(text: object) -> None:
    with pytest.raises(Absent, match="is not a number"):
        parts.number(text)


def test_yes_and_no() -> None:
    assert [parts.yes(text) for text in ("Yes", "Enabled", "Active", "No", "Disabled", "Not Active")] == [
        *([True] * 3), *([False] * 3),
    ]  # fmt: skip
    with pytest.raises(Absent, match="neither yes nor no"):
        parts.yes("perhaps")


def judge_one(thing: Mapping[str, str]) -> Iterator[PartResult]:
    temperature = parts.number(parts.leaf(thing, "temperature"))
    if temperature > 90:
        yield PartResult(FAIL, f"{temperature:g} C")
    elif temperature > 80:
        yield PartResult(WARN, f"{temperature:g} C")


def judged(*temperatures: str, any_model: bool = False) -> tuple[object, str]:
    things = {f"GPU {number}": {"temperature": text} for number, text in enumerate(temperatures)}
    outcome = parts.each(things, judge_one, "all are cool", any_model=any_model)
    return outcome.status, outcome.message


def test_of_several_things_the_worst_counts_and_is_named() -> None:
    assert judged("40 C", "50 C") == (PASS, "all are cool")
    assert judged("85 C", "50 C") == (WARN, "GPU 0: 85 C")
    assert judged("85 C", "95 C", "96 C") == (FAIL, "GPU 1: 95 C; GPU 2: 96 C")
    assert judged("50 C", "GPU is lost") == (FAIL, "GPU 1: GPU is lost")


def test_of_nothing_nothing_is_known() -> None:
    assert judged() == (UNKNOWN, "nothing was measured")


def test_what_is_absent_in_one_thing_makes_it_unknown() -> None:
    assert judged("40 C", "N/A") == (UNKNOWN, "GPU 1: temperature is 'N/A'")
    assert judged("40 C", "Unknown Error", any_model=True)[0] is UNKNOWN
    # A fault of another one counts all the same.
    assert judged("95 C", "N/A") == (FAIL, "GPU 0: 95 C")


def test_where_the_model_is_not_known_a_value_that_it_does_not_have_is_skipped() -> None:
    assert judged("N/A", any_model=True) == (SKIP, "GPU 0: temperature is 'N/A'")


def test_of_many_a_few_are_named_and_the_evidence_has_all() -> None:
    outcome = parts.sum_up([PartResult(FAIL, f"GPU {number}") for number in range(6)], "good")
    assert outcome.message == "GPU 0; GPU 1; GPU 2; GPU 3 (and 2 more)"
    assert len(outcome.evidence["messages"]) == 6
