"""Who holds a cluster for a run that changes it, as the value of a tag of one of its resources. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gpucluster.oci import tags

# OCI's limit for the value of a tag.
_LONGEST = 256
_PARTS = 4


@dataclass(frozen=True)
class Holder:
    """A run that holds a cluster.

    Args:
        id: random, of the folder's run.
        since: in RFC 3339, by the clock of the machine that holds it.
        command: of gpucluster.
        origin: who runs it, and where.
    """

    id: str
    since: str
    command: str
    origin: str

    def text(self) -> str:
        """The value of the tag. A long origin is cut, always at the same place."""
        return f"{self.id} {self.since} {self.command.replace(' ', '-')} {self.origin}"[:_LONGEST]

    def same_place(self, other: Holder) -> bool:
        """Whether both are of the same user, machine and folder, as far as the tag has it."""
        length = min(len(self.origin), len(other.origin))
        return bool(length) and self.origin[:length] == other.origin[:length]

    def age(self, now: datetime) -> float:
        """Seconds since the run began; 0 if its clock is ahead, -1 if the tag does not have it."""
        try:
            return max(0.0, (now - datetime.fromisoformat(self.since)).total_seconds())
        except (ValueError, TypeError):
            return -1.0


def holder(resource_tags: tags.Tags | None) -> Holder | None:
    """Who holds the cluster, by the tags of its resource; None if no run does. Any text counts as a lock."""
    value = (resource_tags or {}).get(tags.LOCK, "").strip()
    if not value:
        return None
    parts = value.split(" ", _PARTS - 1)
    return Holder(*parts, *[""] * (_PARTS - len(parts)))
