"""The measurements of a pool, with planted faults: what is found, which nodes are blamed, and what stays unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpucluster import shapes
from gpucluster.fabric.model import FabricVerdict
from gpucluster.measuring import checks, plan, results
from gpucluster.measuring.plan import MeasuredPool, Tools
from gpucluster.measuring.results import JobAnswer
from gpucluster.measuring.survey import Survey
from gpucluster.node_agent.checks.model import Finding, Missing, Status, evaluate
from tests.fabric.simulator import Fault, Network
from tests.measuring.nccl_double import Session, output, write_bw

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


def test_only_idle_nodes_are_measured() -> None:
    session = Session(network(), states={"gpu-1": "allocated", "gpu-2": "idle~", "gpu-3": "idle*", "gpu-7": "drained"})
    findings = found(session)
    busy = {"gpu-1", "gpu-2", "gpu-3", "gpu-7"}
    assert not [job for job in session.jobs if busy & set(job["nodes"])]
    assert {subject for _, subject in bad(findings, Status.UNKNOWN)} == busy
    assert "allocated" in findings[("nccl_node", "gpu-1")].message


def test_wrong_results_are_a_fault_however_fast() -> None:
    wrong = output(470, ["gpu-5"], end="# Out of bounds values : 7 FAILED\n", network="Socket")
    findings = found(Session(network(), outcomes={"gpu-5": JobAnswer("ended", "", 1, wrong)}))
    assert bad(findings) == {("nccl_node", "gpu-5")}
    assert "results were wrong" in findings[("nccl_node", "gpu-5")].message


def test_a_pair_whose_network_was_not_measured_is_unknown() -> None:
    text = output(470, ["a", "b"]).replace("NCCL INFO Using network IB", "")
    assert isinstance(
        results.nccl(JobAnswer("ended", "", 0, text), results.expectation(H100.name, 2, 8, "default")), Missing
    )


def test_a_slow_device_between_two_nodes_is_named() -> None:
    findings = found(Session(network(), write={("gpu-3", "gpu-4"): {"mlx5_3": 91.4}}))
    assert bad(findings) == {("rdma_bandwidth", "gpu-3 and gpu-4")}
    assert "mlx5_3 91.4" in findings[("rdma_bandwidth", "gpu-3 and gpu-4")].message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpucluster: device mlx5_0\nCouldn't connect to gpu-3:18515\n",
        write_bw("mlx5_0", 90.0).replace("Gb/sec", "MiB/day"),
        write_bw("mlx5_0", 90.0).partition("MsgRate")[0],
        "gpucluster: no ib_write_bw on gpu-3\n",
    ],
    ids=["empty", "not connected", "another unit", "cut off", "no program"],
)
def test_a_device_without_a_result_is_unknown(text: str) -> None:
    answer = results.rdma(JobAnswer("ended", "", 0, text))
    assert evaluate(checks.WRITE_BANDWIDTH, "a and b", {checks.WRITE: answer}, POOL).status is Status.UNKNOWN
    one_of_many = results.rdma(JobAnswer("ended", "", 0, text + write_bw("mlx5_17", 196.0)))
    assert evaluate(checks.WRITE_BANDWIDTH, "a and b", {checks.WRITE: one_of_many}, POOL).status is Status.UNKNOWN


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.name)
def test_each_measurement_that_is_taken_away_makes_its_check_unknown(check: Any) -> None:
    verdict = results.nccl(
        JobAnswer("ended", "", 0, output(470, ["a", "b"])), results.expectation(H100.name, 2, 8, "default")
    )
    every: dict[str, Any] = {
        checks.DEFAULT: verdict,
        checks.RING: verdict,
        checks.SEARCH: FabricVerdict(),
        checks.WRITE: dict.fromkeys(H100.rdma_devices, 197.0),
        checks.PING: dict.fromkeys(H100.rdma_devices, True),
    }
    assert evaluate(check, "a", every, POOL).status is Status.PASS
    for need in check.needs:
        for absent in (None, Missing("it was not measured")):
            assert evaluate(check, "a", {**every, need: absent}, POOL).status is Status.UNKNOWN


def test_a_device_that_does_not_connect_is_named_and_one_without_an_answer_is_unknown() -> None:
    every = [write_bw(device, 197.0) for device in H100.rdma_devices]

    def status(changed: str) -> Finding:
        given = {checks.PING: results.ping(JobAnswer("ended", "", 0, "".join([*every[1:], changed])))}
        return evaluate(checks.CONNECTION, "a and b", given, POOL)

    assert status(every[0]).status is Status.PASS
    refused = status(
        every[0].replace("rping mlx5_0 0", "rping mlx5_0 1").replace("ping data: rdma-ping-2", "cma event")
    )
    assert (refused.status, refused.evidence) == (Status.FAIL, {"devices": ["mlx5_0"]})
    assert status(every[0].replace("rping mlx5_0 0", "rping mlx5_0 124")).status is Status.UNKNOWN
    assert status(every[0].partition("gpucluster: rping")[0]).status is Status.UNKNOWN
    assert "librdmacm-utils" in status("gpucluster: no rping on b").message


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
