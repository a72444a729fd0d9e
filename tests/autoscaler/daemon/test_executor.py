"""Launches in parallel, with a double for the cloud; `test_oci` and `test_services` have the real one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpucluster.autoscaler.daemon.executor import InstanceLauncher, Sent, WorkQueue
from gpucluster.autoscaler.daemon.oci import RequestFailed
from gpucluster.autoscaler.decide.rate import Rate
from gpucluster.autoscaler.decide.types import Fault, Launch
from tests.doubles.clock import Clock
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow


def launch(number: int) -> Launch:
    return Launch(f"c-e{number}", "c", 1, f"token-{number}", "a test")


@contextmanager
def launcher(
    send: Callable[[Launch], tuple[str, str]],
    is_needed: Callable[[Launch], bool] = lambda _: True,
    rate: Rate | None = None,
    wake: Callable[[], None] = lambda: None,
    **options: Any,
) -> Iterator[InstanceLauncher]:
    made = InstanceLauncher(send, is_needed=is_needed, rate=rate, wake=wake, **options)
    try:
        yield made
    finally:
        made.close()


def collected(made: InstanceLauncher, count: int) -> tuple[Sent, ...]:
    wait_for(f"{count} launches have an outcome", lambda: len(made.collect()[0]) == count, interval=0.005)
    return made.collect()[0]


def test_an_outcome_stays_until_it_is_acknowledged() -> None:
    with launcher(lambda one: (f"id-{one.node}", "request")) as made:
        assert made.submit(launch(1))
        [sent] = collected(made, 1)
        assert (sent.outcome.instance_id, sent.outcome.fault, sent.outcome.request_id) == ("id-c-e1", None, "request")
        assert not made.submit(launch(1))  # its outcome is not written down yet
        # `collect` leaves it out as soon as there is an outcome; its thread takes it from the queue a moment later.
        wait_for("it has left the queue", lambda: not made._queue.keys)
        assert made.collect() == ((sent,), frozenset())
        made.acknowledge((sent,))
        assert made.collect() == ((), frozenset())
        assert made.submit(launch(1))


def test_launches_go_out_together_and_each_token_once() -> None:
    gate, sent = threading.Event(), Counter[str]()
    lock = threading.Lock()

    def send(one: Launch) -> tuple[str, str]:
        with lock:
            sent[one.token] += 1
        gate.wait(PATIENCE_S)
        return one.node, ""

    with launcher(send) as made:
        assert all(made.submit(launch(n)) for n in range(8))
        assert not any(made.submit(launch(n)) for n in range(8))
        wait_for("all eight are sent", lambda: len(sent) == 8)
        assert made.collect() == ((), frozenset(f"token-{n}" for n in range(8)))
        gate.set()
        collected(made, 8)
        assert set(sent.values()) == {1}


def test_one_that_is_not_intended_any_more_is_dropped_without_a_word() -> None:
    sent: list[str] = []

    def send(one: Launch) -> tuple[str, str]:
        sent.append(one.node)
        return one.node, ""

    with launcher(send, is_needed=lambda one: one.node != "c-e1") as made:
        made.submit(launch(1))
        made.submit(launch(2))
        collected(made, 1)
        wait_for("the other one is dropped", lambda: made.collect()[1] == frozenset())
        assert sent == ["c-e2"]


class JumpingRate(Rate):
    """Who has to wait moves the clock on instead."""

    clock: Clock

    def take(self, now: float) -> float:
        while (delay := super().take(now)) > 0:
            self.clock.now += delay
            now = self.clock.now
        return 0.0


def test_a_storm_of_429_fails_nothing_and_asks_little_more_than_once_a_node() -> None:
    """Scenario 5: the cloud takes 20 a second, and answers 429 to the rest.

    On a clock of the test, so one at a time; test_rate has requests that overlap, on a clock of its own as well.
    """
    clock, rate = Clock(), JumpingRate(start=40.0)
    rate.clock = clock
    calls, refused = Counter[str](), 0
    left, at = 20.0, clock.now

    def send(one: Launch) -> tuple[str, str]:
        nonlocal left, at, refused
        calls[one.token] += 1
        left, at = min(20.0, left + (clock.now - at) * 20.0), clock.now
        clock.now += 0.01
        if left < 1:
            refused += 1
            raise RequestFailed("launch", 429, "TooManyRequests", "Too many requests for the user")
        left -= 1
        return one.node, ""

    with launcher(send, rate=rate, workers=1, clock=clock) as made:
        for number in range(100):
            made.submit(launch(number))
        ended = collected(made, 100)
        assert not [one for one in ended if one.outcome.fault]
        assert refused > 0
        assert sum(calls.values()) < 120


def test_a_throttled_launch_that_is_cancelled_meanwhile_is_not_sent_again() -> None:
    calls: list[str] = []
    wanted = {"c-e1"}

    def send(one: Launch) -> tuple[str, str]:
        calls.append(one.node)
        wanted.clear()
        raise RequestFailed("launch", 429, "TooManyRequests", "slow down")

    with launcher(send, is_needed=lambda one: one.node in wanted) as made:
        made.submit(launch(1))
        wait_for("it was sent, and is dropped", lambda: calls and made.collect() == ((), frozenset()))
        assert calls == ["c-e1"]


def test_every_other_end_is_an_outcome() -> None:
    errors = {
        "c-e1": (RequestFailed("launch", 500, "InternalError", "Out of host capacity.", "req-1"), Fault.CAPACITY),
        "c-e2": (RequestFailed("launch", 0, "ReadTimeout", "timed out"), Fault.TRANSIENT),
        "c-e3": (RequestFailed("launch", 401, "NotAuthenticated", "who are you"), Fault.TRANSIENT),
        "c-e4": (RuntimeError("a bug"), Fault.TRANSIENT),
        "c-e5": (RequestFailed("launch", 400, "LimitExceeded", "gpu count"), Fault.LIMIT),
    }

    def send(one: Launch) -> tuple[str, str]:
        raise errors[one.node][0]

    with launcher(send) as made:
        for number in range(1, 6):
            made.submit(launch(number))
        outcomes = {one.outcome.node: one.outcome for one in collected(made, 5)}
    assert {node: outcome.fault for node, outcome in outcomes.items()} == {n: fault for n, (_, fault) in errors.items()}
    assert outcomes["c-e1"].message == "InternalError: Out of host capacity."
    assert outcomes["c-e1"].request_id == "req-1"


def test_closing_drops_what_is_queued_and_waits_for_nothing() -> None:
    gate = threading.Event()
    started: list[int] = []
    ended: list[int] = []

    def do(number: int) -> None:
        started.append(number)
        gate.wait(PATIENCE_S)
        ended.append(number)

    queue: WorkQueue[int] = WorkQueue("test", do, workers=1)
    queue.submit(1, 1)
    queue.submit(2, 2)
    wait_for("the first one is begun", lambda: started == [1])
    queue.close()
    assert ended == []
    gate.set()
    assert not queue.submit(3, 3)
    queue._dispatcher.join(PATIENCE_S)
    queue._pool.shutdown(wait=True)
    assert (started, ended) == ([1], [1])


def test_the_loop_is_woken_for_a_failure_and_at_the_end_not_for_each_launch() -> None:
    woken: list[int] = []
    gates = {number: threading.Event() for number in range(4)}

    def send(one: Launch) -> tuple[str, str]:
        number = int(one.node.removeprefix("c-e"))
        assert gates[number].wait(PATIENCE_S)
        if number == 1:
            raise RequestFailed("launch", 500, "InternalError", "Out of host capacity.")
        return one.node, ""

    with launcher(send, wake=lambda: woken.append(len(made.collect()[0]))) as made:
        for number in range(4):
            made.submit(launch(number))
        for ended in range(1, 5):
            gates[ended - 1].set()
            collected(made, ended)
            if ended == 2:
                # An outcome can be collected before its thread has woken the loop: it would see the next one as well.
                wait_for("the loop is woken for the failure", lambda: woken)
        wait_for("the loop is woken twice", lambda: len(woken) == 2)
        assert woken == [2, 4]
