"""What the library announces while it works. The caller decides how it looks.

`kind` says what the event is about, `status` how that thing stands:

    phase     started | done | failed | interrupted      a part of a run; `elapsed` when it ends
    resource  creating | created | updating | updated | deleting | deleted | failed | cached | running | ...
    task      ok | changed | failed | unreachable | skipped      one Ansible task on one host
    check     pass | fail | not_run | skip       one judgement of `verify`
    log       info | warning | error
    result    success | failed | ...             the last event of a run; `data` is the whole result
"""

from __future__ import annotations

import threading
import time as _time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """One announcement. `elapsed` is in seconds, `time` in seconds since the epoch; `data` holds JSON values."""

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
    """A sink for callers that do not listen."""


def one_at_a_time(sink: Sink) -> Sink:
    """The same sink, told of one event after the other: several threads may announce what they do."""
    lock = threading.RLock()

    def announce(event: Event) -> None:
        with lock:
            sink(event)

    return announce
