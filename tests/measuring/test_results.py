"""Results of measurements: what is compared with what, and what no result means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster import shapes
from gpucluster.measuring import results
from gpucluster.measuring.plan import MeasuredPool
from gpucluster.measuring.results import JobAnswer
from gpucluster.node_agent.checks.model import Missing, Status
from tests.measuring.nccl_double import Session, output
from tests.measuring.test_survey import H100, NODES, bad, found, network, survey


def test_a_pair_whose_network_was_not_measured_is_unknown() -> None:
    text = output(470, ["a", "b"]).replace("NCCL INFO Using network IB", "")
    assert isinstance(
        results.nccl(JobAnswer("ended", "", 0, text), results.expectation(H100.name, 2, 8, "default")), Missing
    )


# --- without a published figure -----

UNPUBLISHED = MeasuredPool("gpu", "gpu", shapes.get("BM.GPU.L40S.4"), rdma=False, nodes=9)


class Small(Session):
    """Nodes with four GPUs."""

    def _answer(self, job: Mapping[str, Any]) -> JobAnswer:
        busbw = self.alone.get(job["nodes"][0], 20.0)
        return JobAnswer("ended", "", 0, output(busbw, job["nodes"], gpus=4, network="Socket"))


def test_the_others_of_the_pool_are_the_measure_where_nothing_is_published() -> None:
    findings = found(Small(network(), alone={"gpu-2": 18.0, "gpu-3": 19.2}), UNPUBLISHED)
    assert bad(findings) == {("nccl_node", "gpu-2")}
    assert "90% of what the others" in findings[("nccl_node", "gpu-2")].message
    assert findings[("nccl_node", "gpu-3")].status is Status.PASS
    assert {findings[key].status for key in findings if key[0] != "nccl_node"} == {Status.SKIP}


def test_of_two_nodes_only_a_baseline_shows_which_one_is_slow() -> None:
    two = NODES[:2]
    session = Small(network(), alone={"gpu-2": 12.0})
    findings = found(session, UNPUBLISHED, two)
    assert bad(findings, Status.UNKNOWN) == {("nccl_node", "gpu-1"), ("nccl_node", "gpu-2")}
    assert "--record-baseline" in findings[("nccl_node", "gpu-1")].message
    session.record(survey(Small(network()), UNPUBLISHED, two).entries("2026-11-22"))
    assert session.before == {"BM.GPU.L40S.4/1/default": {"busbw": 20.0, "recorded": "2026-11-22", "results": 2}}
    assert bad(found(session, UNPUBLISHED, two)) == {("nccl_node", "gpu-2")}


def test_a_node_above_the_limit_and_below_the_others_is_a_warning() -> None:
    findings = found(Session(network(), alone={"gpu-2": 441.0}))
    assert (bad(findings), bad(findings, Status.WARN)) == (set(), {("nccl_node", "gpu-2")})


def test_a_node_above_a_limit_that_only_its_nvlink_gives_and_below_the_others_is_bad() -> None:
    """Nothing that nodes share is between its GPUs, and the limit is wide: 704 GB/s, where all others have 880."""

    class Grace(Small):
        def _answer(self, job: Mapping[str, Any]) -> JobAnswer:
            busbw = self.alone.get(job["nodes"][0], 880.0)
            return JobAnswer("ended", "", 0, output(busbw, job["nodes"], gpus=4, network="Socket"))

    pool = MeasuredPool("gpu", "gpu", shapes.get("BM.GPU.GB200.4"), rdma=False, nodes=9)
    findings = found(Grace(network(), alone={"gpu-2": 704.0}), pool)
    assert bad(findings) == {("nccl_node", "gpu-2")}
    assert "80% of what the others" in findings[("nccl_node", "gpu-2")].message
