"""Faults between nodes none of which is bad in itself: uplinks of blocks, links between blocks, pairs of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpucluster.fabric.measuring import MeasurementFailure, Scale, certain
from gpucluster.fabric.model import FabricMeasurement
from gpucluster.fabric.rounds import Part
from gpucluster.fabric.splitting import Bundle, across, between, singles

#: So many faults are searched; a network with more needs an operator.
_MOST = 16
#: So many others tell a bad end from a bad link between two ends. One of them may be bad itself.
_WITNESSES = 3


@dataclass
class Links:
    """What was found. `apart`: nodes that are bad with nearly all; `reason`: what is slow and was not found;
    `unfinished`: why the search ended before its end."""

    uplinks: set[int] = field(default_factory=set)
    links: set[tuple[int, int]] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    apart: set[str] = field(default_factory=set)
    reason: str = ""
    unfinished: str = ""

    def __len__(self) -> int:
        return len(self.uplinks) + len(self.links) + len(self.pairs) + len(self.apart)


def search(scale: Scale, blocks: Sequence[Sequence[str]], nodes: Bundle) -> Part[Links]:
    """Search among these nodes. After each fault, it goes on without one end of it, and without the other."""
    links = Links()
    waiting, seen = [nodes], set[Bundle]()
    while waiting and len(links) < _MOST:
        whole = waiting.pop()
        if len(whole) > 1 and whole not in seen:
            seen.add(whole)
            measured = FabricMeasurement.of(whole)
            try:
                results = yield from certain(scale, [measured])
                if not results[measured]:
                    waiting += yield from _one(scale, [frozenset(block) & whole for block in blocks], whole, links)
            except MeasurementFailure as error:
                # A node that died after it was found good: what is measured with it is not bad for that.
                links.unfinished = f"a measurement had no result: {error}"
                break
    return links


def _one(scale: Scale, blocks: Sequence[Bundle], whole: Bundle, links: Links) -> Part[list[Bundle]]:
    """Find one fault among nodes that are bad together. Returns in which of them to search on."""
    present = [block for block in blocks if block]
    fault = yield from between(scale, present)
    if fault is None:
        links.reason = "all nodes together are slow, and no part of them is: the network may be overloaded"
        return []
    one, other = fault
    first, second = (next(number for number, block in enumerate(blocks) if end <= block) for end in fault)
    if first != second:
        witnesses = [block for block in present if block not in fault][:_WITNESSES]
        ends = yield from _bad_with_all(scale, fault, witnesses)
        if ends:
            links.uplinks.update(number for end, number in ((one, first), (other, second)) if end in ends)
            return [whole.difference(*ends)]
        pair = yield from across(scale, singles(one), singles(other))
        if pair is None or (yield from _others_too(scale, (one, other), pair)):
            links.links.add((min(first, second), max(first, second)))
            return [whole - one, whole - other]
        one, other = pair
    # Where switches are not known, a node behind a bad one looks like a pair with each of the others.
    left = singles(whole - one - other)
    witnesses = left[:: max(len(left) // _WITNESSES, 1)][:_WITNESSES]
    ends = yield from _bad_with_all(scale, (one, other), witnesses)
    if ends:
        links.apart.update(*ends)
        return [whole.difference(*ends)]
    first_node, second_node = sorted((min(one), min(other)))
    links.pairs.add((first_node, second_node))
    return [whole - one, whole - other]


def _bad_with_all(scale: Scale, ends: Sequence[Bundle], witnesses: Sequence[Bundle]) -> Part[list[Bundle]]:
    """Those ends that are bad with every other block, too."""
    by_end = {end: [FabricMeasurement.of(end | witness) for witness in witnesses] for end in ends}
    results = yield from certain(scale, [each for measurements in by_end.values() for each in measurements])
    return [end for end in ends if by_end[end] and not any(results[each] for each in by_end[end])]


def _others_too(scale: Scale, blocks: tuple[Bundle, Bundle], pair: tuple[Bundle, Bundle]) -> Part[bool]:
    """Whether other nodes of the two blocks are bad together as well: then it is the link and not the two nodes."""
    # Where a block has one node only, that node stands for it.
    one, other = (sorted(block - end or block)[0] for block, end in zip(blocks, pair, strict=True))
    measured = FabricMeasurement.of({one, other})
    if {one, other} == {*pair[0], *pair[1]}:
        return True
    results = yield from certain(scale, [measured])
    return not results[measured]
