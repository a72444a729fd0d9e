"""Ending a call of the library from another thread: `Cancellation`, and the waits that notice it.

Ctrl-C interrupts the main thread of a process alone, and any instruction of it. Here the thread that works asks: each
wait of the library (`sleep`, `completed`, `check`) raises KeyboardInterrupt once when its call was cancelled, and what
ends programs and releases locks at Ctrl-C does the same then. A thread that the library starts for itself has no call:
it is ended by the one that started it, as at Ctrl-C.

Where a stop signal would wait (`process.signals`), a cancellation waits, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from gpucluster.errors import Interrupted

if TYPE_CHECKING:
    from concurrent.futures import Future

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds after which another stop raises again: what follows earlier belongs to the same burst.
PATIENCE = 5.0
#: Seconds between two looks at a cancellation, in waits that nothing else can end.
POLL = 0.1


class Cancellation:
    """Ends calls of the library from another thread, with the effects of Ctrl-C on the command.

        cancellation = gpucluster.Cancellation()
        result = cancellation.call(cluster.apply)      # in one thread
        cancellation.cancel("the maintenance begins")  # in another one

    Terraform finishes what it has begun and saves its state, ansible-playbook ends, locks are released. The call raises
    `Interrupted`, and the same call in a new `Cancellation` goes on. Calls in other Cancellations are not touched.
    """

    def __init__(self) -> None:
        # May be taken again: a signal handler may call `cancel` in the middle of it.
        self._lock = threading.RLock()
        self._calls: set[_Call] = set()
        self._cancelled = False
        self._reason = ""

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    @property
    def reason(self) -> str:
        """Of the first `cancel`."""
        return self._reason

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in this thread, so that `cancel` ends it.

        Args:
            function: a method of a `Cluster`, or any function that calls some. An iterator that it returns is not
                covered: read it in the function.
            args: its arguments.
            kwargs: its arguments by name.

        Returns:
            What the function returns: also where it ended before it noticed that it was cancelled.

        Raises:
            Interrupted: it was cancelled, or this Cancellation was before the call; then nothing was begun.
        """
        with self._lock:
            if self._cancelled:
                raise Interrupted(
                    f"the call was cancelled before it began{with_reason(self._reason)}",
                    hint="Nothing was changed: make the same call in a new Cancellation",
                )
            call = _Call(self, this_thread.wake)
            self._calls.add(call)
        try:
            this_thread.calls.append(call)
            return function(*args, **kwargs)
        except KeyboardInterrupt as stop:
            if not call.requests:
                raise  # a signal, or the cancellation of a call around this one
            lost = str(stop) or "Nothing is lost"
            raise Interrupted(
                f"the call was cancelled{with_reason(self._reason)}",
                hint=f"{lost}: make the same call in a new Cancellation to go on",
            ) from None
        finally:
            this_thread.calls = [each for each in this_thread.calls if each is not call]
            with self._lock:
                self._calls.discard(call)

    def cancel(self, reason: str = "") -> None:
        """End the calls that run, and refuse later ones. Returns at once; the calls end soon after.

        Again within five seconds it changes nothing. After that it is as another Ctrl-C, for a call that still cleans
        up; Terraform is never asked twice.

        Args:
            reason: for the message of `Interrupted` and the run log; one line.
        """
        with self._lock:
            if not self._cancelled:
                self._reason = reason
            self._cancelled = True
            for call in self._calls:
                call.request()


class _Call:
    """One `Cancellation.call` that runs. `seen` of its `requests` were raised, or acted on.

    Args:
        wake: what its thread waits for.
    """

    def __init__(self, cancellation: Cancellation, wake: threading.Event) -> None:
        self.cancellation = cancellation
        self.requests = self.seen = 0
        self._wake = wake
        self._last = 0.0

    def request(self) -> None:
        """Let the thread notice it, unless it is of the same burst as the last one."""
        now = time.monotonic()
        if self.requests and now - self._last < PATIENCE:
            return
        self._last = now
        self.requests += 1
        self._wake.set()


class _Work(threading.local):
    """What one thread does: its calls, one in the other, and how many blocks shield it from a cancellation."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.shields = 0
        self.wake = threading.Event()


#: `process.signals` counts its blocks here itself: a stop signal does not come in the middle of that.
this_thread = _Work()


def check() -> None:
    """Raise if the call of this thread was cancelled.

    Raises:
        KeyboardInterrupt: it was; once for each request.
    """
    if not this_thread.shields and take():
        raise KeyboardInterrupt


def take() -> int:
    """How many requests nothing has acted on yet. The caller does; nothing raises for them any more."""
    this_thread.wake.clear()  # before they are read: one that comes in between wakes again
    number = 0
    for call in this_thread.calls:
        requests = call.requests
        number += requests - call.seen
        call.seen = requests
    return number


def active() -> bool:
    """Whether a wait of this thread may be cancelled."""
    return bool(this_thread.calls) and not this_thread.shields


def step(seconds: float | None) -> float | None:
    """How long a wait may be that can't be cancelled itself; None without a limit. `check` comes after it.

    Args:
        seconds: what is left of it; None without a limit.
    """
    if not active():
        return seconds
    return POLL if seconds is None else min(POLL, seconds)


def sleep(seconds: float) -> None:
    """As `time.sleep`, but a cancellation ends it.

    Raises:
        KeyboardInterrupt: the call of this thread was cancelled.
    """
    if not active():
        time.sleep(seconds)
        return
    check()
    this_thread.wake.wait(seconds)
    check()


def completed(futures: Collection[Future[Any]], timeout: float | None = None) -> bool:
    """Wait for futures, whose results other threads make.

    Args:
        timeout: seconds; None waits for as long as it takes.

    Returns:
        Whether all have a result or an error.

    Raises:
        KeyboardInterrupt: the call of this thread was cancelled; the caller ends what the threads do.
    """
    from concurrent.futures import wait

    until = None if timeout is None else time.monotonic() + timeout
    while True:
        left = None if until is None else max(until - time.monotonic(), 0.0)
        if not wait(futures, step(left)).not_done:
            return True
        check()
        if left == 0.0:
            return False


def reason_if_cancelled() -> str | None:
    """The reason of the cancellation of this thread's call, which may be empty; None if it is not cancelled."""
    return next((call.cancellation.reason for call in this_thread.calls if call.requests), None)


def with_reason(reason: str) -> str:
    """What follows "was cancelled" in a message; empty without a reason."""
    return f": {reason}" if reason else ""
