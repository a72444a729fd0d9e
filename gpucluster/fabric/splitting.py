"""Narrows a bad group of nodes down: to single nodes, or to two nodes or blocks that are only bad together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from gpucluster.fabric.measuring import Scale, certain, good
from gpucluster.fabric.model import FabricMeasurement
from gpucluster.fabric.pool import FabricPool
from gpucluster.fabric.rounds import Part, together

#: Nodes that are searched as one.
Bundle = frozenset[str]
T = TypeVar("T")


def suspects(scale: Scale, group: Sequence[str], pool: FabricPool) -> Part[list[str]]:
    """The single nodes of a bad group that are bad with a healthy partner.

    A group that is bad while both halves are good has none: its fault lies between them.
    """
    if len(group) == 1:
        return list(group)
    halves = halved(group)
    measurements: list[FabricMeasurement | None] = []
    for half in halves:
        # A node alone uses no network: it is measured with a partner that is proven good.
        partner = pool.any(half[0], group) if len(half) == 1 else None
        alone = len(half) == 1 and partner is None
        measurements.append(None if alone else FabricMeasurement.of({*half, *([partner] if partner else [])}))
    results = yield from good(scale, [each for each in measurements if each is not None])
    parts = []
    for half, each in zip(halves, measurements, strict=True):
        if each is None or not results[each]:
            parts.append(suspects(scale, half, pool))
        else:
            pool.add(half)
    suspects_by_half = yield from together(parts)
    return [node for nodes in suspects_by_half for node in nodes]


def between(scale: Scale, bundles: Sequence[Bundle]) -> Part[tuple[Bundle, Bundle] | None]:
    """Two bundles that are bad together, among bundles that are bad all together; None if that does not hold any more.

    A single bundle that is bad in itself is searched node by node.

    Raises:
        Unmeasured: a measurement had no result.
    """
    while True:
        if len(bundles) == 1:
            if len(bundles[0]) == 1:
                return None
            bundles = singles(bundles[0])
        left, right = halved(bundles)
        sides = [side for side in (left, right) if len(_union(side)) > 1]
        results = yield from certain(scale, [FabricMeasurement.of(_union(side)) for side in sides])
        bad = [side for side in sides if not results[FabricMeasurement.of(_union(side))]]
        if not bad:
            return (yield from across(scale, left, right))
        bundles = bad[0]


def across(scale: Scale, left: Sequence[Bundle], right: Sequence[Bundle]) -> Part[tuple[Bundle, Bundle] | None]:
    """The two bundles that are bad together, one of each side; each side is good in itself. None if there are none.

    Raises:
        Unmeasured: a measurement had no result.
    """
    sides = [left, right]
    while max(len(side) for side in sides) > 1:
        larger = 0 if len(sides[0]) >= len(sides[1]) else 1
        whole = _union(sides[1 - larger])
        halves = halved(sides[larger])
        measurements = [FabricMeasurement.of(_union(half) | whole) for half in halves]
        results = yield from certain(scale, measurements)
        bad = [half for half, each in zip(halves, measurements, strict=True) if not results[each]]
        if not bad:
            return None
        sides[larger] = bad[0]
    return sides[0][0], sides[1][0]


def singles(bundle: Bundle) -> list[Bundle]:
    """Its nodes, each as a bundle."""
    return [frozenset([node]) for node in sorted(bundle)]


def halved(items: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Both halves; the first is the larger one."""
    middle = (len(items) + 1) // 2
    return items[:middle], items[middle:]


def _union(bundles: Sequence[Bundle]) -> frozenset[str]:
    return frozenset().union(*bundles)
