"""What nccl-tests must reach on each shape. Generated from `gpucluster/shapes.toml`, which has the sources.

`UPDATE_GOLDEN=1 pytest tests/golden` writes it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Shape(NamedTuple):
    """A shape with GPUs.

    Attributes:
        gpus: on each node.
        wire: what all RDMA devices of a node carry in one direction, in GB/s; 0 without such devices.
        nvlink: what the NVLink links of a GPU carry in one direction, in GB/s, where switches join all GPUs of a node;
            else 0.
        busbw: lower limits of all_reduce in GB/s, by number of nodes (2 is a pair) and algorithm.
        settings: what NCCL needs between nodes, beyond what all RDMA shapes need.
    """

    name: str
    gpus: int
    wire: float
    nvlink: float
    busbw: Mapping[tuple[int, str], int]
    settings: Mapping[str, str]


SHAPES: Mapping[str, Shape] = {
    "BM.GPU3.8": Shape(
        "BM.GPU3.8",
        8,
        0.0,
        0.0,
        {},
        {},
    ),
    "BM.GPU4.8": Shape(
        "BM.GPU4.8",
        8,
        200.0,
        300.0,
        {(1, "ring"): 185, (2, "ring"): 185},
        {"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_GID_INDEX": "3"},
    ),
    "BM.GPU.B4.8": Shape(
        "BM.GPU.B4.8",
        8,
        200.0,
        300.0,
        {(1, "ring"): 185, (2, "ring"): 185},
        {"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_GID_INDEX": "3"},
    ),
    "BM.GPU.GM4.8": Shape(
        "BM.GPU.GM4.8",
        8,
        200.0,
        300.0,
        {(1, "ring"): 185, (2, "ring"): 185},
        {"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_GID_INDEX": "3"},
    ),
    "BM.GPU.A100-v2.8": Shape(
        "BM.GPU.A100-v2.8",
        8,
        200.0,
        300.0,
        {(1, "ring"): 185, (2, "ring"): 185},
        {"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_GID_INDEX": "3"},
    ),
    "BM.GPU.H100.8": Shape(
        "BM.GPU.H100.8",
        8,
        400.0,
        450.0,
        {(1, "default"): 440, (2, "default"): 440},
        {"NCCL_IB_QPS_PER_CONNECTION": "1", "NCCL_IB_GID_INDEX": "3"},
    ),
    "BM.GPU.H200.8": Shape(
        "BM.GPU.H200.8",
        8,
        400.0,
        450.0,
        {(1, "default"): 440, (2, "default"): 440},
        {"NCCL_IB_QPS_PER_CONNECTION": "1", "NCCL_IB_GID_INDEX": "3"},
    ),
    "BM.GPU.B200.8": Shape(
        "BM.GPU.B200.8",
        8,
        400.0,
        900.0,
        {(1, "default"): 440, (2, "default"): 440},
        {"NCCL_IB_QPS_PER_CONNECTION": "1", "NCCL_IB_GID_INDEX": "3"},
    ),
    "BM.GPU.B300.8": Shape(
        "BM.GPU.B300.8",
        8,
        800.0,
        900.0,
        {(1, "default"): 800, (2, "default"): 700},
        {"NCCL_IB_QPS_PER_CONNECTION": "1", "NCCL_IB_GID_INDEX": "3"},
    ),
    "BM.GPU.GB200.4": Shape(
        "BM.GPU.GB200.4",
        4,
        200.0,
        0.0,
        {},
        {"NCCL_IB_GID_INDEX": "3"},
    ),
    "BM.GPU.GB200-v2.4": Shape(
        "BM.GPU.GB200-v2.4",
        4,
        200.0,
        0.0,
        {},
        {"NCCL_IB_GID_INDEX": "3"},
    ),
    "BM.GPU.GB200-v3.4": Shape(
        "BM.GPU.GB200-v3.4",
        4,
        400.0,
        0.0,
        {(2, "default"): 300},
        {"NCCL_IB_GID_INDEX": "3"},
    ),
    "BM.GPU.GB300.4": Shape(
        "BM.GPU.GB300.4",
        4,
        400.0,
        0.0,
        {(2, "default"): 440},
        {"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_GID_INDEX": "3"},
    ),
    "BM.GPU.L40S.4": Shape(
        "BM.GPU.L40S.4",
        4,
        0.0,
        0.0,
        {},
        {},
    ),
    "BM.GPU.L40S-NC.4": Shape(
        "BM.GPU.L40S-NC.4",
        4,
        0.0,
        0.0,
        {},
        {},
    ),
    "BM.GPU.A10.4": Shape(
        "BM.GPU.A10.4",
        4,
        0.0,
        0.0,
        {},
        {},
    ),
    "BM.GPU.RTXPRO.8": Shape(
        "BM.GPU.RTXPRO.8",
        8,
        400.0,
        0.0,
        {},
        {"NCCL_IB_QPS_PER_CONNECTION": "1", "NCCL_IB_GID_INDEX": "3"},
    ),
    "VM.GPU.A10.1": Shape(
        "VM.GPU.A10.1",
        1,
        0.0,
        0.0,
        {},
        {},
    ),
    "VM.GPU.A10.2": Shape(
        "VM.GPU.A10.2",
        2,
        0.0,
        0.0,
        {},
        {},
    ),
    "BM.GPU.MI300X.8": Shape(
        "BM.GPU.MI300X.8",
        8,
        400.0,
        0.0,
        {(1, "default"): 310, (2, "default"): 350},
        {"NCCL_IB_QPS_PER_CONNECTION": "1", "NCCL_IB_GID_INDEX": "3"},
    ),
    "BM.GPU.MI355X.8": Shape(
        "BM.GPU.MI355X.8",
        8,
        400.0,
        0.0,
        {(1, "default"): 310, (2, "default"): 350},
        {"NCCL_IB_QPS_PER_CONNECTION": "1", "NCCL_IB_GID_INDEX": "1"},
    ),
    "BM.GPU.MI355X-v1.8": Shape(
        "BM.GPU.MI355X-v1.8",
        8,
        400.0,
        0.0,
        {(1, "default"): 310, (2, "default"): 350},
        {"NCCL_IB_QPS_PER_CONNECTION": "1", "NCCL_IB_GID_INDEX": "3"},
    ),
}
