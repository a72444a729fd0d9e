"""Delayed calls with one thread for all of them: a thousand booting instances need one thread."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable


class Timers:
    """One thread that calls functions when they are due. The functions must be quick and must not raise."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, function: Callable[[], None]) -> bool:
        """Call the function once, after that many seconds, unless `stop` is called before. False: it was already."""
        with self._changed:
            if self._stopped:
                return False
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), function))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="timers", daemon=True)
                self._thread.start()
            self._changed.notify()
            return True

    def stop(self) -> None:
        """Cancel all pending calls and wait for the call that is running."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (not self._due or self._due[0][0] > time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._stopped:
                    return
                function = heapq.heappop(self._due)[2]
            function()
