"""What a cluster reached before, where nothing is published for its shape: GB/s of bus bandwidth of all_reduce.

It is kept on the controller (`gpucluster-agent measure`), as a JSON object: key -> {"busbw", "recorded", "nodes"}.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from gpucluster.node_agent.nccl.limits import SAME_SHARE

#: Below this share of what the cluster reached before, or of what its other nodes reach, a result is bad.
SHARE = SAME_SHARE
#: Fewer results have no useful median: of two, it is not known which one is slow.
FEWEST = 3


def key(shape: str, nodes: int, algorithm: str) -> str:
    """The key of a measurement."""
    return f"{shape}/{nodes}/{algorithm}"


def figure(baseline: Mapping[str, Any], shape: str, nodes: int, algorithm: str) -> float | None:
    """What was recorded; None if nothing was, or nothing that can be read."""
    entry = baseline.get(key(shape, nodes, algorithm))
    value = entry.get("busbw") if isinstance(entry, Mapping) else None
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if good and value is not None else None


def entry(values: Iterable[float], recorded: str) -> dict[str, Any]:
    """What is recorded: the median.

    Args:
        recorded: the time, as a text.
    """
    known = list(values)
    return {"busbw": round(median(known), 2), "recorded": recorded, "results": len(known)}


def of_others(values: Iterable[float]) -> float | None:
    """The median of what the nodes or pairs of a pool reach; None where there are too few."""
    known = list(values)
    return median(known) if len(known) >= FEWEST else None
