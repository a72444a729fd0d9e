"""Doubles of clocks: time that only a test moves. That a product reads a real clock where it needs one is not proved.

Standard library of Python 3.9 only: the agent's tests run there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Clock:
    """Seconds since any fixed moment. It is called as `time.monotonic` or `time.time` is.

    Args:
        now: what it shows. A test sets it, or adds to it.
        pauses: what was asked of `sleep`, in seconds.
    """

    now: float = 1000.0
    pauses: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """In place of `time.sleep`: the time passes at once."""
        self.pauses.append(seconds)
        self.now += seconds


class LateTime:
    """In place of the module `time` of a module under test, whose time limits are the subject.

    Time stands still until something has happened, then each look finds it later. So a limit is over when another
    process or thread is where the test wants it, however long it took to come there. Pauses are real, and so is the
    processor's time.

    Args:
        happened: asked with each look; without it only the test moves the time, by `now`.
        step: seconds by which each look is later then.
    """

    sleep = staticmethod(time.sleep)
    process_time = staticmethod(time.process_time)

    def __init__(self, happened: Callable[[], object] = bool, step: float = 0.05) -> None:
        self.now = 1000.0
        self._happened, self._step = happened, step

    def monotonic(self) -> float:
        """What a clock shows that does not jump."""
        if self._happened():  # else nothing is written: another thread may move the time between the two steps of `+=`
            self.now += self._step
        return self.now

    def stand_still(self) -> None:
        """From now on only the test moves the time."""
        self._happened = bool
