"""Bounds on work, for tests: processor time that is compared with itself, because machines differ and are busy.

How fast something is belongs to benchmarks/. A test only shows that the work grows as it should.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_RUNS = 3


def processor_seconds(work: Callable[[], object]) -> float:
    """Processor time of this process for some work: the least of three runs, so that caches are warm."""
    return min(_once(work) for _ in range(_RUNS))


def growth(work: Callable[[int], Callable[[], object]], small: int, large: int) -> float:
    """How many times the work for `small` the work for `large` is.

    Linear work gives about large / small, quadratic work its square. A test that allows three times the linear growth
    with large / small = 10 tells the two apart on any machine.

    Args:
        work: called with a size, outside of the measurement; returns what is measured.
    """
    return processor_seconds(work(large)) / max(processor_seconds(work(small)), 1e-6)


def _once(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
