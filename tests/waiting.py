"""The one way in which tests wait: for a condition that is named, with the same patience everywhere.

    wait_for("the job runs", lambda: state(job) == "RUNNING")

A test waits for an event and never for a time: how long something takes shows how busy the machine is. The patience is
far above what anything takes here, so it is spent only by a test that fails; GPUCLUSTER_TEST_PATIENCE changes it, in
seconds. What has to do nothing is asked after an event that would have come later, such as the daemon's next round.

tests/contract/test_waiting_rules.py forbids other loops and sleeps. Standard library of Python 3.9 only: the agent's
tests run there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

_Value = TypeVar("_Value")

PATIENCE_S = float(os.environ.get("GPUCLUSTER_TEST_PATIENCE") or 180)
_STATE_LENGTH = 4000


def wait_for(
    what: str,
    condition: Callable[[], _Value],
    *,
    patience: float = PATIENCE_S,
    interval: float = 0.05,
    state: Callable[[], object] | None = None,
    ignore: type[Exception] | tuple[type[Exception], ...] = (),
) -> _Value:
    """Call a condition until it returns something true, and return that.

    Args:
        what: what is awaited, as a sentence, for the message of a failure: "the job runs".
        condition: called at least once, and a last time when the patience is over.
        patience: seconds. A multiple of PATIENCE_S for what takes minutes, such as a cluster that is built.
        interval: seconds between two calls; more for a condition that is dear, such as a login.
        state: asked when the patience is over: what the message shows beside the last answer, such as a log.
        ignore: exceptions of the condition that mean "not yet".

    Raises:
        AssertionError: the patience is over. The message has the last answer (or exception) and the state.
    """
    deadline = time.monotonic() + patience
    while True:
        over = time.monotonic() >= deadline
        last: object
        try:
            found = condition()
            if found:
                return found
            last = found
        except ignore as error:
            last = error
        if over:
            raise AssertionError(_message(what, patience, last, state))
        time.sleep(interval)


def _message(what: str, patience: float, last: object, state: Callable[[], Any] | None) -> str:
    lines = [f"not within {patience:.0f} s: {what}", f"last answer: {last!r}"[:_STATE_LENGTH]]
    if state is not None:
        try:
            lines.append(str(state())[-_STATE_LENGTH:])
        except Exception as error:  # the failure itself matters more
            lines.append(f"no state: {error!r}")
    return "\n".join(lines)


def hang() -> None:
    """Never return, as a double of something that does not answer: for threads and processes that others end."""
    threading.Event().wait()
