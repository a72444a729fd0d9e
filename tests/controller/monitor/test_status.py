"""What `gpucluster-agent monitor status` waits for."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.controller.monitor.status import settled


class Scrapes:
    """A status whose targets have other states at each question; a clock that goes on when it sleeps."""

    def __init__(self, *healths: str) -> None:
        self.healths = list(healths)
        self.asked = 0
        self.now = 0.0

    def ask(self) -> dict[str, Any]:
        health = self.healths[min(self.asked, len(self.healths) - 1)]
        self.asked += 1
        return {"targets": [{"health": each} for each in health.split()]}

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def settled(self, seconds: float) -> dict[str, Any]:
        return settled(self.ask, seconds, clock=lambda: self.now, sleep=self.sleep)


@pytest.mark.parametrize(
    ("healths", "seconds", "asked", "last"),
    [
        (["up"], 75, 1, "up"),
        (["unknown"], 0, 1, "unknown"),
        (["unknown down", "up unknown", "up up"], 75, 3, "up up"),
        (["down up", "down up", "up up"], 75, 3, "up up"),
        (["down"], 0, 1, "down"),
        (["down"], 10, 6, "down"),
    ],
)
def test_what_is_not_up_is_waited_for_and_not_for_ever(
    healths: list[str], seconds: float, asked: int, last: str
) -> None:
    scrapes = Scrapes(*healths)
    found = scrapes.settled(seconds)
    assert [each["health"] for each in found["targets"]] == last.split()
    assert scrapes.asked == asked
