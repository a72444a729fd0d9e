"""The nodes that are proven healthy, as partners for nodes that are not."""

from __future__ import annotations

from collections.abc import Collection, Mapping


class FabricPool:
    """Healthy nodes, by block. Different nodes get different partners where there are enough of them.

    Args:
        order: all nodes, in the order in which they are searched.
        block_of: the block of each node.
    """

    def __init__(self, order: Collection[str], block_of: Mapping[str, int]) -> None:
        self._place = {node: place for place, node in enumerate(order)}
        self._block_of = block_of
        self._healthy: dict[int, list[str]] = {}
        self._known: set[str] = set()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, nodes: Collection[str]) -> None:
        """These nodes were good together."""
        for node in nodes:
            if node not in self._known:
                self._known.add(node)
                self._healthy.setdefault(self._block_of[node], []).append(node)

    def inside(self, node: str, without: Collection[str] = ()) -> str | None:
        """A partner from the node's own block."""
        return self._choose(self._healthy.get(self._block_of[node], []), node, without)

    def outside(self, node: str, without: Collection[str] = ()) -> str | None:
        """A partner from another block, and not from one of those of `without` where there is a choice."""
        own = self._block_of[node]
        seen = {self._block_of[other] for other in without}
        blocks = [block for block in sorted(self._healthy) if block != own]
        fresh = [block for block in blocks if block not in seen] or blocks
        if not fresh:
            return None
        return self._choose(self._healthy[fresh[self._place[node] % len(fresh)]], node, without)

    def any(self, node: str, without: Collection[str] = ()) -> str | None:
        """A partner, from the node's own block if there is one."""
        return self.inside(node, without) or self.outside(node, without)

    def _choose(self, candidates: list[str], node: str, without: Collection[str]) -> str | None:
        left = [each for each in candidates if each != node and each not in without]
        return left[self._place[node] % len(left)] if left else None
