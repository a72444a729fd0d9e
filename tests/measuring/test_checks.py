"""What the results of measurements mean: what is missing makes a check unknown."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.fabric.model import FabricVerdict
from gpucluster.measuring import checks, results
from gpucluster.measuring.results import JobAnswer
from gpucluster.node_agent.checks.model import Finding, Missing, Status, evaluate
from tests.measuring.nccl_double import output, write_bw
from tests.measuring.test_survey import H100, POOL


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
