"""Events from several threads reach their sink one after the other."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from gpucluster.events import Event, one_at_a_time


def test_a_sink_is_never_told_of_two_events_at_once() -> None:
    inside, most, told = 0, 0, []

    def sink(event: Event) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.001)  # lets others in, if they may
        told.append(event.name)
        inside -= 1

    announce = one_at_a_time(sink)
    with ThreadPoolExecutor(max_workers=8) as workers:
        list(workers.map(lambda number: announce(Event("log", str(number), "note")), range(64)))
    assert most == 1
    assert sorted(told, key=int) == [str(number) for number in range(64)]
