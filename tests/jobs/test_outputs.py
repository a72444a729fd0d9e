"""Outputs of jobs: which run of them counts, what no output means, and the line with a cause."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.jobs import outputs, registry
from gpucluster.jobs.model import HEADER
from gpucluster.node_agent.checks.model import Status
from tests.jobs.templates.test_nccl_tests import job, judged, messages, rows
from tests.jobs.templates.test_pytorch_ddp import GOOD, epochs
from tests.node_agent.nccl.outputs import TUNED, output


def test_only_the_last_run_of_a_requeued_job_counts() -> None:
    of = job("mpi_allreduce")
    header = HEADER + json.dumps(of.to_dict())
    text = f"{header}\n{rows(0.1, end=False)}{header}\n{rows(0.2)}"
    assert judged(of, text).status is Status.PASS
    assert judged(of, text).values == {"busbw": 0.2}


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
