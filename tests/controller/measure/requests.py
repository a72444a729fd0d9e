"""Requests for measurements."""

from __future__ import annotations

import json
import os
from typing import Any

from gpucluster.controller.conversation import RequestChannel

NCCL: dict[str, Any] = {
    "id": "1", "kind": "nccl", "nodes": ["gpu-1", "gpu-2"], "partition": "gpu", "minutes": 10, "gpus": 8,
    "program": "/mnt/home/tools/all_reduce_perf", "image": "/mnt/home/x.sqsh", "mpi": "pmix",
    "arguments": ["-b", "1G"], "settings": {"NCCL_IB_HCA": "=mlx5_0"},
}  # fmt: skip


def talk(*lines: Any) -> tuple[RequestChannel, int]:
    """A conversation whose other end has said this, and is gone; and the descriptor with the answers."""
    here, there = os.pipe()
    os.write(there, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    os.close(there)
    answers, target = os.pipe()
    return RequestChannel(here, target), answers
