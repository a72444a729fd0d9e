"""The measurements of a pool, as requests to `gpucluster-agent measure`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpucluster.controller.measure.request import NCCL, RDMA
from gpucluster.node_agent.nccl import limits
from gpucluster.shapes import Shape

# Rows of 1 and of 8 GiB: cards with little memory end with the first one. The larger one is judged.
_ARGUMENTS = ("-b", "1G", "-e", "8G", "-f", "8", "-c", "1")
# One device carries a sixteenth: the same number of bytes would take minutes.
_ARGUMENTS_OF_RAIL = ("-b", "1G", "-e", "1G", "-n", "5", "-c", "1")
#: Minutes: a container that must be imported first takes some, and a pair of slow nodes one.
_MINUTES = 10
_MINUTES_OF_MANY = 20
_MANY = 64
#: Seconds of ib_write_bw and rping for one device, at most.
_SECONDS_OF_DEVICE = 70


# Between the nodes of a pair; no name has a blank.
_BETWEEN = " and "


@dataclass(frozen=True)
class Tools:
    """What measures.

    Args:
        program: the path of all_reduce_perf; "" looks for it where the sample job builds it.
        image: a container image that has it; "" for none.
        mpi: the kind of MPI for srun; "" for Slurm's default.
    """

    program: str = ""
    image: str = ""
    mpi: str = ""


@dataclass(frozen=True)
class MeasuredPool:
    """A pool.

    Args:
        rdma: its nodes are in an RDMA network.
        emulated: its hardware is emulated, or that of this machine, of which nothing is published: nothing is measured.
        nodes: how many there are.
        resource: the name of its GPUs in Kubernetes, where a pod measures all those of a node; "" with Slurm.
        divided: GPUs of its nodes are divided (MIG).
        claimed: pods claim its GPUs of NVIDIA's DRA driver, and no node offers them as a resource.
    """

    name: str
    partition: str
    shape: Shape
    rdma: bool
    emulated: bool = False
    nodes: int = 2
    resource: str = ""
    divided: bool = False
    claimed: bool = False


def nccl(
    pool: MeasuredPool, tools: Tools, nodes: Sequence[str], algorithm: str, device: str = "", *, number: int
) -> dict[str, Any]:
    """all_reduce on all GPUs of these nodes.

    Args:
        algorithm: `ring`, or `default` for NCCL's own choice.
        device: the only RDMA device of each node; "" for all of them.
        number: unique in a call.
    """
    settings = {"NCCL_ALGO": "Ring"} if algorithm == limits.RING else {}
    # The leading `=` compares whole names.
    settings |= {"NCCL_IB_HCA": f"={device}"} if device else {}
    # With Slurm a process for each GPU, as jobs have it; in a pod, without MPI, one for all.
    each = pool.shape.gpus if pool.resource else 1
    return {
        "id": str(number), "kind": NCCL, "nodes": list(nodes), "partition": pool.partition,
        "minutes": _MINUTES_OF_MANY if len(nodes) > _MANY else _MINUTES,
        "gpus": pool.shape.gpus, "program": tools.program, "image": tools.image, "mpi": tools.mpi,
        "arguments": [*(_ARGUMENTS_OF_RAIL if device else _ARGUMENTS), "-g", str(each)], "settings": settings,
        "resource": pool.resource,
    }  # fmt: skip


def rdma(pool: MeasuredPool, nodes: Sequence[str], *, number: int) -> dict[str, Any]:
    """ib_write_bw between two nodes, one device after the other."""
    devices = list(pool.shape.rdma_devices)
    return {
        "id": str(number), "kind": RDMA, "nodes": list(nodes), "partition": pool.partition,
        "minutes": 2 + len(devices) * _SECONDS_OF_DEVICE // 60, "devices": devices,
    }  # fmt: skip


def pairs(nodes: Sequence[str]) -> list[tuple[str, str]]:
    """Each node in a pair with its neighbour. Of an odd number the last one is with the first, which is in two."""
    neighbours = [(nodes[at], nodes[at + 1]) for at in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2 and len(nodes) > 1:
        neighbours.append((nodes[0], nodes[-1]))
    return neighbours


def pair_name(pair: Sequence[str]) -> str:
    """The subject of a check of a pair."""
    return _BETWEEN.join(pair)


def nodes_of(subject: str) -> tuple[str, ...]:
    """The nodes that the subject of a check is about: both of a pair, else the one that it names."""
    return tuple(subject.split(_BETWEEN))
