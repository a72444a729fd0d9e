"""What the library reports while it works. The caller decides how it is shown.

`kind` names the subject of an event (`EventKind`), `status` its state:

    phase     started | done | failed | interrupted      a part of a run (`PhaseStatus`); `elapsed` when it ends
    resource  creating | created | updating | updated | deleting | deleted | failed | ...      one resource of the cloud
    task      ok | changed | failed | unreachable | skipped      one Ansible task on one host
    check     pass | warn | fail | unknown | skip            one check of `verify`, on all hosts; of one pool
    log       info | warning | error (`LogLevel`); scaling | waiting      nodes that are added or removed, and the rest
    result    success | failed | ...      the last event of a run; `data` is the whole result
"""

from __future__ import annotations

import threading
import time as _time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpucluster import cancellation
from gpucluster.node_agent.checks.model import Status as CheckStatus


class EventKind(StrEnum):
    """What an event is about."""

    PHASE = "phase"
    RESOURCE = "resource"
    TASK = "task"
    CHECK = "check"
    LOG = "log"
    RESULT = "result"


class PhaseStatus(StrEnum):
    """The status of a phase of a run."""

    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class LogLevel(StrEnum):
    """How important a log event is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


#: The statuses of each kind; empty where any word may be one.
STATUSES: Mapping[EventKind, tuple[str, ...]] = {
    EventKind.PHASE: tuple(PhaseStatus),
    EventKind.RESOURCE: (),
    EventKind.TASK: ("ok", "changed", "failed", "unreachable", "skipped"),
    EventKind.CHECK: tuple(status.value for status in CheckStatus),
    EventKind.LOG: (*LogLevel, "scaling", "waiting"),
    EventKind.RESULT: (),
}


@dataclass(frozen=True)
class Event:
    """One report. `elapsed` is in seconds, `time` in seconds since the epoch; `data` holds JSON values.

    `kind` and `status` are plain strings in JSON. The `status` of a resource may be any word, such as one of
    the states that the cloud has.
    """

    kind: str
    name: str
    status: str
    message: str = ""
    elapsed: float | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=_time.time)

    def to_dict(self) -> dict[str, Any]:
        """The event as a JSON object; empty fields are left out."""
        full = {
            "time": round(self.time, 3),
            "kind": self.kind,
            "name": self.name,
            "status": self.status,
            "message": self.message,
            "elapsed": None if self.elapsed is None else round(self.elapsed, 3),
            "data": dict(self.data),
        }
        return {key: value for key, value in full.items() if value not in ("", None, {})}


Sink = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """A sink that ignores every event."""


def info(on_event: Sink, name: str, message: str) -> None:
    """Report something for information about the thing called `name`."""
    on_event(Event(EventKind.LOG, name, LogLevel.INFO, message))


def warn(on_event: Sink, name: str, message: str) -> None:
    """Report a warning about the thing called `name`."""
    on_event(Event(EventKind.LOG, name, LogLevel.WARNING, message))


def one_at_a_time(sink: Sink) -> Sink:
    """The same sink, called with one event after the other: several threads may report what they do.

    When it has an event, a call that was cancelled ends: work that reports what it does need not ask by itself.
    """
    lock = threading.RLock()

    def report(event: Event) -> None:
        with lock:
            sink(event)
        cancellation.check()

    return report
