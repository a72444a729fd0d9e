"""Rows of instances, and lines of sacct as Slurm 24.11 prints them."""

from __future__ import annotations

import math

import pytest

from gpucluster.cost import records
from gpucluster.cost.model import Hardware

LINES = """\
7|alice|vision|1767222000|1767225600|billing=16,cpu=16,gres/gpu:a100=2,gres/gpu=2,mem=16G,node=2|gpu-e[1-2]
7|alice|vision|1767226000|Unknown|billing=16,cpu=16,mem=1000M,node=1|gpu-e3
8|bob|vision|Unknown|Unknown||None assigned
9|bob||1767226000|1767226001|cpu=1,mem=512K,node=1|gpu-1

10|bob|vision|0|1767226001||None assigned
"""


def test_each_run_of_a_job_that_began() -> None:
    first, again, small = records.runs(LINES)
    assert (first.id, first.user, first.account, first.nodes) == ("7", "alice", "vision", ("gpu-e1", "gpu-e2"))
    assert (first.begin, first.end, first.resources) == (1767222000.0, 1767225600.0, Hardware(16, 16384, 2))
    assert (again.end, again.resources) == (math.inf, Hardware(16, 1000, 0))
    assert (small.account, small.resources.memory_mib) == ("", 0.5)


@pytest.mark.parametrize("line", ["7|alice", "7|a|b|1|2|cpu=1|gpu-e["])
def test_what_is_not_a_line_of_sacct_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a l"):
        records.runs(line)


def test_rows_of_instances() -> None:
    machine = {
        "shape": "BM.GPU4.8",
        "gpus": 8,
        "ocpus": 64,
        "memory_gb": 2048,
        "cpus": 128,
        "memory_mib": 9,
        "devices": 8,
    }
    row = {"id": "o", "name": "gpu-e1", "pool": "gpu", "machine": machine, "began": 5.0, "ended": None, "unsure": 0.0}
    there, gone = records.hosts([row, row | {"ended": 7.0, "unsure": 1.5, "machine": {}}])
    assert (there.shape, there.hardware, there.end) == ("BM.GPU4.8", Hardware(128, 9, 8), math.inf)
    assert there.machine == {"shape": "BM.GPU4.8", "gpus": 8, "ocpus": 64, "memory_gb": 2048}
    assert (gone.end, gone.unsure, gone.hardware) == (7.0, 1.5, Hardware())
    with pytest.raises(KeyError):
        records.hosts([{"id": "o"}])
