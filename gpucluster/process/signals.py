"""Ctrl-C, SIGTERM and SIGHUP (a lost terminal) all mean the same: stop, and lose nothing.

Handlers are only changed in the main thread (Python does not permit it elsewhere) and restored afterwards. A signal
that is ignored stays ignored: that is how `nohup` works.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _raise(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def as_ctrl_c(*, on_hangup: Callable[[], None] = lambda: None) -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt in this block, unless the program has handlers of its own for them.

    Args:
        on_hangup: called before that at SIGHUP.
    """

    def hang_up(number: int, frame: FrameType | None) -> NoReturn:
        on_hangup()
        _raise(number, frame)

    wanted = {signal.SIGTERM: _raise, signal.SIGHUP: hang_up}
    with _handlers({number: handler for number, handler in wanted.items() if _is_default(number)}):
        yield


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """No signal interrupts this block. Gives a function that says how many have arrived; the caller acts on them."""
    number_of = 0

    def count(_number: int, _frame: FrameType | None) -> None:
        nonlocal number_of
        number_of += 1

    # None: a handler that Python did not install, and could not restore.
    changed = {one: count for one in STOP if signal.getsignal(one) not in (signal.SIG_IGN, None)}
    with _handlers(changed):
        yield lambda: number_of


def _is_default(number: signal.Signals) -> bool:
    return signal.getsignal(number) == signal.SIG_DFL


@contextmanager
def _handlers(wanted: dict[signal.Signals, Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in wanted}
    try:
        for number, handler in wanted.items():
            signal.signal(number, handler)
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
