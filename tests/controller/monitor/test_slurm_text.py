"""What scontrol, squeue and sdiag print, up to what users write into it."""

from __future__ import annotations

import pytest

from gpucluster.controller.monitor import slurm_text
from tests.controller.monitor.slurm_lines import node_line


def test_the_numbers_of_a_node_are_its_own_and_not_those_of_its_reason() -> None:
    (row,) = slurm_text.nodes(node_line("gpu-1", "MIXED"))
    assert (row.cpus, row.gpus) == ((2, 4), (3, 8))
    (row,) = slurm_text.nodes(node_line("gpu-1", "IDLE", gres="(null)", used="gpu:0"))
    assert row.gpus == (0, 0)
    (row,) = slurm_text.nodes(node_line("gpu-1", "IDLE", gres="gpu:a100:4,nvme:1,gpu:h100:2", used="gpu:a100:1(IDX:0)"))
    assert row.gpus == (1, 6)


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("7", 1), ("0-99999", 100_000), ("1,3,5-9%2", 7), ("0-10:5", 3), ("", 1), ("0-9,...", 10), ("x", 1)],
)
def test_tasks_of_an_array_are_counted(text: str, tasks: int) -> None:
    assert slurm_text.tasks_of(text) == tasks
