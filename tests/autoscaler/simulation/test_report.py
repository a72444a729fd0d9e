"""The numbers of a report."""

from __future__ import annotations

import pytest

from gpucluster.autoscaler.simulation.report import WaitingTimes, duration


def test_waiting_times() -> None:
    assert WaitingTimes.of([]) == WaitingTimes(0, 0, 0, 0)
    assert WaitingTimes.of([float(second) for second in range(1, 101)]) == WaitingTimes(50.5, 50, 95, 100)


@pytest.mark.parametrize(("seconds", "text"), [(4.4, "4 s"), (60, "1:00 min"), (3599.6, "1:00 h"), (11_100, "3:05 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
