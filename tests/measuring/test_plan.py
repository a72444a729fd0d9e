"""Which measurements a pool needs, and which it does not."""

from __future__ import annotations

import pytest

from gpucluster import shapes
from gpucluster.measuring.plan import MeasuredPool
from gpucluster.node_agent.checks.model import Status
from tests.measuring.nccl_double import Session
from tests.measuring.test_survey import H100, NODES, bad, found, network


def test_only_idle_nodes_are_measured() -> None:
    session = Session(network(), states={"gpu-1": "allocated", "gpu-2": "idle~", "gpu-3": "idle*", "gpu-7": "drained"})
    findings = found(session)
    busy = {"gpu-1", "gpu-2", "gpu-3", "gpu-7"}
    assert not [job for job in session.jobs if busy & set(job["nodes"])]
    assert {subject for _, subject in bad(findings, Status.UNKNOWN)} == busy
    assert "allocated" in findings[("nccl_node", "gpu-1")].message


@pytest.mark.parametrize(
    ("pool", "measured"),
    [
        (MeasuredPool("cpu", "cpu", shapes.get("VM.Standard.E5.Flex"), rdma=False), set()),
        (MeasuredPool("gpu", "gpu", H100, rdma=True, emulated=True), set()),
        (MeasuredPool("gpu", "gpu", H100, rdma=True, nodes=1), {"nccl_node"}),
        (MeasuredPool("hpc", "hpc", shapes.get("BM.Optimized3.36"), rdma=True), {"rdma_bandwidth", "rdma_connection"}),
    ],
    ids=["no GPUs", "emulated", "one node", "RDMA without GPUs"],
)
def test_what_a_pool_does_not_have_is_skipped(pool: MeasuredPool, measured: set[str]) -> None:
    session = Session(network())
    findings = found(session, pool, NODES[: pool.nodes])
    assert {name for (name, _), each in findings.items() if each.status is not Status.SKIP} == measured
    assert bool(session.jobs) is bool(measured)
