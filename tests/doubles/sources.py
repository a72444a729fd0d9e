"""A source that never answers, and the time that a command waits for it, which passes when all others have answered.

It stands for a service that hangs. It does not prove that a wait ends by the clock (tests/operations/test_inquiry.py).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster.operations import inquiry
from tests.waiting import wait_for


class Hanging:
    """Called as a source is asked: it does not return before the end of the test."""

    def __init__(self) -> None:
        self.waiting: list[threading.Thread] = []
        self._end = threading.Event()

    def __call__(self) -> Any:
        self.waiting.append(threading.current_thread())
        self._end.wait()

    def release(self) -> None:
        """Let all return."""
        self._end.set()


@contextmanager
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    """A source that hangs to the end of the block. In it, the time of a question is over when just this one hangs."""
    source = Hanging()
    before = set(inquiry._asking)

    def monotonic() -> float:
        wait_for("all other sources have answered", lambda: len(inquiry._asking - before) == len(source.waiting))
        return math.inf

    with monkeypatch.context() as patch:
        patch.setattr(inquiry, "time", SimpleNamespace(monotonic=monotonic, time=time.time))
        try:
            yield source
        finally:
            source.release()
