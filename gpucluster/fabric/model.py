"""The types of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class FabricMeasurement:
    """A measurement of the bandwidth between nodes: all of them together, two or more.

    Args:
        nodes: their names, sorted.
        rail: the only RDMA device of each node that may be used (NCCL_IB_HCA); None for all of them.
    """

    nodes: tuple[str, ...]
    rail: int | None = None

    @staticmethod
    def of(nodes: frozenset[str] | set[str], rail: int | None = None) -> FabricMeasurement:
        """The measurement of these nodes."""
        return FabricMeasurement(tuple(sorted(nodes)), rail)


#: GB/s of bus bandwidth; None where there is no result: it did not start, it was cut off, its time was over.
Results = Mapping[FabricMeasurement, float | None]


@dataclass(frozen=True)
class Fabric:
    """What is searched.

    Args:
        blocks: nodes by the switch that they share, as far as it is known; every node in exactly one of them. One
            block where nothing is known.
        rails: how many RDMA devices a node has; 0 leaves them out.
        expected: GB/s of bus bandwidth of a healthy group; None takes it from the measurements themselves.
        expected_of_rail: the same with one device.
    """

    blocks: tuple[tuple[str, ...], ...]
    rails: int = 0
    expected: float | None = None
    expected_of_rail: float | None = None

    @property
    def nodes(self) -> frozenset[str]:
        """All nodes."""
        return frozenset(node for block in self.blocks for node in block)


@dataclass(frozen=True)
class FabricVerdict:
    """What was found. Each node that is in no list of faults is healthy.

    Args:
        nodes: bad nodes: slow with two healthy partners, with all of their devices.
        rails: node -> devices that are slow while others of the same node are good.
        pairs: two nodes that are slow together, and good with others.
        switches: numbers of blocks all of whose nodes are slow: it is the switch, and not each node.
        uplinks: numbers of blocks that are good in themselves, and slow with every other block.
        links: two numbers of blocks that are slow together, and good with others.
        apart: nodes that are good among themselves, and slow with all others, where no known block explains it.
        unknown: nodes that could not be measured, with the reason. They do not count as bad.
        reason: why the search has no result for any node; empty otherwise.
        unfinished: why nothing more is known of what lies between nodes: a measurement had no result there.
        measurements: how many were needed. `rounds`: how many one after the other.
    """

    nodes: tuple[str, ...] = ()
    rails: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()
    switches: tuple[int, ...] = ()
    uplinks: tuple[int, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    apart: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    unfinished: str = ""
    measurements: int = 0
    rounds: int = 0

    @property
    def healthy(self) -> bool:
        """Whether everything was measured and is good."""
        faults = (self.nodes, self.rails, self.pairs, self.switches, self.uplinks, self.links, self.apart)
        return not any((*faults, self.unknown, self.reason, self.unfinished))
