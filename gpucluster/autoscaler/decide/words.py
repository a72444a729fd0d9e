"""How decisions are put to people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from gpucluster.autoscaler.decide.world import Fault

# Stands between the cloud's words and what an administrator can do. The latter is for the log and the status; users,
# who can do nothing about it, are not told.
ADVICE = " | "
_FAULTS = {
    Fault.CAPACITY: "the cloud has no free host",
    Fault.LIMIT: "a limit or quota of the tenancy is reached",
    Fault.CONFIGURATION: "the cloud can't do what the pool's configuration asks for",
    Fault.BOOT: "new nodes don't come into service",
    Fault.TRANSIENT: "the cloud gives no clear answer",
    Fault.LOST: "instances end without our doing",
}


def clock(at: float) -> str:
    """A time for people, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def count(number: int, thing: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def some(names: Sequence[str], most: int = 4) -> str:
    """The first few of many names."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def fault(kind: str, message: str = "") -> str:
    """What went wrong, with the cloud's own words after it; advice is left out."""
    known = _FAULTS[Fault(kind)] if kind in set(Fault) else "something went wrong"
    said = message.partition(ADVICE)[0]
    return f"{known} ({said})" if said else known
