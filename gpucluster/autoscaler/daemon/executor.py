"""Carries out launches and terminations in parallel, as fast as the cloud takes them.

Nothing here decides anything. What is queued is written down in the ledger already, so a queue that is lost with the
process is asked for again by the next one, with the same tokens.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpucluster.autoscaler.daemon.oci import Refusal, Trouble
from gpucluster.autoscaler.decide.rate import Rate
from gpucluster.autoscaler.decide.world import Fault, Launch, Outcome

WORKERS = 32
Job = TypeVar("Job")


class Lane(Generic[Job]):
    """A queue whose jobs are done by threads, at a rate that follows the cloud's refusals.

    Args:
        do: does one job. A Refusal for its speed (429) puts it back at the front; anything else ends the job.
        wanted: asked just before a job is done; a job that is not wanted any more is dropped.
        on_end: hears of a job that was done, with what it raised or None.
    """

    def __init__(
        self,
        name: str,
        do: Callable[[Job], None],
        *,
        wanted: Callable[[Job], bool] = lambda _job: True,
        on_end: Callable[[Job, Exception | None], None] = lambda _job, _error: None,
        rate: Rate | None = None,
        workers: int = WORKERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._do, self._wanted, self._on_end, self._clock = do, wanted, on_end, clock
        self.rate = rate
        self._queue: deque[tuple[Hashable, Job]] = deque()
        self._keys: set[Hashable] = set()
        self._changed = threading.Condition()
        self._free = workers
        self._closed = False
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix=name)
        self._dispatcher = threading.Thread(target=self._dispatch, name=f"{name}-queue", daemon=True)
        self._dispatcher.start()

    def submit(self, key: Hashable, job: Job) -> bool:
        """Queue a job. False if one with this key is queued or being done already."""
        with self._changed:
            if key in self._keys or self._closed:
                return False
            self._keys.add(key)
            self._queue.append((key, job))
            self._changed.notify_all()
            return True

    @property
    def keys(self) -> frozenset[Hashable]:
        """Of the jobs that are queued or being done."""
        with self._changed:
            return frozenset(self._keys)

    def close(self) -> None:
        """Drop what is queued and start nothing more; jobs that are being done are not waited for."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _dispatch(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._queue or not self._free):
                    self._changed.wait()
                if self._closed:
                    return
                delay = self.rate.take(self._clock()) if self.rate else 0.0
                if delay > 0:
                    self._changed.wait(min(delay, 1.0))
                    continue
                key, job = self._queue.popleft()
                self._free -= 1
                epoch = self.rate.epoch if self.rate else 0
            # the interpreter is going down, and takes no more work
            with contextlib.suppress(RuntimeError):
                self._pool.submit(self._one, key, job, epoch)

    def _one(self, key: Hashable, job: Job, epoch: int) -> None:
        error: Exception | None = None
        sent = False
        try:
            sent = self._wanted(job)
            if sent:
                self._do(job)
        except Exception as raised:
            error = raised
        again = isinstance(error, Refusal) and error.kind is Trouble.THROTTLE
        if sent and not again:
            self._on_end(job, error)
        with self._changed:
            self._tell_rate(error, sent, again, epoch)
            if again and not self._closed:
                self._queue.appendleft((key, job))
            else:
                self._keys.discard(key)
            self._free += 1
            self._changed.notify_all()

    def _tell_rate(self, error: Exception | None, sent: bool, again: bool, epoch: int) -> None:
        if self.rate is None:
            return
        if again:
            self.rate.throttled(epoch)
        elif sent and (error is None or (isinstance(error, Refusal) and error.status)):
            self.rate.taken(epoch)
        else:
            self.rate.lost(epoch)


@dataclass(frozen=True, slots=True)
class Sent:
    """A launch that was answered, and when it was sent and answered."""

    launch: Launch
    outcome: Outcome
    sent_at: float
    answered_at: float


class Launcher:
    """Sends launches and keeps their outcomes until somebody has written them down.

    Args:
        launch: launches an instance; returns its id and the request's id.
        wanted: whether a queued launch is still intended.
        wake: called when an outcome is there.
    """

    def __init__(
        self,
        launch: Callable[[Launch], tuple[str, str]],
        *,
        wanted: Callable[[Launch], bool],
        wake: Callable[[], None] = lambda: None,
        rate: Rate | None = None,
        workers: int = WORKERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launch, self._wake, self._clock = launch, wake, clock
        self._lock = threading.Lock()
        self._ended: dict[str, Sent] = {}
        self.rate = rate or Rate()
        self._lane: Lane[Launch] = Lane(
            "launch", self._send, wanted=wanted, on_end=self._failed, rate=self.rate, workers=workers, clock=clock
        )

    def submit(self, launch: Launch) -> bool:
        """Queue a launch. False if its token is under way already."""
        with self._lock:
            if launch.token in self._ended:
                return False
        return self._lane.submit(launch.token, launch)

    def collect(self) -> tuple[tuple[Sent, ...], frozenset[str]]:
        """The launches that were answered and not yet acknowledged, and the tokens of those that were not answered."""
        under_way = self._lane.keys  # first: a launch that ends just now is in both, and then counts as ended
        with self._lock:
            ended = tuple(self._ended.values())
        return ended, frozenset(str(key) for key in under_way) - {one.outcome.token for one in ended}

    def acknowledge(self, ended: tuple[Sent, ...]) -> None:
        """These outcomes are written down."""
        with self._lock:
            for one in ended:
                self._ended.pop(one.outcome.token, None)

    def close(self) -> None:
        """Drop what is queued: it is in the ledger."""
        self._lane.close()

    def _send(self, launch: Launch) -> None:
        began = self._clock()
        instance_id, request_id = self._launch(launch)
        self._keep(launch, Outcome(launch.token, launch.node, instance_id, request_id=request_id), began)

    def _failed(self, launch: Launch, error: Exception | None) -> None:
        if error is None:
            return
        if not isinstance(error, Refusal):
            outcome = Outcome(launch.token, launch.node, fault=Fault.TRANSIENT, message=str(error) or repr(error))
        else:
            # Not to be believed (401) even with a fresh signer is no fault of the launch.
            fault = error.kind if isinstance(error.kind, Fault) else Fault.TRANSIENT
            outcome = Outcome(launch.token, launch.node, "", fault, error.words, error.request_id)
        self._keep(launch, outcome, self._clock())

    def _keep(self, launch: Launch, outcome: Outcome, began: float) -> None:
        with self._lock:
            self._ended[launch.token] = Sent(launch, outcome, began, self._clock())
        self._wake()
