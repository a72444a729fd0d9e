"""Events from several threads reach their sink one after the other."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType

from gpucluster.events import Event, one_at_a_time
from tests.waiting import wait_for

_THREADS = 8


def test_a_sink_is_never_told_of_two_events_at_once() -> None:
    inside, most, told = 0, 0, list[str]()

    def sink(event: Event) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if not told:
            wait_for(
                "the other threads are held up, or in here as well", lambda: inside > 1 or held_up() == _THREADS - 1
            )
        told.append(event.name)
        inside -= 1

    announce = one_at_a_time(sink)
    assert isinstance(announce, FunctionType)

    def held_up() -> int:
        """Threads that have called `announce`, and are not in the sink."""
        return sum(frame.f_code is announce.__code__ for frame in sys._current_frames().values())

    with ThreadPoolExecutor(_THREADS) as workers:
        list(workers.map(lambda number: announce(Event("log", str(number), "note")), range(64)))
    assert most == 1
    assert sorted(told, key=int) == [str(number) for number in range(64)]
