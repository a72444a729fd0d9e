"""The phase of a node: which of the rules in `nodes` applies to it, from Slurm's flags."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

from gpucluster.slurm.states import NodeState


class Phase(Enum):
    """The phases of a node's life, as far as Slurm knows."""

    POWERED_DOWN = "powered down"
    POWERING_UP = "powering up"
    IN_SERVICE = "in service"
    POWERING_DOWN = "powering down"
    DOWN_POWERED_OFF = "down while it was powered down or powering up"
    DOWN = "down"


@lru_cache(maxsize=4096)
def phase(flags: frozenset[str]) -> Phase:
    """The phase of a node with these flags. Cached: ten thousand nodes have a few dozen different sets of flags."""
    down = NodeState.DOWN in flags
    if NodeState.POWERING_DOWN in flags:
        return Phase.POWERING_DOWN
    if NodeState.POWERING_UP in flags:
        return Phase.DOWN_POWERED_OFF if down else Phase.POWERING_UP
    if NodeState.POWERED_DOWN in flags:
        return Phase.DOWN_POWERED_OFF if down else Phase.POWERED_DOWN
    return Phase.DOWN if down else Phase.IN_SERVICE
