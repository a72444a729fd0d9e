"""A call of the library in a thread of its own, which a test cancels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from gpucluster.cancellation import Cancellation
from tests.waiting import wait_for

T = TypeVar("T")


class Call(Generic[T]):
    """A function that runs in a thread, in a `Cancellation`."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.cancellation = Cancellation()
        self.results: list[T] = []
        self.errors: list[BaseException] = []
        self._function = function
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.results.append(self.cancellation.call(self._function))
        except BaseException as error:  # the test judges it
            self.errors.append(error)

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def cancel(self, reason: str = "") -> BaseException:
        """Cancel it, wait for its end, and return what it raised."""
        self.cancellation.cancel(reason)
        return self.error()

    def error(self) -> BaseException:
        """What it raised at its end."""
        self.ended()
        assert not self.results, self.results
        return self.errors[0]

    def result(self) -> T:
        """What it returned at its end."""
        self.ended()
        if self.errors:
            raise self.errors[0]
        return self.results[0]

    def ended(self) -> None:
        """Wait for its end."""
        wait_for("the call ends", lambda: not self.running)


@contextmanager
def calling(function: Callable[[], T]) -> Iterator[Call[T]]:
    """Call a function in a thread, which has ended when the block ends: it is cancelled if it has not."""
    call = Call(function)
    call.start()
    try:
        yield call
    finally:
        call.cancellation.cancel("the test ends")
        call.ended()
