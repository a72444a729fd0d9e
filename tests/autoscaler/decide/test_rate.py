"""The rate of requests, against a model of a cloud that accepts so many a second. No threads, no clock."""

from __future__ import annotations

import heapq

import pytest

from gpucluster.autoscaler.decide.rate import Rate


class Limiter:
    """A double of OCI's throttling: a bucket of so many requests, filled at so many a second."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst, self.left, self.at = rate, burst, burst, 0.0

    def takes(self, now: float) -> bool:
        self.left = min(self.burst, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


def drive(rate: Rate, limiter: Limiter, wanted: int, latency: float, storm: float = 0.0) -> tuple[int, float]:
    """Send until `wanted` requests were taken. Returns how many were sent, and how long it took."""
    now, sent, taken = 1000.0, 0, 0
    answers: list[tuple[float, int, bool]] = []
    limiter.at = now
    while taken < wanted:
        while answers and answers[0][0] <= now:
            _, epoch, ok = heapq.heappop(answers)
            if ok:
                rate.taken(epoch)
                taken += 1
            else:
                rate.throttled(epoch)
        if taken + len(answers) < wanted:
            delay = rate.take(now)
            if delay == 0:
                sent += 1
                heapq.heappush(answers, (now + latency, rate.epoch, now >= 1000.0 + storm and limiter.takes(now)))
                continue
        else:
            delay = latency
        now = min(now + delay, answers[0][0]) if answers else now + delay
        assert now < 1000.0 + 36000
    return sent, now - 1000.0


@pytest.mark.parametrize("latency", [0.05, 0.5, 2.0])
@pytest.mark.parametrize(("limit", "burst"), [(2.0, 5.0), (5.0, 10.0), (20.0, 20.0)])
def test_a_cloud_that_takes_few_is_asked_little_more_often_than_it_takes(
    limit: float, burst: float, latency: float
) -> None:
    sent, took = drive(Rate(), Limiter(limit, burst), 500, latency)
    assert sent < 1.2 * 500
    assert took < 3.5 * 500 / limit


def test_a_storm_of_refusals_costs_few_requests() -> None:
    sent, took = drive(Rate(), Limiter(50.0, 50.0), 200, 0.2, storm=60.0)
    assert sent < 1.2 * 200
    assert took < 60 + 60


def test_without_refusals_it_goes_up_to_the_ceiling() -> None:
    rate = Rate()
    sent, took = drive(rate, Limiter(1000.0, 1000.0), 1000, 0.1)
    assert sent == 1000
    assert rate.rate > 50.0
    assert took < 20


def test_it_starts_at_once_and_then_at_eight_a_second() -> None:
    rate = Rate()
    assert [rate.take(5.0) for _ in range(8)] == [0.0] * 8
    assert rate.take(5.0) == pytest.approx(1 / 8)
    assert rate.take(5.0 + 1 / 8) == 0.0


def test_many_refusals_of_requests_sent_together_count_once() -> None:
    rate = Rate()
    for _ in range(8):
        rate.take(1.0)
    epoch = rate.epoch
    for _ in range(8):
        rate.throttled(epoch)
    assert rate.rate == 4.0


def test_it_never_goes_below_the_floor_and_probes_one_at_a_time() -> None:
    rate = Rate()
    now = 0.0
    rate.throttled(rate.epoch)
    for _ in range(40):
        while delay := rate.take(now):
            now += delay
        assert rate.take(now) > 0  # one probe is out
        rate.throttled(rate.epoch)
    assert rate.rate == 0.2
    while delay := rate.take(now):
        assert delay <= 5.0
        now += delay
    rate.lost(rate.epoch)  # no answer: it may be asked again
    while delay := rate.take(now):
        now += delay


def test_a_clock_that_goes_back_does_no_harm() -> None:
    rate = Rate()
    for _ in range(8):
        rate.take(100.0)
    assert 0 < rate.take(50.0) <= 1 / 8
    assert rate.take(51.0) == 0.0
