"""Virtual time: a clock that jumps from one event to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Event = Callable[[], None]


class Clock:
    """Virtual time. Events of the same moment happen in the order in which they were scheduled.

    Args:
        now: seconds of the epoch.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._heap: list[tuple[float, int, Event]] = []
        self._count = 0

    def at(self, when: float, event: Event) -> None:
        """Schedule an event at a time; a time in the past is now."""
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, event))

    def after(self, delay: float, event: Event) -> None:
        """Schedule an event in `delay` seconds."""
        self.at(self.now + delay, event)

    def step(self) -> bool:
        """Run the next event; False if there is none."""
        if not self._heap:
            return False
        self.now, _, event = heapq.heappop(self._heap)
        event()
        return True

    def run_until(self, when: float) -> None:
        """Run all events that are due by then."""
        while self._heap and self._heap[0][0] <= when:
            self.step()
        self.now = max(self.now, when)
