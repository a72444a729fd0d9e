"""The arithmetic of the operations: how bus bandwidth follows from the measured one, and what a network allows.

Source: PERFORMANCE.md of nccl-tests. There, busbw = algbw x factor, so that the number can be compared with the
hardware's, whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpucluster.node_agent.nccl.measurement import Half


class Collective(NamedTuple):
    """An operation of nccl-tests.

    Attributes:
        factor: busbw / algbw of n ranks.
        ranks: n of a factor; None where the factor does not depend on n.
        reduces: whether its rows name a reduction (sum, prod, min, max, avg, mulsum).
        rooted: whether its rows name a root.
        ring: whether data flow through a ring over all ranks, so that the bound is what one node's wires carry.
        exchanges: whether ranks only exchange data in pairs; its rows name a reduction though there is none.
    """

    factor: Callable[[int], float]
    ranks: Callable[[float], float] | None
    reduces: bool
    rooted: bool
    ring: bool
    exchanges: bool = False


#: Factors of more ranks differ by less than what is printed.
_MOST_RANKS = 100_000


def _twice(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _once(ranks: int) -> float:
    return (ranks - 1) / ranks


def _one(_ranks: int) -> float:
    return 1.0


def _ranks_of_twice(factor: float) -> float:
    return 2 / max(2 - factor, 1e-9)


def _ranks_of_once(factor: float) -> float:
    return 1 / max(1 - factor, 1e-9)


ALL_REDUCE = "all_reduce"
SEND_AND_RECEIVE = "sendrecv"
ALL_TO_ALL = "alltoall"
#: By the name of the program without `_perf`.
COLLECTIVES: Mapping[str, Collective] = {
    ALL_REDUCE: Collective(_twice, _ranks_of_twice, reduces=True, rooted=False, ring=True),
    "reduce_scatter": Collective(_once, _ranks_of_once, reduces=True, rooted=False, ring=True),
    "all_gather": Collective(_once, _ranks_of_once, reduces=False, rooted=False, ring=True),
    ALL_TO_ALL: Collective(_once, _ranks_of_once, reduces=False, rooted=False, ring=False),
    "gather": Collective(_once, _ranks_of_once, reduces=False, rooted=True, ring=False),
    "scatter": Collective(_once, _ranks_of_once, reduces=False, rooted=True, ring=False),
    "hypercube": Collective(_once, _ranks_of_once, reduces=False, rooted=False, ring=False),
    "broadcast": Collective(_one, None, reduces=False, rooted=True, ring=True),
    "reduce": Collective(_one, None, reduces=True, rooted=True, ring=True),
    SEND_AND_RECEIVE: Collective(_one, None, reduces=True, rooted=False, ring=False, exchanges=True),
}


def fits(operation: str, half: Half, ranks: int) -> bool:
    """Whether the two bandwidths are those of so many ranks, as exactly as they are printed."""
    algorithm, bus = half.algorithm, half.bus
    if algorithm.value <= 0:
        return False
    # Both numbers are rounded: each is right to half of its last digit, and a program may cut instead of round.
    slack = bus.step / algorithm.value + algorithm.step * bus.value / algorithm.value**2
    return abs(bus.value / algorithm.value - COLLECTIVES[operation].factor(ranks)) <= slack


def ranks_of(operation: str, half: Half) -> int | None:
    """How many ranks took part; None where the numbers do not show it."""
    of = COLLECTIVES[operation].ranks
    if of is None or half.algorithm.value <= 0:
        return None
    ranks = round(of(half.bus.value / half.algorithm.value))
    return ranks if 0 < ranks < _MOST_RANKS else None


def of_unnamed(operator: str, rooted: bool, half: Half, ranks: int) -> list[str]:
    """The operations that a row may be of, in an output that does not name it: older versions printed no name.

    Several operations look the same in a row. Those are taken whose factor fits to the number of ranks; where none
    fits, all that look so, the most usual first.
    """
    reduces = operator not in ("none", "")
    alike = [
        name
        for name, collective in COLLECTIVES.items()
        if (collective.reduces, collective.rooted) == (reduces, rooted) and not collective.exchanges
    ]
    return [name for name in alike if fits(name, half, ranks)] or alike


def bound(operation: str, wire: float, nodes: int, gpus: int) -> float:
    """The highest bus bandwidth in GB/s that the network between nodes allows, without tricks such as trees.

    Args:
        wire: what all RDMA devices of a node carry in one direction, in GB/s.
        gpus: on each node.
    """
    ranks = nodes * gpus
    if operation == ALL_TO_ALL:
        # Each rank keeps 1/nodes of its data on its node; everything else of all ranks leaves through the wires.
        return wire * (ranks - 1) / (gpus * (ranks - gpus))
    if operation == SEND_AND_RECEIVE:
        return wire / gpus
    return wire
