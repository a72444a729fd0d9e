"""What outputs mean: a good one passes, each kind of bad one does not, and what is missing is never good."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster import shapes
from gpucluster.jobs import choose, outputs, registry
from gpucluster.jobs.model import HEADER, Job, JobResult
from gpucluster.node_agent.checks.model import Status
from tests.node_agent.nccl.outputs import ALONE, MISTUNED, TUNED, output


def job(name: str, shape: str = "", nodes: int = 2, settings: dict[str, str] | None = None) -> Job:
    template = registry.template(name)
    by = registry.launcher(template)
    return choose.describe(template, by, settings or {}, nodes=nodes, shape=shapes.get(shape) if shape else None)


def judged(of: Job, text: str) -> JobResult:
    return of.template.judge(text, of)


def messages(result: JobResult) -> str:
    return "; ".join(finding.message for finding in result.findings)


# --- nccl_tests -----


@pytest.mark.parametrize(
    ("rows", "ranks", "nodes", "status", "said"),
    [
        (TUNED, 16, 2, Status.PASS, "reaches 185"),
        (ALONE, 8, 1, Status.PASS, "reaches 225"),
        (MISTUNED, 16, 2, Status.FAIL, "below 185"),
        (TUNED, 1, 2, Status.FAIL, "1 ranks name their GPU"),
        ("", 16, 2, Status.UNKNOWN, "no row"),
    ],
)
def test_nccl_is_judged_by_the_limits_of_the_shape(
    rows: str, ranks: int, nodes: int, status: Status, said: str
) -> None:
    text = f"{HEADER}{{}}\n" + "".join(output(rows, ranks=ranks))
    result = judged(job("nccl_tests", "BM.GPU4.8", nodes), text)
    assert result.status is status
    assert said in messages(result)


def test_nccl_gives_values_and_steps_in_their_units() -> None:
    result = judged(job("nccl_tests", "BM.GPU4.8"), "".join(output(TUNED)))
    assert result.values == {"busbw": pytest.approx(224.72)}
    assert result.units["busbw"] == "GB/s"
    assert result.steps == ({"bytes": 10737418240.0, "busbw": 224.57},)
    assert json.loads(json.dumps(result.to_dict()))["status"] == "pass"


def test_an_expectation_of_your_own_replaces_that_of_the_shape() -> None:
    text = "".join(output(TUNED))
    assert judged(job("nccl_tests", "BM.GPU4.8", settings={"expect": "230"}), text).status is Status.FAIL
    assert judged(job("nccl_tests", "BM.GPU4.8", settings={"expect": "200"}), text).status is Status.PASS


def test_the_expectation_has_the_figures_of_the_seeds_and_of_the_shape() -> None:
    pair = job("nccl_tests", "BM.GPU4.8")
    figures = {(each.bound, each.value, each.source) for each in pair.template.expectation(pair)}
    assert {("at least", 185, "shapes.toml"), ("about", 224.7, "seed 002"), ("about", 71.56, "seed 000")} <= figures
    anywhere = job("nccl_tests")
    assert 2.81 in {each.value for each in anywhere.template.expectation(anywhere)}


# --- mpi_allreduce -----


def rows(*busbw: float, wrong: int = 0, ranks: int = 2, hosts: int = 2, end: bool = True) -> str:
    lines = [
        {"bytes": 8 << number, "seconds": 1e-5, "algbw": each, "busbw": each, "wrong": wrong}
        for number, each in enumerate(busbw)
    ]
    last = [{"ranks": ranks, "wanted": 2, "hosts": hosts, "wrong": wrong}] if end else []
    return "".join(json.dumps(line) + "\n" for line in [*lines, *last])


@pytest.mark.parametrize(
    ("text", "settings", "status", "said"),
    [
        (rows(0.1, 1.5), {}, Status.PASS, "2 ranks on 2 nodes found each other"),
        (rows(0.1, 1.5), {"expect": "1"}, Status.PASS, "reaches 1"),
        (rows(0.1, 1.5), {"expect": "2"}, Status.FAIL, "is below 2"),
        (rows(0.1, wrong=3), {}, Status.FAIL, "3 sums were wrong"),
        (rows(0.1, hosts=1), {}, Status.FAIL, "on 1 node, and not on 2"),
        ('{"ranks": 1, "wanted": 2, "hosts": 1}\n', {}, Status.FAIL, "1 rank took part, and not 2"),
        ('{"ranks": 1, "wanted": 2, "hosts": 1}\n' * 2, {}, Status.FAIL, "did not find each other"),
        (rows(0.1, end=False), {}, Status.UNKNOWN, "cut off"),
        (rows(), {}, Status.UNKNOWN, "nothing was measured"),
        ("", {}, Status.UNKNOWN, "cut off"),
        ("srun: error: node failure\n", {}, Status.UNKNOWN, "cut off"),
    ],
)
def test_an_all_reduce_is_judged(text: str, settings: dict[str, str], status: Status, said: str) -> None:
    result = judged(job("mpi_allreduce", settings=settings), text)
    assert result.status is status
    assert said in messages(result)


def test_only_the_last_run_of_a_requeued_job_counts() -> None:
    of = job("mpi_allreduce")
    header = HEADER + json.dumps(of.to_dict())
    text = f"{header}\n{rows(0.1, end=False)}{header}\n{rows(0.2)}"
    assert judged(of, text).status is Status.PASS
    assert judged(of, text).values == {"busbw": 0.2}


# --- pytorch_ddp -----


def epochs(*accuracy: float, ranks: int = 2, first: int = 1, loss: float = 2.0) -> str:
    return "".join(
        json.dumps(
            {"epoch": number, "loss": loss / number, "accuracy": each, "seconds": 4.4, "images_per_second": 11000.0,
             "ranks": ranks}
        ) + "\n"
        for number, each in enumerate(accuracy, start=first)
    )  # fmt: skip


GOOD = [0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.78, 0.8046]


@pytest.mark.parametrize(
    ("text", "settings", "status", "said"),
    [
        (epochs(*GOOD), {}, Status.PASS, "accuracy 0.8046 after 10 epochs reaches 0.8"),
        (epochs(*GOOD[:-1], 0.79), {}, Status.FAIL, "is below 0.8"),
        (epochs(*GOOD), {"expect": "0.85"}, Status.FAIL, "is below 0.85"),
        (epochs(*GOOD, ranks=1), {}, Status.FAIL, "1 took part, and not 2"),
        (epochs(*GOOD[:5]), {}, Status.UNKNOWN, "ends after 5 of 10 epochs"),
        ("", {}, Status.UNKNOWN, "no epoch was finished"),
        ('{"epoch": 1, "loss": NaN}\n', {}, Status.UNKNOWN, "no epoch was finished"),
        (epochs(0.2, 0.5), {"epochs": "2", "synthetic": "10"}, Status.PASS, "only the loss is judged"),
        (epochs(0.2, 0.5), {"epochs": "2"}, Status.PASS, "fewer epochs than 10"),
        (epochs(*GOOD), {"batch": "2048"}, Status.PASS, "set a smaller batch"),
    ],
)
def test_a_training_is_judged(text: str, settings: dict[str, str], status: Status, said: str) -> None:
    result = judged(job("pytorch_ddp", settings=settings), text)
    assert result.status is status
    assert said in messages(result)


def test_a_loss_that_does_not_fall_is_bad() -> None:
    text = epochs(0.1, loss=1.0) + epochs(0.1, first=2, loss=4.0)
    assert judged(job("pytorch_ddp", settings={"epochs": "2", "synthetic": "10"}), text).status is Status.FAIL


def test_a_requeued_training_has_all_its_epochs() -> None:
    of = job("pytorch_ddp")
    header = HEADER + json.dumps(of.to_dict())
    text = f"{header}\n{epochs(*GOOD[:4])}{header}\n{epochs(*GOOD[4:], first=5)}"
    result = judged(of, text)
    assert result.status is Status.PASS
    assert [step["epoch"] for step in result.steps] == list(range(1, 11))


# --- all -----


@given(
    st.text() | st.lists(st.sampled_from([rows(0.1), epochs(*GOOD), *output(TUNED), "{", "[]", HEADER])).map("".join)
)
def test_no_output_makes_a_judge_fail(text: str) -> None:
    for template in registry.templates():
        result = judged(job(template.name, "BM.GPU4.8"), text)
        assert result.findings
        json.dumps(result.to_dict())


@given(st.text())
def test_nothing_is_a_pass_of_nothing(text: str) -> None:
    for template in registry.templates():
        assert judged(job(template.name, "BM.GPU4.8"), text).status is not Status.PASS


@pytest.mark.parametrize("text", ["", "x\n", HEADER, f"{HEADER}{{", f"{HEADER}[1]\n", f"a {HEADER}{{}}"])
def test_a_text_without_a_header_has_none(text: str) -> None:
    assert outputs.header(text) is None


CAUSES = [
    "slurmstepd: error: pyxis:     [ERROR] URL https://nvcr.io/v2/nvidia/x returned error code: 401 Unauthorized",
    "/opt/app: error while loading shared libraries: libmpi.so.40: cannot open shared object file",
    "slurmstepd: error: execve(): /opt/app: No such file or directory",
    "ModuleNotFoundError: No module named 'torchvision'",
    "[rank3]:[E1] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
    "node-1:12:34 [0] misc/ibvwrap.cc:160 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
]


@pytest.mark.parametrize("line", CAUSES)
@pytest.mark.parametrize("name", [template.name for template in registry.templates()])
def test_what_could_not_be_measured_has_the_line_with_the_cause(name: str, line: str) -> None:
    result = outputs.judged(job(name, "BM.GPU4.8"), f"starting\n{line}\nsrun: error: node-1: task 0: Exited\n")
    assert result.status is Status.UNKNOWN
    words = outputs.cause(line).removeprefix("NCCL WARN ").partition(" (")[0]
    assert words
    assert sum(words in finding.message for finding in result.findings) == 1, result.findings


def test_what_was_measured_is_not_explained_by_a_warning_beside_it() -> None:
    for settings, status in (({"expect": "1"}, Status.PASS), ({"expect": "2"}, Status.FAIL)):
        measured = outputs.judged(job("mpi_allreduce", settings=settings), f"NCCL WARN something\n{rows(0.1, 1.5)}")
        assert measured.status is status
        assert "something" not in messages(measured)
