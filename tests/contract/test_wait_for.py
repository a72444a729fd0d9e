"""The one way in which tests wait, itself: what it returns, how often it asks, and what a failure reports."""

from __future__ import annotations

import pytest

from tests import waiting
from tests.doubles.clock import LateTime
from tests.waiting import wait_for


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> LateTime:
    """Each look at the time takes a second, and each pause none."""
    made = LateTime(lambda: True, step=1.0)
    monkeypatch.setattr(made, "sleep", lambda _seconds: None, raising=False)
    monkeypatch.setattr(waiting, "time", made)
    return made


def test_the_first_true_answer_is_returned() -> None:
    answers = iter([None, 0, "", "yes", "never asked"])
    assert wait_for("an answer", lambda: next(answers)) == "yes"
    assert next(answers) == "never asked"


def test_a_condition_is_asked_a_last_time_when_the_patience_is_over(clock: LateTime) -> None:
    end = clock.now + 10
    assert wait_for("the end", lambda: clock.now > end, patience=10)
    asked: list[float] = []
    with pytest.raises(AssertionError, match="not within 0 s: what was asked once"):
        wait_for("what was asked once", lambda: asked.append(clock.now), patience=0)
    assert len(asked) == 1


def test_a_failure_names_what_was_awaited_the_last_answer_and_the_state() -> None:
    with pytest.raises(AssertionError) as caught:
        wait_for("the job runs", list, patience=3, state=lambda: "the log of the job")
    assert str(caught.value) == "not within 3 s: the job runs\nlast answer: []\nthe log of the job"


def test_a_state_that_can_not_be_asked_hides_nothing() -> None:
    def broken() -> str:
        raise OSError("gone")

    with pytest.raises(AssertionError, match=r"the job runs(.|\n)*OSError\('gone'\)"):
        wait_for("the job runs", lambda: False, patience=3, state=broken)


def test_exceptions_that_mean_not_yet_are_waited_out_and_others_are_not() -> None:
    answers = iter([KeyError("a"), OSError("b"), "yes"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    assert wait_for("an answer", ask, ignore=(KeyError, OSError)) == "yes"
    answers = iter([KeyError("a"), ValueError("b")])
    with pytest.raises(ValueError, match="b"):
        wait_for("an answer", ask, ignore=KeyError)


def test_an_exception_is_the_last_answer() -> None:
    def ask() -> str:
        raise KeyError("still not")

    with pytest.raises(AssertionError, match=r"last answer: KeyError\('still not'\)"):
        wait_for("an answer", ask, patience=3, ignore=KeyError)


def test_long_answers_and_states_are_cut() -> None:
    with pytest.raises(AssertionError) as caught:
        wait_for("the end", lambda: "", patience=3, state=lambda: "begin" + "x" * 100_000 + "end")
    assert len(str(caught.value)) < 10_000
    assert str(caught.value).endswith("xend"), "the end of a log says why"
