"""The measurements of a pool, with planted faults: what is found, which nodes are blamed, and what stays unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpucluster import shapes
from gpucluster.measuring import checks, plan
from gpucluster.measuring.plan import MeasuredPool, Tools
from gpucluster.measuring.results import JobAnswer
from gpucluster.measuring.survey import Survey
from gpucluster.node_agent.checks.model import Finding, Missing, Status
from tests.fabric.simulator import Fault, Network
from tests.measuring.nccl_double import Session, output

NODES = tuple(f"gpu-{number}" for number in range(1, 10))
H100 = shapes.get("BM.GPU.H100.8")
POOL = MeasuredPool("gpu", "gpu", H100, rdma=True, nodes=len(NODES))


def network(*faults: Fault) -> Network:
    return Network((NODES,), faults, noise=0.0, rails=16)


def survey(session: Session, pool: MeasuredPool = POOL, nodes: tuple[str, ...] = NODES) -> Survey:
    made = Survey(
        pool, nodes, Tools(), session.nodes(), session.baseline(), lambda _what, jobs: dict(session.run(jobs))
    )
    made.measure()
    return made


def found(
    session: Session, pool: MeasuredPool = POOL, nodes: tuple[str, ...] = NODES
) -> dict[tuple[str, str], Finding]:
    findings = survey(session, pool, nodes).findings()
    by_name = {(each.check, each.subject): each for each in findings}
    assert len(by_name) == len(findings)
    return by_name


def bad(findings: Mapping[tuple[str, str], Finding], *statuses: Status) -> set[tuple[str, str]]:
    return {key for key, each in findings.items() if each.status in (statuses or (Status.FAIL,))}


def test_a_healthy_pool_passes_everything() -> None:
    findings = found(Session(network()))
    assert {each.status for each in findings.values()} == {Status.PASS}, [
        each for each in findings.values() if each.status is not Status.PASS
    ]
    assert {check.name for check in checks.CHECKS} == {name for name, _ in findings}
    assert ("nccl_pair", "gpu-1 and gpu-9") in findings, "the last of an odd number"


def test_a_slow_node_is_found_and_no_other_is_blamed() -> None:
    findings = found(Session(network(Fault("node", ("gpu-4",), 0.5))))
    assert bad(findings) == {("fabric_node", "gpu-4"), ("nccl_pair", "gpu-3 and gpu-4")}
    assert findings[("nccl_pool", "gpu")].message.endswith("without gpu-4")


def test_a_slow_rail_is_named_and_drains_no_node() -> None:
    session = Session(network(Fault("rail", ("gpu-4", "9"), 0.5)))
    findings = found(session)
    assert bad(findings) == {("fabric_rail", "gpu-4"), ("nccl_pair", "gpu-3 and gpu-4")}
    assert findings[("fabric_rail", "gpu-4")].evidence == {"devices": [H100.rdma_devices[9]]}
    assert {job["settings"].get("NCCL_IB_HCA") for job in session.jobs if job["kind"] == "nccl"} >= {"=mlx5_10"}


def test_a_slow_pair_accuses_neither_of_the_two() -> None:
    findings = found(Session(network(Fault("pair", ("gpu-2", "gpu-6"), 0.5))))
    assert bad(findings) == {("fabric_links", "gpu"), ("nccl_pool", "gpu")}
    assert "gpu-2 and gpu-6 are slow together" in findings[("fabric_links", "gpu")].message


def test_a_node_that_is_slow_in_itself_is_left_out_of_the_network() -> None:
    session = Session(network(), alone={"gpu-5": 300.0})
    findings = found(session)
    assert bad(findings) == {("nccl_node", "gpu-5")}
    assert findings[("fabric_node", "gpu-5")].status is Status.UNKNOWN
    assert not [job for job in session.jobs if "gpu-5" in job["nodes"] and len(job["nodes"]) > 1]


@pytest.mark.parametrize(
    "answer",
    [
        JobAnswer("not_started", "it did not start within 120 s: Resources", 1, ""),
        JobAnswer("lost", "a node failed in the middle", 1, ""),
        JobAnswer("too_long", "it did not end within 10 minutes", 1, output(100, ["gpu-5"])),
        JobAnswer("too_much", "it printed more than 33554432 bytes", 1, output(100, ["gpu-5"])),
        JobAnswer("ended", "", 127, "gpucluster: no all_reduce_perf\n"),
        JobAnswer("ended", "", 0, output(470, ["gpu-5"], end="")),
        JobAnswer("ended", "", 3, output(470, ["gpu-5"])),
        JobAnswer("ended", "", 0, output(470, ["gpu-5"], gpus=4)),
        JobAnswer("ended", "", 0, ""),
    ],
    ids=["starved", "died", "hangs", "endless", "no program", "cut off", "status", "ranks are missing", "empty"],
)
def test_what_can_not_be_measured_is_unknown_and_accused_of_nothing(answer: JobAnswer) -> None:
    findings = found(Session(network(), outcomes={"gpu-5": answer}))
    assert bad(findings) == set()
    unknown = {("nccl_node", "gpu-5"), ("fabric_node", "gpu-5"), ("fabric_rail", "gpu-5")}
    assert bad(findings, Status.UNKNOWN) == unknown
    assert findings[("nccl_node", "gpu-5")].message


def test_a_node_that_dies_in_the_middle_of_the_search_is_unknown() -> None:
    class Dying(Session):
        def _answer(self, job: Mapping[str, Any]) -> JobAnswer:
            if "gpu-5" in job["nodes"] and len(job["nodes"]) > 3:
                return JobAnswer("lost", "a node failed in the middle", 1, "")
            return super()._answer(job)

    findings = found(Dying(network()))
    assert bad(findings) == set()
    assert bad(findings, Status.UNKNOWN) == {("fabric_links", "gpu"), ("nccl_pool", "gpu")}
    assert findings[("nccl_pool", "gpu")].message == "a node failed in the middle; a node failed in the middle"


def test_wrong_results_are_a_fault_however_fast() -> None:
    wrong = output(470, ["gpu-5"], end="# Out of bounds values : 7 FAILED\n", network="Socket")
    findings = found(Session(network(), outcomes={"gpu-5": JobAnswer("ended", "", 1, wrong)}))
    assert bad(findings) == {("nccl_node", "gpu-5")}
    assert "results were wrong" in findings[("nccl_node", "gpu-5")].message


def test_a_slow_device_between_two_nodes_is_named() -> None:
    findings = found(Session(network(), write={("gpu-3", "gpu-4"): {"mlx5_3": 91.4}}))
    assert bad(findings) == {("rdma_bandwidth", "gpu-3 and gpu-4")}
    assert "mlx5_3 91.4" in findings[("rdma_bandwidth", "gpu-3 and gpu-4")].message


def test_jobs_of_one_call_have_ids_of_their_own_and_pairs_share_no_node() -> None:
    session = Session(network())
    calls: list[list[str]] = []

    def run(_what: str, jobs: Any) -> Mapping[str, JobAnswer | Missing]:
        calls.append([job["id"] for job in jobs])
        return session.run(jobs)

    Survey(POOL, NODES, Tools(), session.nodes(), {}, run).measure()
    assert all(len(set(call)) == len(call) for call in calls)
    even = plan.pairs(NODES[:8])
    assert sorted(node for pair in even for node in pair) == sorted(NODES[:8])


CRASHED = output(470, ["gpu-5"]).partition("# Out of bounds")[0] + (
    "gpu-5:1800:1900 [3] transport/nvls.cc:287 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory\n"
    "gpu-5: Test NCCL failure common.cu:1000 'unhandled cuda error'\n"
)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (JobAnswer("ended", "", 3, CRASHED), "NCCL on gpu-5, GPU 3: Failed to bind NVLink SHARP"),
        (
            JobAnswer("too_long", "it did not end within 30 minutes", 0, "# nThread 1 nGpus 1\n"),
            "NCCL hung: it did not end",
        ),
    ],
    ids=["crashed", "hung"],
)
def test_a_node_on_which_nccl_does_not_work_is_accused_and_left_out(answer: JobAnswer, said: str) -> None:
    findings = found(Session(network(), outcomes={"gpu-5": answer}))
    assert bad(findings) == {("nccl_node", "gpu-5")}
    assert said in findings[("nccl_node", "gpu-5")].message
    assert findings[("nccl_pool", POOL.name)].status is Status.PASS


def test_where_nccl_works_on_no_node_it_may_be_the_software() -> None:
    findings = found(Session(network(), outcomes=dict.fromkeys(NODES, JobAnswer("ended", "", 3, CRASHED))))
    assert bad(findings) == set()
    assert "no other node shows that NCCL works" in findings[("nccl_node", "gpu-5")].message
