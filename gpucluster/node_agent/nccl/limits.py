"""Chooses what a bus bandwidth is compared with, and names the kind of evidence for it.

- **published**: a lower limit of Oracle's stack for this shape. Below it is a fault.
- **measured**: a share of what others have measured on this shape, where no lower limit is published.
- **derived**: a share of what the wires of a node, or the NVLink links of a GPU, carry. Above it is good; below it is
  no proof of a fault, unless it is far below.

Within a node the bus bandwidth of a ring does not depend on the number of GPUs, because each sends over all its links
to the next one. This stops where no switches join the GPUs (then the links between two of them are fewer), and where
the switches add up what GPUs send (NVLS): that is faster than a ring, and has published limits for whole nodes only.
One node is never compared with what a pair reaches, which the network limits: its NVLink carries more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpucluster.node_agent.nccl import collectives, gpu_models
from gpucluster.node_agent.nccl.shape_limits import ShapeLimits

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
#: Share of a GPU's NVLink links that a ring within a node reaches: eight A100 were measured at 0.77, two H200 at 0.77,
#: four H100 at 0.81.
NVLINK_SHARE = 0.75
#: Share of what healthy hardware reached before, or elsewhere, that still counts as the same.
SAME_SHARE = 0.95
#: Boards without switches have four GPUs, and each joins the links of a GPU to three others equally. Source: NVIDIA's
#: HGX and DGX Station boards with four GPUs.
_OTHERS_WITHOUT_SWITCH = 3


class BandwidthLimit(NamedTuple):
    """What a result is compared with, in GB/s: `good` and above is good, below `fault` is a fault.

    Attributes:
        why: where `good` comes from.
        why_fault: where `fault` comes from; "" for the same.
        of_a_node: it follows from what a node has, and is wide: equal nodes are closer together than that.
    """

    good: float
    fault: float
    why: str
    why_fault: str = ""
    of_a_node: bool = False


def choose(shape: ShapeLimits | None, operation: str, algorithm: str, nodes: int, gpus: int) -> BandwidthLimit | None:
    """The limit for a run; None where there is nothing to compare with, and `missing` gives the reason.

    Args:
        algorithm: "ring" where NCCL was forced to it, "default" where NCCL chose.
        gpus: on each node.
    """
    if shape is None:
        return None
    if nodes == 1:
        return _within_a_node(shape, operation, algorithm, gpus)
    return _between_nodes(shape, operation, algorithm, nodes) if gpus == shape.gpus else None


def of_names(names: Iterable[str], operation: str, gpus: int, *, switches: bool) -> BandwidthLimit | None:
    """The limit for GPUs of a node whose shape is not known, by the names that CUDA gives them.

    Args:
        switches: whether the output shows that NVSwitches join them. Where it does not, up to four GPUs may have
            direct links: a fault is then what less links would explain neither.
    """
    model = gpu_models.model(names)
    limit = _of_nvlink(gpu_models.nvlink(model), f"each {model.upper()}", operation)
    if limit is None or gpus < 2:  # noqa: PLR2004
        return None
    links = 1.0 if switches else min(1.0, (gpus - 1) / _OTHERS_WITHOUT_SWITCH)
    return limit._replace(fault=limit.fault * links)


def missing(shape: ShapeLimits | None, operation: str, nodes: int, gpus: int) -> str:
    """Why there is no limit, as text."""
    if shape is None:
        if nodes > 1:
            return "no shape is given, and the output does not show what the network carries: give --shape or --expect"
        return (
            f"no shape is given, and nothing is known of {operation} on the GPUs that the output names: "
            "give --shape or --expect"
        )
    where = f"{nodes} x {shape.name} with {gpus} GPUs each"
    if nodes == 1 and not shape.nvlink and shape.measured:
        return (
            f"no figure is published for {where}: no switch joins its GPUs, so the NVLink links between them depend on "
            "which they are; measure all, or give --expect"
        )
    if nodes == 1 and not shape.nvlink:
        return (
            f"no figure is published for {where}, and none follows from NVLink, which its GPUs are not known to have; "
            "give --expect"
        )
    return f"no figure is published for {where}; give --expect"


def _within_a_node(shape: ShapeLimits, operation: str, algorithm: str, gpus: int) -> BandwidthLimit | None:
    if not 1 < gpus <= shape.gpus:
        return None
    whole = gpus == shape.gpus
    nvlink = _of_nvlink(shape.nvlink, f"each GPU of {shape.name}", operation)
    # NCCL chooses what it holds for the fastest, so its own choice must reach what a ring reaches.
    published = shape.busbw.get((1, algorithm), shape.busbw.get((1, RING))) if whole else None
    if operation == collectives.ALL_REDUCE and published is not None:
        why = f"the published limit of 1 x {shape.name}"
        if nvlink is None or nvlink.good <= published:
            return BandwidthLimit(published, published, why)
        return nvlink if nvlink.fault > published else nvlink._replace(fault=published, why_fault=why)
    if nvlink is not None or not whole:
        return nvlink
    measured = shape.measured.get((1, algorithm))
    if operation == collectives.ALL_REDUCE and measured is not None:
        why = f"derived from the {measured:g} GB/s that others have measured on {shape.name}"
        return BandwidthLimit(SAME_SHARE * measured, FAULT_SHARE * measured, why, of_a_node=True)
    # Without the sums of the switches other operations are slower: reaching the limit of all_reduce is good.
    return (
        None
        if published is None
        else BandwidthLimit(published, 0.0, f"the published limit of all_reduce on {shape.name}")
    )


def _between_nodes(shape: ShapeLimits, operation: str, algorithm: str, nodes: int) -> BandwidthLimit | None:
    exact, ring = shape.busbw.get((_PAIR, algorithm)), shape.busbw.get((_PAIR, RING))
    # As above.
    published = exact if exact is not None and (nodes == _PAIR or algorithm == RING) else ring
    if operation == collectives.ALL_REDUCE and published is not None:
        return BandwidthLimit(published, published, f"the published limit of {nodes} x {shape.name}")
    if not shape.wire:
        return None
    most = collectives.bound(operation, shape.wire, nodes, shape.gpus)
    is_ring = collectives.COLLECTIVES[operation].ring
    share = RING_SHARE if is_ring else _OTHER_SHARE
    fault = FAULT_SHARE * most if is_ring else 0.0
    return BandwidthLimit(share * most, fault, f"{share:g} of the {most:.4g} GB/s that the wires of {shape.name} allow")


def _of_nvlink(nvlink: float, whose: str, operation: str) -> BandwidthLimit | None:
    """The limit of a ring over all links of each GPU, whatever the number of GPUs is."""
    if not nvlink or not collectives.COLLECTIVES[operation].ring:
        return None
    why = f"derived from the {nvlink:g} GB/s that the NVLink of {whose} carries"
    return BandwidthLimit(NVLINK_SHARE * nvlink, FAULT_SHARE * nvlink, why, of_a_node=True)
