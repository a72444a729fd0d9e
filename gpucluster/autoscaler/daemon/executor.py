"""Carries out launches and terminations in parallel, as fast as the cloud accepts them.

Nothing is decided here. Everything that is queued is in the ledger already: if a queue is lost with its process, the
next process sends the same requests again, with the same tokens.
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

from gpucluster.autoscaler.daemon.oci import RequestFailed, RequestFault
from gpucluster.autoscaler.decide.rate import Rate
from gpucluster.autoscaler.decide.types import Fault, Launch, Outcome

WORKERS = 32
Item = TypeVar("Item")


class WorkQueue(Generic[Item]):
    """A queue whose items threads work on, at a rate that follows the cloud's refusals.

    Args:
        do: works on one item. A 429 puts the item back at the front; any other result ends it.
        is_needed: called just before an item is worked on; an item that is no longer needed is dropped.
        on_end: called for an item that was worked on, with the exception that `do` raised, or None.
    """

    def __init__(
        self,
        name: str,
        do: Callable[[Item], None],
        *,
        is_needed: Callable[[Item], bool] = lambda _item: True,
        on_end: Callable[[Item, Exception | None], None] = lambda _item, _error: None,
        rate: Rate | None = None,
        workers: int = WORKERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._do, self._is_needed, self._on_end, self._clock = do, is_needed, on_end, clock
        self.rate = rate
        self._queue: deque[tuple[Hashable, Item]] = deque()
        self._keys: set[Hashable] = set()
        self._changed = threading.Condition()
        self._free = workers
        self._closed = False
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix=name)
        self._dispatcher = threading.Thread(target=self._dispatch, name=f"{name}-queue", daemon=True)
        self._dispatcher.start()

    def submit(self, key: Hashable, item: Item) -> bool:
        """Queue an item. False if one with this key is queued or being worked on."""
        with self._changed:
            if key in self._keys or self._closed:
                return False
            self._keys.add(key)
            self._queue.append((key, item))
            self._changed.notify_all()
            return True

    @property
    def keys(self) -> frozenset[Hashable]:
        """The keys of the items that are queued or being worked on."""
        with self._changed:
            return frozenset(self._keys)

    def close(self) -> None:
        """Drop what is queued and start nothing more. Items that are being worked on are not waited for."""
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
                key, item = self._queue.popleft()
                self._free -= 1
                epoch = self.rate.epoch if self.rate else 0
            # The interpreter is shutting down and takes no more work.
            with contextlib.suppress(RuntimeError):
                self._pool.submit(self._work_on, key, item, epoch)

    def _work_on(self, key: Hashable, item: Item, epoch: int) -> None:
        error: Exception | None = None
        sent = False
        try:
            sent = self._is_needed(item)
            if sent:
                self._do(item)
        except Exception as raised:  # of any kind: `on_end` gets it and logs it, and this thread goes on
            error = raised
        throttled = isinstance(error, RequestFailed) and error.kind is RequestFault.THROTTLED
        if sent and not throttled:
            self._on_end(item, error)
        with self._changed:
            self._update_rate(error, sent, throttled, epoch)
            if throttled and not self._closed:
                self._queue.appendleft((key, item))
            else:
                self._keys.discard(key)
            self._free += 1
            self._changed.notify_all()

    def _update_rate(self, error: Exception | None, sent: bool, throttled: bool, epoch: int) -> None:
        if self.rate is None:
            return
        if throttled:
            self.rate.throttled(epoch)
        elif sent and (error is None or (isinstance(error, RequestFailed) and error.status)):
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


class InstanceLauncher:
    """Sends launches and keeps their outcomes until they are in the ledger.

    Args:
        launch: launches an instance; returns its id and the request's id.
        wanted: whether a queued launch is still intended.
        wake: called when there is an outcome that has to be acted on, or when nothing is left to send. The next pass
            is soon enough for the other outcomes: a thousand launches must not cause a pass for each.
    """

    def __init__(
        self,
        launch: Callable[[Launch], tuple[str, str]],
        *,
        is_needed: Callable[[Launch], bool],
        wake: Callable[[], None] = lambda: None,
        rate: Rate | None = None,
        workers: int = WORKERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launch, self._wake, self._clock = launch, wake, clock
        self._lock = threading.Lock()
        self._ended: dict[str, Sent] = {}
        self.rate = rate or Rate()
        self._queue: WorkQueue[Launch] = WorkQueue(
            "launch", self._send, is_needed=is_needed, on_end=self._failed, rate=self.rate, workers=workers, clock=clock
        )

    def submit(self, launch: Launch) -> bool:
        """Queue a launch. False if its token is queued, sent, or answered and not acknowledged."""
        with self._lock:
            if launch.token in self._ended:
                return False
        return self._queue.submit(launch.token, launch)

    def collect(self) -> tuple[tuple[Sent, ...], frozenset[str]]:
        """The launches that were answered and are not acknowledged, and the tokens of those that have no answer yet."""
        unanswered = self._queue.keys  # read first: a launch that ends now is in both, and counts as ended
        with self._lock:
            ended = tuple(self._ended.values())
        return ended, frozenset(str(key) for key in unanswered) - {sent.outcome.token for sent in ended}

    def acknowledge(self, ended: tuple[Sent, ...]) -> None:
        """Forget these outcomes: they are in the ledger."""
        with self._lock:
            for sent in ended:
                self._ended.pop(sent.outcome.token, None)

    def close(self) -> None:
        """Drop what is queued: it is in the ledger."""
        self._queue.close()

    def _send(self, launch: Launch) -> None:
        began = self._clock()
        instance_id, request_id = self._launch(launch)
        self._keep(launch, Outcome(launch.token, launch.node, instance_id, request_id=request_id), began)

    def _failed(self, launch: Launch, error: Exception | None) -> None:
        if error is None:
            return
        if not isinstance(error, RequestFailed):
            outcome = Outcome(launch.token, launch.node, fault=Fault.TRANSIENT, message=str(error) or repr(error))
        else:
            # A 401 even with a new signer is not a fault of the launch.
            fault = error.kind if isinstance(error.kind, Fault) else Fault.TRANSIENT
            outcome = Outcome(launch.token, launch.node, "", fault, error.words, error.request_id)
        self._keep(launch, outcome, self._clock())

    def _keep(self, launch: Launch, outcome: Outcome, began: float) -> None:
        with self._lock:
            self._ended[launch.token] = Sent(launch, outcome, began, self._clock())
            left = self._queue.keys - self._ended.keys()
        if outcome.fault is not None or not left:
            self._wake()
