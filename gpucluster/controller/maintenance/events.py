"""The events that the reader has listed, as a file: what Oracle will do to a host, and when.

The reader (`gpucluster.autoscaler.daemon.maintenance`) has rights in the cloud and none in Slurm; the health service
has rights in Slurm and none in the cloud. This file is all that the first gives to the second, and the requests are
all that it gets back. Source of the words: OCI's API, InstanceMaintenanceEvent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucluster.node_agent import bounded

#: What the reader writes, what it reads, and where both are on the controller.
FOLDER = Path("/var/lib/gpucluster-maintenance")
EVENTS, REQUESTS = Path("events/events.json"), Path("requests/requests.json")
_LARGEST = 8 << 20

#: Kinds of hosts.
NODE, LOGIN, CONTROLLER = "node", "login", "controller"
#: Values of lifecycleState; OPEN are those of an event that is ahead or under way.
SCHEDULED, STARTED, PROCESSING, CANCELED = "SCHEDULED", "STARTED", "PROCESSING", "CANCELED"
OPEN = (SCHEDULED, STARTED, PROCESSING)
#: The instanceAction of a repair for which the instance goes on (docs: "Non-Terminating Repair", live repairs).
NO_ACTION = "NONE"
#: The maintenanceCategory of an event that is information alone.
NOTIFICATION = "NOTIFICATION"
#: Seconds that a maintenance is expected to take where the event does not state it.
DURATION_S = 4 * 3600.0
#: The largest time or duration that is read, in seconds. A beginning, a window and a duration of it together are still
#: a date of Python (before the year 10000).
_LATEST_S = 8e10


@dataclass(frozen=True)
class MaintenanceEvent:
    """One event. Times are seconds since 1970.

    Args:
        host: the name of the host; role: what it is (NODE, LOGIN, CONTROLLER).
        action: what Oracle does to the instance: STOP, REBOOT_MIGRATION, TERMINATE or NONE.
        start: the beginning of the window; window_s: its length in seconds; the maintenance begins within it.
        duration_s: how long it takes once it has begun.
        started: when it began; None before.
        due: until when it can be moved; None where the event does not state it.
        token: events with the same one must be moved together; empty for an event that stands alone.
    """

    id: str
    host: str
    role: str
    state: str
    action: str
    category: str
    start: float
    reason: str = ""
    window_s: float = 0.0
    duration_s: float = DURATION_S
    started: float | None = None
    due: float | None = None
    reschedulable: bool = False
    token: str = ""
    description: str = ""

    @property
    def is_open(self) -> bool:
        """It is ahead, or under way."""
        return self.state in OPEN

    @property
    def under_way(self) -> bool:
        """Oracle works on the host."""
        return self.state in (STARTED, PROCESSING)

    @property
    def interrupts(self) -> bool:
        """The host goes away for a while. An action that this release does not know counts as one that does it."""
        return self.is_open and self.action != NO_ACTION and self.category != NOTIFICATION

    @property
    def end(self) -> float:
        """When the host is back at the latest, if Oracle begins at the end of the window."""
        if self.under_way:
            return (self.started if self.started is not None else self.start) + self.duration_s
        return self.start + self.window_s + self.duration_s

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> MaintenanceEvent:
        """From a JSON object.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        texts = {
            name: str(raw.get(name, ""))[:500]
            for name in ("id", "host", "role", "state", "action", "category", "reason", "token", "description")
        }
        if not texts["id"] or not texts["host"] or texts["role"] not in (NODE, LOGIN, CONTROLLER):
            raise ValueError("an event without an id or a host")
        return cls(
            **texts,
            start=_seconds(raw["start"]),
            window_s=max(0.0, _seconds(raw["window_s"])),
            duration_s=max(0.0, _seconds(raw["duration_s"])),
            started=None if raw.get("started") is None else _seconds(raw["started"]),
            due=None if raw.get("due") is None else _seconds(raw["due"]),
            reschedulable=raw.get("reschedulable") is True,
        )


@dataclass(frozen=True)
class EventList:
    """What the reader knows.

    Args:
        at: when it last listed all events, in seconds since 1970.
        refused: by the id of an event, why the cloud has not moved it.
        problem: why the events can't be listed now; empty if they can.
    """

    at: float
    events: tuple[MaintenanceEvent, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def to_json(self) -> str:
        """The file."""
        content = {"at": self.at, "refused": dict(self.refused), "problem": self.problem}
        return json.dumps({**content, "events": [event.to_dict() for event in self.events]}, indent=1) + "\n"

    @classmethod
    def load(cls, file: Path) -> EventList | None:
        """Read the file; None if the reader has never listed anything, or the file is damaged."""
        try:
            raw = bounded.load(file, _LARGEST)
            refused = {str(key): str(why)[:500] for key, why in dict(raw.get("refused") or {}).items()}
            events = tuple(MaintenanceEvent.from_dict(each) for each in raw["events"])
            return cls(_seconds(raw["at"]), events, refused, str(raw.get("problem") or "")[:500])
        except (OSError, AttributeError, KeyError, TypeError, ValueError):
            return None


def read_requests(file: Path) -> dict[str, float]:
    """Event -> the beginning of the window that the health service asks for. Empty where there is no readable file."""
    try:
        raw = bounded.load(file, _LARGEST)
        return {str(key): _seconds(start) for key, start in dict(raw).items()}
    except (OSError, TypeError, ValueError):
        return {}


def _seconds(value: Any) -> float:
    """A time or a duration of JSON, which Python also reads as NaN, as infinite, and with more digits than a float has.

    Raises:
        TypeError, ValueError: it is something else, or no date has it.
    """
    try:
        seconds = float(value)
    except OverflowError:
        raise ValueError("a number that is too large") from None
    if not abs(seconds) <= _LATEST_S:
        raise ValueError("a time that no date has")
    return seconds
