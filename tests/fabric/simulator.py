"""A network with planted faults: what a measurement of some of its nodes would give."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpucluster.fabric.diagnosis import advance
from gpucluster.fabric.model import Fabric, FabricMeasurement, FabricVerdict, Results

WHOLE, RAIL = 200.0, 12.5


@dataclass(frozen=True)
class Fault:
    """A planted fault: `share` of the bandwidth is left.

    Args:
        kind: node, rail, pair, switch, uplink or link.
        ends: names of nodes, or numbers of blocks as text; for a rail the node and the device.
    """

    kind: str
    ends: tuple[str, ...]
    share: float


@dataclass
class Network:
    """The network. `noise`: the standard deviation of a result, as a share of it. `dead`: nodes without results."""

    blocks: Sequence[Sequence[str]]
    faults: Sequence[Fault] = ()
    noise: float = 0.03
    dead: frozenset[str] = frozenset()
    seed: int = 0
    rails: int = 4
    asked: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._block_of = {node: number for number, block in enumerate(self.blocks) for node in block}

    def measure(self, measurement: FabricMeasurement) -> float | None:
        """GB/s; None where a node is dead."""
        self.asked += 1
        nodes = frozenset(measurement.nodes)
        assert len(nodes) > 1, "one node uses no network"
        if nodes & self.dead:
            return None
        touched = {self._block_of[node] for node in nodes}
        left = min(
            (fault.share for fault in self.faults if self._meets(fault, nodes, touched, measurement.rail)), default=1.0
        )
        return (WHOLE if measurement.rail is None else RAIL) * left * max(self._random.gauss(1, self.noise), 0)

    def _meets(self, fault: Fault, nodes: frozenset[str], touched: set[int], rail: int | None) -> bool:
        if fault.kind in ("node", "pair"):
            return nodes.issuperset(fault.ends)
        if fault.kind == "rail":
            return fault.ends[0] in nodes and rail in (None, int(fault.ends[1]))
        blocks = {int(end) for end in fault.ends}
        if fault.kind == "switch":
            return bool(touched & blocks)
        if fault.kind == "uplink":
            return bool(touched & blocks) and len(touched) > 1
        return touched >= blocks  # link

    def answers(self, asked: Sequence[FabricMeasurement]) -> Results:
        """The results of one round."""
        return {each: self.measure(each) for each in asked}


def diagnose(network: Network, fabric: Fabric) -> FabricVerdict:
    """The verdict of a whole search."""
    rounds: list[Results] = []
    while True:
        step = advance(fabric, rounds)
        if isinstance(step, FabricVerdict):
            assert step.measurements == network.asked
            return step
        assert len(rounds) < 300, "the search does not end"
        rounds.append(network.answers(step))


#: What can be wrong with a node, and what lies between nodes.
ON_NODES, BETWEEN = ("node", "rail"), ("pair", "switch", "uplink", "link")
_SHARES = (0.0, 0.3, 0.5, 0.7, 0.8)


def random_network(seed: int) -> Network:
    """A network of 16 to 232 nodes with up to three bad nodes or rails, and at most one fault between nodes.

    Two faults between blocks can look like a third one, and then they can't be told apart.
    """
    random_ = random.Random(seed)
    per_block = random_.choice([4, 8, 16])
    count = random_.choice([4, 5, 8, 14])
    blocks = [tuple(f"gpu-{block:02}-{node:02}" for node in range(per_block)) for block in range(count)]
    share = random_.choice(_SHARES)
    kind = random_.choice(("", *BETWEEN))
    between, touched = [], set[int]()
    if kind == "pair":
        one, other = (random_.choice(blocks[block]) for block in random_.choices(range(count), k=2))
        between = [Fault(kind, (min(one, other), max(one, other)), share)] if one != other else []
        touched = {number for number, block in enumerate(blocks) if {one, other} & set(block)}
    elif kind:
        ends = random_.sample(range(count), 2 if kind == "link" else 1)
        between, touched = [Fault(kind, tuple(str(end) for end in sorted(ends)), share)], set(ends)
    # A bad node below a bad switch is not seen, and its block counts as the switch.
    free = [node for number, block in enumerate(blocks) if number not in touched for node in block]
    bad = random_.sample(free, random_.randrange(min(4, len(free))))
    # Two in one group are harder than two in different ones.
    if bad and random_.random() < 0.3:
        block = next(block for block in blocks if bad[0] in block)
        bad = list(dict.fromkeys([bad[0], block[(block.index(bad[0]) + 1) % per_block]]))
    faults = list(between)
    for node in bad:
        on_node = random_.choice(ON_NODES)
        ends_of = (node, str(random_.randrange(4))) if on_node == "rail" else (node,)
        faults.append(Fault(on_node, ends_of, random_.choice(_SHARES)))
    return Network(blocks, faults, seed=seed)


def difference(network: Network, verdict: FabricVerdict) -> dict[str, tuple[object, object]]:
    """Where the verdict is not what was planted: planted and found, by kind. Empty if it is right."""

    def planted(kind: str) -> list[tuple[str, ...]]:
        return sorted(fault.ends for fault in network.faults if fault.kind == kind)

    def numbers(kind: str) -> list[tuple[int, ...]]:
        return [tuple(int(end) for end in ends) for ends in planted(kind)]

    wanted = {
        "nodes": tuple(node for (node,) in planted("node")),
        "rails": {node: (int(rail),) for node, rail in planted("rail")},
        "pairs": tuple(planted("pair")),
        "switches": tuple(number for (number,) in numbers("switch")),
        "uplinks": tuple(number for (number,) in numbers("uplink")),
        "links": tuple(numbers("link")),
        "apart": (),
        "unknown": {},
        "reason": "",
    }
    found = vars(verdict)
    return {kind: (value, found[kind]) for kind, value in wanted.items() if found[kind] != value}
