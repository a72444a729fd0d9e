"""A measurement as the operator's machine asks for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpucluster.node_agent.errors import Refused

NCCL = "nccl"
RDMA = "rdma"
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_WORD = re.compile(r"[A-Za-z0-9_.:=,/@#+^-]{0,1024}")
_MOST_MINUTES = 240


class Request(NamedTuple):
    """One measurement, which becomes one job.

    Attributes:
        id: unique among those of one call; the answer has it.
        kind: `nccl` (all_reduce_perf of nccl-tests on all nodes) or `rdma` (ib_write_bw between two nodes).
        partition: of Slurm.
        minutes: the time limit of the job.
        gpus: of each node: one rank for each (`nccl`).
        program: the path of all_reduce_perf; "" where it is looked for.
        image: of the container that has the program; "" for none.
        mpi: the kind of MPI for srun; "" for Slurm's default.
        arguments: of the program.
        settings: environment variables for NCCL.
        devices: RDMA devices, the same on both nodes (`rdma`).
        resource: the name of GPUs in Kubernetes.
    """

    id: str
    kind: str
    nodes: tuple[str, ...]
    partition: str
    minutes: int
    gpus: int = 0
    program: str = ""
    image: str = ""
    mpi: str = ""
    arguments: tuple[str, ...] = ()
    settings: Mapping[str, str] = {}
    devices: tuple[str, ...] = ()
    resource: str = ""


def read(fields: Any) -> Request:
    """The request of a JSON object.

    Raises:
        Refused: it is not the request of a measurement.
    """
    try:
        request = Request(
            id=_word(fields["id"]), kind=_word(fields["kind"]),
            nodes=_words(fields["nodes"]), partition=_word(fields["partition"]), minutes=_number(fields["minutes"]),
            gpus=_number(fields.get("gpus", 0)), program=_word(fields.get("program", "")),
            image=_word(fields.get("image", "")), mpi=_word(fields.get("mpi", "")),
            arguments=_words(fields.get("arguments", [])), devices=_words(fields.get("devices", [])),
            resource=_word(fields.get("resource", "")),
            settings={_word(name): _word(value) for name, value in fields.get("settings", {}).items()},
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"not a measurement: {type(error).__name__}: {str(error)[:200]}") from None
    good = {
        "kind": request.kind in (NCCL, RDMA),
        "nodes": bool(request.nodes) and len(set(request.nodes)) == len(request.nodes),
        "name of a node": all(_NODE.fullmatch(node) for node in request.nodes),
        "minutes": 0 < request.minutes <= _MOST_MINUTES,
        "gpus": request.kind != NCCL or request.gpus > 0,
        "two nodes and devices": request.kind != RDMA or (len(request.nodes) == 2 and bool(request.devices)),  # noqa: PLR2004
    }
    for what, holds in good.items():
        if not holds:
            raise Refused(f"not a measurement: {what}")
    return request


def _word(value: Any) -> str:
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise ValueError(repr(value)[:100])
    return value


def _words(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(repr(values)[:100])
    return tuple(_word(value) for value in values)


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(repr(value)[:100])
    return value
