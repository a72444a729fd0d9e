"""What the output of an all-reduce means."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.checks.model import Status
from tests.jobs.templates.test_nccl_tests import job, judged, messages, rows


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
