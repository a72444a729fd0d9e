"""NCCL is not measured where GPUs are divided (MIG) or claimed, and the report gives the reason."""

from __future__ import annotations

import pytest

from gpucluster import shapes
from gpucluster.measuring import checks
from gpucluster.measuring.plan import MeasuredPool
from gpucluster.node_agent.checks.model import Check


@pytest.mark.parametrize("check", [checks.NODE, checks.PAIR, checks.POOL, checks.FABRIC_NODE], ids=lambda one: one.name)
@pytest.mark.parametrize("divided", [True, False])
def test_a_pool_with_instances_is_skipped_with_the_reason(check: Check[MeasuredPool], divided: bool) -> None:
    pool = MeasuredPool("small", "small", shapes.get("BM.GPU.H100.8"), rdma=True, divided=divided)
    assert check.applies(pool, "small-1") == (
        "GPUs of the pool small are divided (MIG), and instances have no NVLink" if divided else ""
    )


@pytest.mark.parametrize("check", [checks.NODE, checks.PAIR, checks.POOL, checks.FABRIC_NODE], ids=lambda one: one.name)
def test_gpus_that_pods_claim_are_measured_by_a_job(check: Check[MeasuredPool]) -> None:
    h100 = shapes.get("BM.GPU.H100.8")
    pool = MeasuredPool("gpu", "gpu", h100, rdma=True, resource="nvidia.com/gpu", claimed=True)
    assert check.applies(pool, "gpu-1") == checks.CLAIMED
