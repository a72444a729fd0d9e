"""The polling loop, by a clock of the test's own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from gpucluster.waiting import wait_until


@dataclass
class Clock:
    """Time that only passes while somebody sleeps."""

    now: float = 100.0
    pauses: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def wait(self, *results: object, timeout: float, interval: float = 1.0) -> object:
        answers = iter(results)
        return wait_until(lambda: next(answers), timeout, interval, clock=lambda: self.now, sleep=self.sleep)


def test_a_condition_that_is_met_costs_no_pause() -> None:
    clock = Clock()
    assert clock.wait("ready", timeout=10) == "ready"
    assert clock.pauses == []


def test_the_first_true_result_is_returned() -> None:
    clock = Clock()
    assert clock.wait(None, 0, "", "third", timeout=math.inf, interval=0.5) == "third"
    assert clock.pauses == [0.5, 0.5, 0.5]


def test_after_the_timeout_the_last_false_result_is_returned() -> None:
    clock = Clock()
    assert clock.wait(False, False, False, 0, timeout=2.5) == 0
    assert clock.pauses == [1.0, 1.0, 0.5], "the last pause ends at the deadline"


def test_a_condition_is_asked_a_last_time_at_the_deadline() -> None:
    assert Clock().wait("", "just in time", timeout=1) == "just in time"


@pytest.mark.parametrize("timeout", [0.0, -1.0])
def test_without_time_the_condition_is_asked_once(timeout: float) -> None:
    clock = Clock()
    assert clock.wait(None, timeout=timeout) is None
    assert clock.pauses == []


def test_a_slow_condition_does_not_make_the_wait_longer_than_one_more_question() -> None:
    clock = Clock()
    asked = 0

    def slow() -> bool:
        nonlocal asked
        asked += 1
        clock.now += 60.0
        return False

    assert wait_until(slow, 90.0, 1.0, clock=lambda: clock.now, sleep=clock.sleep) is False
    assert asked == 3


def test_an_exception_of_the_condition_ends_the_wait() -> None:
    def refused() -> bool:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        wait_until(refused, 10.0, 1.0, sleep=lambda _seconds: pytest.fail("it paused"))
