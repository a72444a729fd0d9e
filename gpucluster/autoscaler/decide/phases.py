"""What Slurm's flags of a node come to, and whose word a reason is."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

# Every reason that we give begins so: it is how we know our own marks from a person's.
OURS = "gpucluster:"
# What slurmctld itself writes when it gives a node up (Slurm 22.05 and 24.11).
_SLURMS = ("ResumeTimeout", "Not responding", "Node unexpectedly rebooted", "NO NETWORK ADDRESS FOUND")


class Phase(Enum):
    """Where a node stands in its life, as far as Slurm knows."""

    OFF = "powered down"
    COMING = "powering up"
    UP = "in service"
    LEAVING = "powering down"
    DEAD = "down while it was powered down or coming up"
    LOST = "down"


@lru_cache(maxsize=4096)
def phase(flags: frozenset[str]) -> Phase:
    """The phase that the words of State come to. Cached: ten thousand nodes have a few dozen kinds of flags."""
    if "POWERING_DOWN" in flags:
        return Phase.LEAVING
    if "POWERING_UP" in flags:
        return Phase.DEAD if "DOWN" in flags else Phase.COMING
    if "POWERED_DOWN" in flags:
        return Phase.DEAD if "DOWN" in flags else Phase.OFF
    return Phase.LOST if "DOWN" in flags else Phase.UP


def wanted(flags: frozenset[str]) -> bool:
    """Whether a job or a person wants the node up, whatever else its flags say."""
    return bool(flags & {"ALLOCATED", "MIXED", "POWER_UP"}) or ("POWERING_UP" in flags and "POWERING_DOWN" not in flags)


def slurms(reason: str) -> bool:
    """Whether a reason is slurmctld's own. It keeps an old one before its own: `loud fan : Not responding` (24.11)."""
    return reason.rpartition(" : ")[2].startswith(_SLURMS)


def ours(reason: str) -> bool:
    """Whether a reason is one that we gave."""
    return reason.startswith(OURS) and not slurms(reason)


def a_persons(reason: str) -> bool:
    """Whether a reason is somebody's decision, which we leave alone."""
    return bool(reason) and not reason.startswith(OURS) and not slurms(reason)
