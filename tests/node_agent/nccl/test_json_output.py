"""Timings of each process in the JSON output of nccl-tests."""

from __future__ import annotations

import json

import pytest

from gpucluster.node_agent.nccl import json_output
from gpucluster.node_agent.nccl.judge import ExpectedRun, NcclVerdict, judge
from tests.node_agent.nccl.logs import H100


def timed(times: list[list[float]]) -> NcclVerdict:
    half = {"time": 1.0, "alg_bw": 114.28, "bus_bw": 199.99, "nwrong": 0}
    per_iteration = {"skipped_iterations": 1, "times_us": [], "per_process_max_times_us": times}
    hosts = [{"rank": rank, "group": 0, "hostname": f"node-{rank // 4}"} for rank in range(8)]
    content = {
        "version": 3, "args": ["./all_reduce_perf"], "env": [], "config": {"ngpus": 1, "nthreads": 1, "devices": hosts},
        "results": [
            {
                "size": 8 << 30, "redop": "sum", "root": "-1", "out_of_place": half, "in_place": half,
                "out_of_place_per_iter": per_iteration,
            }
        ],
        "out_of_bounds": {"count": 0, "okay": "true"}, "errors": [], "end_time": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return judge(json_output.parse(json.dumps(content)), ExpectedRun(H100, 1, 8))


@pytest.mark.parametrize(("time", "role"), [(50100.0, "the others wait for it"), (99000.0, "it is slower itself")])
def test_a_process_whose_iterations_take_another_time_is_named(time: float, role: str) -> None:
    times = [[9e9, 75000.0, 75200.0, 75100.0] for _ in range(8)]
    assert not any("an iteration" in reason for reason in timed(times).reasons)
    times[5][1:] = [time, time, time]
    (said,) = [reason for reason in timed(times).reasons if "an iteration" in reason]
    assert said.startswith(
        f"an iteration took {time:.0f} us in process 5 on node-1 and 75100 in the others: {role}; look"
    )


def test_of_two_processes_none_is_accused() -> None:
    assert not any("an iteration" in reason for reason in timed([[1.0, 50.0], [1.0, 100.0]]).reasons)
