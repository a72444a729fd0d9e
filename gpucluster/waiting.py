"""Waiting for a condition by evaluating it repeatedly: the one polling loop of the package.

Only the clock and the sleep are effects, and a caller may pass its own: a test, a simulation, or a thread that must
wake up at once (`threading.Event.wait` is a valid `sleep`). The usual sleep ends when the call is cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from gpucluster import cancellation

_Value = TypeVar("_Value")


def wait_until(
    condition: Callable[[], _Value],
    timeout: float,
    interval: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = cancellation.sleep,
) -> _Value:
    """Call a condition until it returns something true, or until the time is over.

    As `threading.Condition.wait_for`, it does not raise on a timeout: it returns what the condition returned last,
    which is false then, and the caller reports what failed. An exception of the condition ends the wait.

    Args:
        condition: called at least once, and a last time when `timeout` has passed.
        timeout: seconds, by a clock that does not jump. `math.inf` waits without a limit.
        interval: seconds between two calls. The last pause is shorter, so that a wait is not longer than `timeout`
            (beside what the condition itself takes).
        clock: seconds since any fixed moment.
        sleep: pauses for some seconds; its result is ignored.

    Returns:
        The condition's last result: true if it was met in time.
    """
    deadline = clock() + timeout
    while True:
        # Read before the condition is called: one that takes long is still called once after the deadline.
        left = deadline - clock()
        result = condition()
        if result or left <= 0:
            return result
        sleep(min(interval, max(deadline - clock(), 0.0)))
