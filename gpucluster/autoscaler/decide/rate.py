"""The rate of requests to a service that does not publish its limit: additive increase, multiplicative decrease.

OCI publishes no rates and sends no Retry-After with a 429. The time is an argument of `take`.
"""

from __future__ import annotations

START, FLOOR, CEILING = 8.0, 0.2, 80.0
# So many requests may be sent at once after a pause.
BURST = 8.0
_CUT = 0.5
# Below this part of the rate that was last refused the rate grows fast, above it slowly (requests a second, for each
# request that the service accepts).
_KNOWN_GOOD = 0.8
_FAST, _SLOW = 0.25, 0.02
# A wait that is too short for a clock to show would be returned again and again.
_ROUNDING = 1e-6


class Rate:
    """A token bucket whose rate (requests a second) follows what the service accepts.

    After a refusal one request at a time is sent until one is accepted: a service that refuses everything gets few
    requests. Each request belongs to the `epoch` in which it was sent. A refusal from an older epoch is ignored.
    """

    def __init__(self, *, start: float = START, floor: float = FLOOR, ceiling: float = CEILING) -> None:
        self.rate = start
        self.epoch = 0
        self.tokens = min(BURST, start)
        self._floor, self._ceiling = floor, ceiling
        self._refused_at = ceiling
        self._filled_at: float | None = None
        self._probing = False
        self._probe_out = False

    def take(self, now: float) -> float:
        """Ask to send one request. Returns 0 if it may be sent, else the seconds to wait before asking again."""
        passed = 0.0 if self._filled_at is None else max(0.0, now - self._filled_at)
        self._filled_at = now
        self.tokens = min(max(1.0, min(BURST, self.rate)), self.tokens + passed * self.rate)
        if self._probing and self._probe_out:
            return 1.0 / self.rate
        if self.tokens < 1.0 - _ROUNDING:
            return (1.0 - self.tokens) / self.rate
        self.tokens = max(0.0, self.tokens - 1.0)
        self._probe_out = self._probing
        return 0.0

    def taken(self, epoch: int) -> None:
        """A request of that epoch was answered, and not with 429."""
        if epoch == self.epoch:
            self._probing = self._probe_out = False
            step = _FAST if self.rate < _KNOWN_GOOD * self._refused_at else _SLOW
            self.rate = min(self._ceiling, self.rate + step)

    def lost(self, epoch: int) -> None:
        """A request of that epoch got no answer, or was never sent: this is not evidence about the rate."""
        if epoch == self.epoch:
            self._probe_out = False

    def throttled(self, epoch: int) -> None:
        """A request of that epoch was refused with 429."""
        if epoch == self.epoch:
            self.epoch += 1
            if not self._probing:  # refusals of probes are not evidence about the rate before them
                self._refused_at = self.rate
            self.rate = max(self._floor, self.rate * _CUT)
            self.tokens = 0.0
            self._probing, self._probe_out = True, False
