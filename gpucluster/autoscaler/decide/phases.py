"""The phase of a node: which of the rules in `nodes` applies to it, from Slurm's flags."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

from gpucluster.slurm.states import NodeState


class Phase(Enum):
    """The phases of a node's life, as far as Slurm knows."""

    OFF = "powered down"
    COMING = "powering up"
    UP = "in service"
    LEAVING = "powering down"
    DEAD = "down while it was powered down or powering up"
    LOST = "down"


@lru_cache(maxsize=4096)
def phase(flags: frozenset[str]) -> Phase:
    """The phase of a node with these flags. Cached: ten thousand nodes have a few dozen different sets of flags."""
    down = NodeState.DOWN in flags
    if NodeState.POWERING_DOWN in flags:
        return Phase.LEAVING
    if NodeState.POWERING_UP in flags:
        return Phase.DEAD if down else Phase.COMING
    if NodeState.POWERED_DOWN in flags:
        return Phase.DEAD if down else Phase.OFF
    return Phase.LOST if down else Phase.UP
