"""The polling loop, by a clock of the test's own."""

from __future__ import annotations

import math
import threading

import pytest

from gpucluster.errors import Interrupted
from gpucluster.waiting import wait_until
from tests.cancelled_calls import calling
from tests.doubles.clock import Clock
from tests.waiting import wait_for


def waited(clock: Clock, *results: object, limit: float, interval: float = 1.0) -> object:
    """What comes of a wait for these results, one after the other."""
    answers = iter(results)
    return wait_until(lambda: next(answers), limit, interval, clock=clock, sleep=clock.sleep)


def test_a_condition_that_is_met_costs_no_pause() -> None:
    clock = Clock()
    assert waited(clock, "ready", limit=10) == "ready"
    assert clock.pauses == []


def test_the_first_true_result_is_returned() -> None:
    clock = Clock()
    assert waited(clock, None, 0, "", "third", limit=math.inf, interval=0.5) == "third"
    assert clock.pauses == [0.5, 0.5, 0.5]


def test_after_the_timeout_the_last_false_result_is_returned() -> None:
    clock = Clock()
    assert waited(clock, False, False, False, 0, limit=2.5) == 0
    assert clock.pauses == [1.0, 1.0, 0.5], "the last pause ends at the deadline"


def test_a_condition_is_asked_a_last_time_at_the_deadline() -> None:
    assert waited(Clock(), "", "just in time", limit=1) == "just in time"


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_without_time_the_condition_is_asked_once(limit: float) -> None:
    clock = Clock()
    assert waited(clock, None, limit=limit) is None
    assert clock.pauses == []


def test_a_slow_condition_does_not_make_the_wait_longer_than_one_more_question() -> None:
    clock = Clock()
    asked = 0

    def slow() -> bool:
        nonlocal asked
        asked += 1
        clock.now += 60.0
        return False

    assert wait_until(slow, 90.0, 1.0, clock=clock, sleep=clock.sleep) is False
    assert asked == 3


def test_an_exception_of_the_condition_ends_the_wait() -> None:
    def refused() -> bool:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        wait_until(refused, 10.0, 1.0, sleep=lambda _seconds: pytest.fail("it paused"))


def test_a_usual_wait_ends_when_its_call_is_cancelled() -> None:
    asked = threading.Event()

    def never() -> bool:
        asked.set()
        return False

    with calling(lambda: wait_until(never, math.inf, 86400)) as call:
        wait_for("it waits", asked.is_set)
        assert isinstance(call.cancel(), Interrupted)
