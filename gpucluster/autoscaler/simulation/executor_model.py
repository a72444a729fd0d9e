"""A model of the executor of launches: a queue, an adaptive rate, and the check of the claim before a launch is sent.

The rate is the real one. The model keeps what `plan.decide` relies on: a launch is sent only while the memory still has
its token; a throttled launch is sent again with the same token and never becomes an outcome; every other launch becomes
exactly one outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gpucluster.autoscaler.decide.rate import Rate
from gpucluster.autoscaler.decide.types import Fault, Launch, Outcome
from gpucluster.autoscaler.simulation.clock import Clock
from gpucluster.autoscaler.simulation.cloud_model import CloudModel, LaunchAnswer

_NO_CONNECTION = LaunchAnswer(fault=Fault.TRANSIENT, message="no connection")
_REFUSAL_SECONDS = 0.2
_SHORTEST_WAIT = 0.001  # a shorter one would be lost in the clock's rounding


class ExecutorModel:
    """Sends launches to the cloud's model.

    Args:
        is_needed: whether the memory still has a node's token.
        on_end: called after every outcome.
    """

    def __init__(
        self, clock: Clock, cloud: CloudModel, is_needed: Callable[[str, str], bool], on_end: Callable[[], None]
    ):
        self.clock = clock
        self.cloud = cloud
        self.is_needed = is_needed
        self.on_end = on_end
        self.in_flight: set[str] = set()
        self.outcomes: list[Outcome] = []
        self.offline = False
        self.sent = 0
        self.throttled = 0
        self.rate = Rate()
        self._queue: deque[Launch] = deque()
        self._sending = False
        self._process = 0

    def submit(self, launch: Launch) -> None:
        """Queue a launch; a launch that is queued already is not queued twice."""
        if launch.token in self.in_flight:
            return
        self.in_flight.add(launch.token)
        self._queue.append(launch)
        self._send_soon()

    def take(self) -> tuple[Outcome, ...]:
        """The outcomes since the last pass. Their tokens are no longer in flight."""
        outcomes, self.outcomes = tuple(self.outcomes), []
        self.in_flight.difference_update(outcome.token for outcome in outcomes)
        return outcomes

    def crash(self) -> None:
        """The process is killed: the queue is lost; requests that were sent continue in the cloud."""
        self._process += 1
        self._queue.clear()
        self.in_flight.clear()
        self.outcomes.clear()
        self._sending = False
        self.rate = Rate()

    def _send_soon(self, delay: float = 0.0) -> None:
        if not self._sending and self._queue:
            self._sending = True
            process = self._process
            self.clock.after(delay, lambda: self._send() if process == self._process else None)

    def _send(self) -> None:
        self._sending = False
        while self._queue:
            launch = self._queue[0]
            if not self.is_needed(launch.node, launch.token):
                self.in_flight.discard(launch.token)
                self._queue.popleft()
                continue
            delay = self.rate.take(self.clock.now)
            if delay > 0:
                self._send_soon(max(delay, _SHORTEST_WAIT))
                return
            self._queue.popleft()
            self._call(launch)

    def _call(self, launch: Launch) -> None:
        self.sent += 1
        answer = _NO_CONNECTION if self.offline else self.cloud.launch(launch)
        process, epoch = self._process, self.rate.epoch
        delay = _REFUSAL_SECONDS if answer.throttled else self.cloud.settings.call_seconds
        self.clock.after(delay, lambda: self._answered(launch, answer, epoch) if process == self._process else None)

    def _answered(self, launch: Launch, answer: LaunchAnswer, epoch: int) -> None:
        if answer.throttled:
            self.throttled += 1
            self.rate.throttled(epoch)
            self._queue.appendleft(launch)
        else:
            update = self.rate.lost if answer is _NO_CONNECTION else self.rate.taken
            update(epoch)
            self.outcomes.append(Outcome(launch.token, launch.node, answer.instance_id, answer.fault, answer.message))
            self.on_end()
        self._send_soon()
