"""A double of a clock: time that only the test moves. It does not prove that a real clock is read where one is needed.

Standard library of Python 3.9 only: the agent's tests run there.
"""

from __future__ import annotations

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
