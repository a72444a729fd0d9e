"""Which measurements may run at the same time. The jobs themselves: tests/operations/test_measuring_slurm.py."""

from __future__ import annotations

from typing import Any

from gpucluster.controller.measure import request
from gpucluster.controller.measure.result import startable
from tests.controller.measure.requests import NCCL

RDMA: dict[str, Any] = {
    "id": "2", "kind": "rdma", "nodes": ["gpu-1", "gpu-2"], "partition": "gpu", "minutes": 3, "devices": ["mlx5_0"],
}  # fmt: skip


def test_jobs_that_share_no_node_run_together_and_none_is_overtaken_for_ever() -> None:
    wanted = [request.read({**NCCL, "id": str(n), "nodes": nodes}) for n, nodes in enumerate(
        (["a", "b"], ["b", "c"], ["c", "d"], ["e", "f"])
    )]  # fmt: skip
    assert [each.id for each in startable(wanted, [], 64)] == ["0", "3"]
