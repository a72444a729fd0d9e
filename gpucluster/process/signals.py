"""Ctrl-C, SIGTERM and SIGHUP (a lost terminal) all mean the same: stop, and lose nothing, from the start to the end of
the process.

A stop raises KeyboardInterrupt once. What releases a lock or ends a child must not be interrupted in turn, and signals
come in bursts: a terminal that closes sends SIGHUP twice, a service manager SIGTERM and SIGHUP. So those that follow
raise nothing for some seconds; then one more, as of a user who presses Ctrl-C again, raises again. Where Python drops
what a stop raises, because an object is just being removed (the end of a generator, `__del__`), the stop arrives again.

Handlers are only changed in the main thread (Python does not permit it elsewhere) and restored afterwards. A signal
that is ignored stays ignored: that is how `nohup` works. In every thread, what holds a stop back here also holds back
the cancellation of its call (`gpucluster.cancellation`), and `counted` counts it.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType

from gpucluster import cancellation
from gpucluster.cancellation import this_thread
from gpucluster.errors import EXIT_INTERRUPTED

STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds after which another stop raises again.
PATIENCE = cancellation.PATIENCE
_SOON = 0.0005  # seconds; a `with` is entered or left in less
# Where an exception would come between two steps that belong together: a `with` is entered or left, or a handler set.
_ENTERING = frozenset({"__enter__", "__exit__"})
_OWN = frozenset({__file__, contextlib.__file__})


class _Stops:
    """What the signals of this process do at the moment. Handlers run in the main thread, between two instructions."""

    def __init__(self) -> None:
        self.blocks = 0  # of `as_ctrl_c`, one in the other
        self.first: float | None = None  # when the last stop was raised within them
        self.deferrals = 0
        self.pending = False
        self.counters: list[list[int]] = []
        self.on_hangup: Callable[[], None] = lambda: None
        self.unraisable: Callable[[sys.UnraisableHookArgs], object] = sys.__unraisablehook__
        self.starting = False
        self.over = False

    def arrived(self, number: int, frame: FrameType | None) -> None:
        """The handler of each stop signal."""
        if self.starting:
            os._exit(EXIT_INTERRUPTED)  # nothing is held, and an import could lose an exception
        quiet = self.over or self.counters or self.deferrals
        if not quiet and frame is not None and _between(frame):
            # By a thread: in a handler Python would see it at once, in the handler. `threading` has locks, which the
            # main thread may hold.
            _thread.start_new_thread(_again, (number,))
            return
        if number == signal.SIGHUP:
            self.on_hangup()
        if self.counters:
            self.counters[-1][0] += 1
        elif self.deferrals:
            self.pending = True
        else:
            self._raise()

    def raise_pending(self) -> None:
        """Raise what was deferred, if nothing defers it any more."""
        if self.pending and not self.deferrals and not self.counters:
            self.pending = False
            self._raise()

    def _raise(self) -> None:
        now = time.monotonic()
        if self.over or (self.blocks and self.first is not None and now - self.first < PATIENCE):
            return
        self.first = now
        raise KeyboardInterrupt


def _dropped(ignored: sys.UnraisableHookArgs) -> None:
    """Python has ignored an exception. That of a stop is as if none had arrived."""
    if isinstance(ignored.exc_value, KeyboardInterrupt) and _in_main_thread():
        _stops.first = None
        _thread.start_new_thread(_again, (signal.SIGINT,))
    else:
        _stops.unraisable(ignored)


def _again(number: int) -> None:
    time.sleep(_SOON)
    os.kill(os.getpid(), number)


def _between(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name in _ENTERING or code.co_filename in _OWN


_stops = _Stops()


def begin() -> None:
    """The program begins: a stop ends it at once, until `as_ctrl_c` sets what it does. For the program only: it can't
    be undone.

    After the end of a command, which `end` marks, Python still ends threads and runs what was registered for its end.
    A stop does not interrupt that, and at last it is ignored: Python removes its handlers before the process ends, and
    the status would be that of the signal.
    """
    _stops.starting = True
    for number in STOP:
        if _is_default(number):
            signal.signal(number, _stops.arrived)
    atexit.register(_ignore)  # the first that is registered is the last that runs


def end() -> None:
    """The command has ended: no stop raises any more."""
    _stops.over = True


def _ignore() -> None:
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def as_ctrl_c(*, on_hangup: Callable[[], None] | None = None) -> Iterator[None]:
    """A stop raises KeyboardInterrupt in this block, unless the program has handlers of its own.

    Args:
        on_hangup: called at SIGHUP before anything else.
    """
    if not _in_main_thread():
        yield
        return
    if _stops.blocks == 0:
        _stops.first, _stops.over = None, False
        _stops.unraisable = sys.unraisablehook
        _stops.on_hangup = lambda: None
    before, _stops.blocks = _stops.on_hangup, _stops.blocks + 1
    sys.unraisablehook = _dropped
    if on_hangup is not None:
        _stops.on_hangup = on_hangup
    try:
        with _handlers({number: _stops.arrived for number in STOP if _is_default(number)}):
            _stops.starting = False
            yield
    finally:
        _stops.blocks -= 1
        if _stops.blocks:
            _stops.on_hangup = before  # of the outermost it stays: what Python writes at its end may fail, too
        else:
            sys.unraisablehook = _stops.unraisable


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """No stop interrupts this block. Gives a function that returns how many have arrived; the caller acts on them."""
    cancelled = 0

    def cancellations() -> int:
        nonlocal cancelled
        cancelled += cancellation.take()
        return cancelled

    this_thread.shields += 1
    try:
        with _signals_counted() as signals:
            yield lambda: signals() + cancellations()
    finally:
        this_thread.shields -= 1


@contextmanager
def _signals_counted() -> Iterator[Callable[[], int]]:
    if not _in_main_thread():
        yield lambda: 0
        return
    # None: a handler that Python did not install, and could not restore.
    changed = {one: _stops.arrived for one in STOP if signal.getsignal(one) not in (signal.SIG_IGN, None)}
    number_of = [0]
    _stops.counters.append(number_of)
    try:
        with _handlers(changed):
            yield lambda: number_of[0]
    finally:
        _stops.counters.pop()
        if number_of[0]:
            _stops.first = time.monotonic()  # more of the same burst may follow


def surely(step: Callable[[], object]) -> None:
    """Run a step that releases something to its end. In a `finally` that begins with it, no stop comes before it."""
    with counted():
        step()


class deferred:  # noqa: N801 - it is used as a function
    """A stop that arrives in this block is raised at its end: for a step that must be known to what would undo it.

        with ExitStack() as undone:
            with signals.deferred():
                child = start(argv)
                undone.callback(child.kill)

    It is not a generator: what is raised at its end is raised where the block ends.
    """

    def __enter__(self) -> None:
        """A stop waits from here on."""
        this_thread.shields += 1
        self._active = _in_main_thread()
        if not self._active:
            return
        _stops.deferrals += 1
        # Without `as_ctrl_c`, Python's own handler would raise.
        self._handlers = _handlers({one: _stops.arrived for one in STOP if _is_pythons(one)})
        self._handlers.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What has waited is raised; of a cancellation, by the next wait."""
        this_thread.shields -= 1
        if not self._active:
            return
        self._handlers.__exit__(None, None, None)
        _stops.deferrals -= 1
        _stops.raise_pending()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_pythons(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.default_int_handler


def _is_default(number: signal.Signals) -> bool:
    return signal.getsignal(number) == signal.SIG_DFL or _is_pythons(number)


@contextmanager
def _handlers(handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], object]]) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in handlers}
    _stops.deferrals += 1
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _stops.deferrals -= 1
        yield
    finally:
        _stops.deferrals += 1
        for number in reversed(before):
            signal.signal(number, before[number])
        _stops.deferrals -= 1
        _stops.raise_pending()
