"""Chooses what a bus bandwidth is compared with, and says what kind of evidence that is.

- **published**: a lower limit of Oracle's stack for this shape. Below it is a fault.
- **derived**: a share of what the wires of a node, or the NVLink links of a GPU, carry. Above it is good; below it is
  no proof of a fault, unless it is far below.
"""

from __future__ import annotations

from typing import NamedTuple

from gpucluster.agent.nccl import collectives
from gpucluster.agent.nccl.shape_limits import Shape

RING = "ring"
DEFAULT = "default"
#: Limits are published for one node and for two.
_PAIR = 2
#: Messages below this size measure latency and not bandwidth: the published limits begin at 1 GiB.
SMALLEST_MESSAGE = 1 << 30
#: Share of the wires that a ring reaches on a healthy network: measured pairs of OCI's A100 reach 0.93 to 0.95.
RING_SHARE = 0.92
#: Operations without a ring reach less, and no figure is published: this only tells the good from the doubtful.
_OTHER_SHARE = 0.5
#: Published results of healthy networks are all above 0.8 of the wires; what does not reach half has a fault.
FAULT_SHARE = 0.5


#: Share of a GPU's NVLink links that a ring within a node reaches: four H100 were measured at 0.81.
NVLINK_SHARE = 0.75


class Limit(NamedTuple):
    """What a result is compared with, in GB/s: `good` and above is good, below `fault` is a fault."""

    good: float
    fault: float
    why: str


def choose(shape: Shape | None, operation: str, algorithm: str, nodes: int, gpus: int) -> Limit | None:
    """The limit for a run; None where there is nothing to compare with.

    Args:
        algorithm: "ring" where NCCL was forced to it, "default" where NCCL chose.
        gpus: on each node.
    """
    if shape is not None and nodes == 1 and 1 < gpus < shape.gpus:
        return _part_of_a_node(shape, operation)
    if shape is None or gpus != shape.gpus:
        return None
    exact = shape.busbw.get((min(nodes, _PAIR), algorithm))
    # NCCL chooses what it holds for the fastest, so its own choice must reach what a ring reaches.
    ring = shape.busbw.get((min(nodes, _PAIR), RING))
    published = exact if exact is not None and (nodes <= _PAIR or algorithm == RING) else ring
    if operation == collectives.ALL_REDUCE and published is not None:
        return Limit(published, published, f"the published limit of {nodes} x {shape.name}")
    if nodes == 1:
        # Without the sums of the switches other operations are slower: reaching the limit of all_reduce is good.
        only_good = shape.busbw.get((1, algorithm), ring)
        return (
            None if only_good is None else Limit(only_good, 0.0, f"the published limit of all_reduce on {shape.name}")
        )
    if not shape.wire:
        return None
    most = collectives.bound(operation, shape.wire, nodes, gpus)
    is_ring = collectives.COLLECTIVES[operation].ring
    share = RING_SHARE if is_ring else _OTHER_SHARE
    fault = FAULT_SHARE * most if is_ring else 0.0
    return Limit(share * most, fault, f"{share:g} of the {most:.4g} GB/s that the wires of {shape.name} allow")


def _part_of_a_node(shape: Shape, operation: str) -> Limit | None:
    """The limit for some GPUs of a node: in a ring each sends over all its links, whatever the number of GPUs is.

    Not where GPUs are joined without switches: there the number of links between two of them depends on which they are.
    """
    if not shape.nvlink or not collectives.COLLECTIVES[operation].ring:
        return None
    why = f"derived from the {shape.nvlink:g} GB/s that the NVLink of each GPU of {shape.name} carries"
    return Limit(NVLINK_SHARE * shape.nvlink, FAULT_SHARE * shape.nvlink, why)
