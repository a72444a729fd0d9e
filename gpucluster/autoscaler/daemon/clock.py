"""A clock that never jumps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Seconds per second by which the clock runs faster or slower until it agrees with the wall clock again.
_SLEW = 0.05


class SteadyClock:
    """Seconds of the epoch that do not jump when the wall clock is set.

    It starts with the time of the wall clock and follows it by running at most a twentieth faster or slower. So a
    deadline of ten minutes never takes less than nine and a half, whatever happens to the wall clock.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._now, self._at = wall(), monotonic()
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """The time now."""
        with self._lock:
            at = self._monotonic()
            passed = at - self._at
            step = min(max(self._wall() - (self._now + passed), -_SLEW * passed), _SLEW * passed)
            self._now, self._at = self._now + passed + step, at
            return self._now
