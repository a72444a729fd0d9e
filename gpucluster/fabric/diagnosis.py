"""The whole search.

1. Screening: about sqrt(N) groups at once. Groups that are good prove their nodes healthy, as partners for others.
2. Each bad group is split in halves until single nodes are left, each measured with a healthy partner.
3. Each suspect is confirmed with another partner, from outside of its block.
4. All that is left is measured together. If that is bad, the fault lies between two blocks or two nodes, and is split
   down to them.
5. Suspects are measured with each other: what is good with another suspect is not a bad node, but on the other side of
   a bad link.
6. Bad nodes are measured device by device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise

from gpucluster.fabric import links
from gpucluster.fabric.measuring import Scale, good, typical
from gpucluster.fabric.model import Fabric, FabricMeasurement, FabricVerdict, Results
from gpucluster.fabric.pool import FabricPool
from gpucluster.fabric.rounds import Part, together
from gpucluster.fabric.splitting import halved, suspects

#: Two bad nodes of a switch are two bad nodes. From this number on, it is the switch if all of its nodes are bad.
_SWITCH = 3
#: So many suspects are all measured with each other; of more, each with its next two.
_ALL_PAIRS = 6
_SMALLEST = 2


def advance(fabric: Fabric, results: Sequence[Results]) -> tuple[FabricMeasurement, ...] | FabricVerdict:
    """The next measurements, or the verdict.

    Measurements of one answer may run side by side as far as they share no node.

    Args:
        results: of all rounds so far: for each the results of what was asked then. A measurement that is missing has no
            result.

    Raises:
        ValueError: a node is in two blocks.
    """
    if len(fabric.nodes) != sum(len(block) for block in fabric.blocks):
        raise ValueError("each node must be in exactly one block")
    search = _Search(fabric).run()
    count = 0
    try:
        questions = next(search)
        for answers in results:
            count += len(questions)
            questions = search.send({each: answers.get(each) for each in questions})
    except StopIteration as end:
        verdict: FabricVerdict = end.value
        return FabricVerdict(**{**vars(verdict), "measurements": count, "rounds": len(results)})
    return tuple(questions)


class _Search:
    """One search, from its beginning."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._order = [node for block in fabric.blocks for node in block]
        self._block_of = {node: number for number, block in enumerate(fabric.blocks) for node in block}
        self._pool = FabricPool(self._order, self._block_of)
        self._scale = Scale(1, 1)

    def run(self) -> Part[FabricVerdict]:
        """Search."""
        if len(self._order) < _SMALLEST:
            return FabricVerdict(reason="the network needs two nodes")
        groups = screening_groups(self._fabric)
        bad = yield from self._screen(groups)
        if bad is None:
            return FabricVerdict(reason="no measurement had a result: the measurement itself has a fault")
        if bad and not self._pool:
            yield from self._find_partners(bad)
            if not self._pool:
                return FabricVerdict(reason="no two nodes are good together: the measurement itself may have a fault")
        suspects_by_group = yield from together([suspects(self._scale, group, self._pool) for group in bad])
        confirmed = yield from together([self._confirm(node) for nodes in suspects_by_group for node in nodes])
        bad_nodes = [node for node, is_bad in confirmed if is_bad]
        unknown = {node: "no measurement with it had a result" for node, is_bad in confirmed if is_bad is None}
        left = frozenset(self._order) - set(bad_nodes) - set(unknown)
        between = yield from links.search(self._scale, self._fabric.blocks, left)
        apart = yield from self._good_among_themselves(bad_nodes, between.apart)
        switches = self._switches({*bad_nodes, *unknown} - set(apart))
        single = [node for node in bad_nodes if node not in apart and self._block_of[node] not in switches]
        rails = yield from together([self._slow_rails(node) for node in single])
        return FabricVerdict(
            nodes=tuple(sorted(node for node, slow in zip(single, rails, strict=True) if not slow)),
            rails={node: slow for node, slow in zip(single, rails, strict=True) if slow},
            pairs=tuple(sorted(between.pairs)),
            switches=tuple(sorted(switches)),
            uplinks=tuple(sorted(between.uplinks)),
            links=tuple(sorted(between.links)),
            apart=tuple(sorted(apart)),
            unknown={node: why for node, why in unknown.items() if self._block_of[node] not in switches},
            reason=between.reason,
            unfinished=between.unfinished,
        )

    def _screen(self, groups: Sequence[Sequence[str]]) -> Part[list[Sequence[str]] | None]:
        """The groups that are not good; None without any result."""
        group_of = {FabricMeasurement.of(set(group)): group for group in groups}
        first = yield tuple(group_of)
        whole = self._fabric.expected or typical(first.values())
        if whole is None:
            return None
        self._scale = Scale(whole, self._fabric.expected_of_rail or 0.0)
        results = yield from good(self._scale, group_of, first)
        for each, is_good in results.items():
            if is_good:
                self._pool.add(group_of[each])
        return [group_of[each] for each, is_good in results.items() if not is_good]

    def _find_partners(self, groups: Sequence[Sequence[str]]) -> Part[None]:
        """Every group is bad. Find any nodes that are good together: in halves, and then in pairs of the whole."""
        while groups and not self._pool:
            groups = [half for group in groups for half in halved(group) if len(half) >= _SMALLEST]
            group_of = {FabricMeasurement.of(set(group)): group for group in groups}
            for each, is_good in (yield from good(self._scale, group_of)).items():
                if is_good:
                    self._pool.add(group_of[each])
        count = len(self._order)
        for distance in range(1, min(count, 2 * _ALL_PAIRS)):
            if self._pool:
                return
            pairs = [
                {self._order[at], self._order[(at + distance) % count]}
                for at in range(count)
                if (at // distance) % 2 == 0 and at != (at + distance) % count
            ]
            results = yield from good(self._scale, [FabricMeasurement.of(pair) for pair in pairs])
            for each, is_good in results.items():
                if is_good:
                    self._pool.add(each.nodes)

    def _confirm(self, node: str) -> Part[tuple[str, bool | None]]:
        """Whether the node is bad with two partners; None where nothing could be measured.

        One of them is from its own block if any node there is healthy, because a bad uplink of the block would look
        like a bad node; the other is from outside.
        """
        first = self._pool.any(node, ())
        second = self._pool.outside(node, [first] if first else []) or self._pool.any(node, [first] if first else [])
        measurements = [FabricMeasurement.of({node, partner}) for partner in (first, second) if partner is not None]
        results = yield from good(self._scale, measurements)
        answers = list(results.values())
        if any(answers):
            self._pool.add([node])
            return node, False
        return node, None if all(answer is None for answer in answers) else True

    def _good_among_themselves(self, bad_nodes: Sequence[str], apart: set[str]) -> Part[set[str]]:
        """Bad nodes that are good with another bad one: the fault lies between them and all others.

        Args:
            apart: nodes of which that is known already.
        """
        nodes = sorted({*bad_nodes, *apart})
        count = len(nodes)
        if count <= _ALL_PAIRS:
            pairs = list(combinations(nodes, 2))
        else:
            pairs = [(nodes[at], nodes[(at + step) % count]) for step in (1, 2) for at in range(count)]
        results = yield from good(self._scale, [FabricMeasurement.of(set(pair)) for pair in pairs])
        return apart | {node for each, is_good in results.items() if is_good for node in each.nodes}

    def _switches(self, bad: set[str]) -> set[int]:
        blocks = self._fabric.blocks
        if len(blocks) < _SMALLEST:
            return set()
        return {number for number, block in enumerate(blocks) if len(block) >= _SWITCH and bad.issuperset(block)}

    def _slow_rails(self, node: str) -> Part[tuple[int, ...]]:
        """The devices of a bad node that are slow while others are good; empty where it is the whole node."""
        partner = self._pool.any(node)
        if not self._fabric.rails or partner is None:
            return ()
        measurements = [FabricMeasurement.of({node, partner}, rail) for rail in range(self._fabric.rails)]
        first = yield tuple(measurements)
        alone = self._fabric.expected_of_rail or typical(first.values())
        if alone is None:
            return ()
        results = yield from good(Scale(self._scale.whole, alone), measurements, first)
        slow = tuple(each.rail for each, is_good in results.items() if is_good is False and each.rail is not None)
        return slow if 0 < len(slow) < self._fabric.rails and True in results.values() else ()


def screening_groups(fabric: Fabric) -> list[Sequence[str]]:
    """About sqrt(N) groups of two nodes and more, within blocks where these are large enough."""
    size = max(math.ceil(math.sqrt(len(fabric.nodes))), _SMALLEST)
    groups: list[Sequence[str]] = []
    lone: list[str] = []
    for block in fabric.blocks:
        if len(block) < _SMALLEST:
            lone += block
            continue
        count = math.ceil(len(block) / size)
        # Parts of equal size: none of them is a node alone.
        count = min(count, len(block) // _SMALLEST)
        bounds = [len(block) * part // count for part in range(count + 1)]
        groups += [block[begin:end] for begin, end in pairwise(bounds)]
    if len(lone) == 1 and groups:
        groups[0] = [*groups[0], *lone]
    elif lone:
        groups += [lone[at : at + size] for at in range(0, len(lone), size)]
        if len(groups[-1]) == 1 and len(groups) > 1:
            last = groups.pop()
            groups[-1] = [*groups[-1], *last]
    return groups
