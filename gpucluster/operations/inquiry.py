"""Questions to services that may be slow or gone: each is asked by a thread of its own, and no caller waits too long.

A thread that does not end in time is left behind. It may have started others, for which Python would wait at its end:
`unanswered` reports it to the command line, which then leaves without them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpucluster import cancellation
from gpucluster.errors import GpuClusterError
from gpucluster.text import reason_of

_log = logging.getLogger(__name__)  # `--debug` shows it

T = TypeVar("T")
_asking: set[Future[Any]] = set()


def unanswered() -> bool:
    """Whether a question of this process has no answer yet."""
    return bool(_asking)


@dataclass(frozen=True)
class InquiryAnswer(Generic[T]):
    """What a question led to.

    Args:
        value: None if there is no answer.
        error: why there is none; empty if there is one.
        time: when it was answered, or given up, in seconds since the epoch.
    """

    value: T | None
    error: str
    time: float


class Inquiry(Generic[T]):
    """One question, asked from now on.

    Args:
        ask: is called by a thread of its own.
    """

    def __init__(self, ask: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        self._answered = 0.0
        _asking.add(self._future)
        self._future.add_done_callback(_asking.discard)
        threading.Thread(target=self._run, args=(ask,), daemon=True).start()

    def _run(self, ask: Callable[[], T]) -> None:
        try:
            value = ask()
        except BaseException as error:  # it is raised where the result is wanted
            self._answered = time.time()
            self._future.set_exception(error)
        else:
            self._answered = time.time()
            self._future.set_result(value)

    def result(self, timeout: float | None = None) -> T:
        """What `ask` returned.

        Args:
            timeout: seconds to wait; None waits for as long as it takes.

        Raises:
            TimeoutError: there is no result yet.
            KeyboardInterrupt: the call of this thread was cancelled.
            Exception: what `ask` raised.
        """
        if not cancellation.completed([self._future], timeout):
            raise FutureTimeout
        return self._future.result()

    def answer(self, until: float) -> InquiryAnswer[T]:
        """The answer, or why there is none. Never raises.

        Args:
            until: by the monotonic clock.
        """
        try:
            return InquiryAnswer(self.result(max(until - time.monotonic(), 0)), "", self._answered)
        except FutureTimeout:
            return InquiryAnswer(None, "no answer in time", time.time())
        except GpuClusterError as error:
            return InquiryAnswer(None, error.what, self._answered)
        except Exception as error:  # one source must not hide the answers of the others
            _log.debug("a question failed", exc_info=error)
            what = reason_of(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            return InquiryAnswer(None, what, self._answered)
