"""Waiting until the API server answers without a break: the times of its answers are given."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpucluster.controller.kubernetes import api_stability
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.kubernetes.kubectl import Kubectl


class Server(Kubectl):
    """A double of kubectl and of the clock: the API server refuses connections in these intervals of seconds."""

    def __init__(self, *down: Sequence[float]) -> None:
        super().__init__()
        self.now = 0.0
        self._down = down

    def run(self, *words: str, text: str = "", seconds: float = 0, where: str = "") -> str:
        assert words == ("get", "--raw=/readyz")
        if any(start <= self.now < end for start, end in self._down):
            raise Failed("connection refused")
        return "ok"

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def awaited(self) -> int:
        return api_stability.await_steady(self, self.wait, lambda: self.now)


def test_one_answer_is_not_enough() -> None:
    server = Server()
    assert server.awaited() == 0
    assert server.now == pytest.approx(api_stability.STEADY_S, abs=1)


def test_a_break_begins_the_time_again() -> None:
    server = Server((8, 11))
    assert server.awaited() == 1
    assert server.now == pytest.approx(11 + api_stability.STEADY_S, abs=1)


def test_each_break_is_counted_once() -> None:
    assert Server((0, 4), (9, 20), (22, 30)).awaited() == 3


def test_a_server_that_stays_away_is_a_failure_with_its_reason() -> None:
    server = Server((5, 10_000))
    with pytest.raises(Failed, match=r"connection refused") as raised:
        server.awaited()
    assert raised.value.hint
    assert server.now == pytest.approx(api_stability.WITHIN_S, abs=2)


def test_a_server_that_comes_and_goes_is_a_failure() -> None:
    server = Server(*((at, at + 1) for at in range(0, 400, 10)))
    with pytest.raises(Failed, match="without a break"):
        server.awaited()
