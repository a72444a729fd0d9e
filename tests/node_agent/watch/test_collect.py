"""What is read of GPUs and processes: rows of nvidia-smi, and the work of a process and its descendants."""

from __future__ import annotations

import os
import signal

import pytest

from gpucluster.node_agent.watch import collect, judge
from tests.node_agent.watch.watched_node import SLEEPS, SPINS, Node, program, row
from tests.waiting import wait_for


def test_a_gpu_whose_process_has_no_number_is_held(node: Node) -> None:
    node.holders("GPU-0, [N/A]")
    assert collect.holders() == {"GPU-0": frozenset({0})}


def test_rows_that_are_messages_are_left_out(node: Node) -> None:
    node.gpus("No devices were found", row(0, "[N/A]"), "1, GPU-1, [GPU is lost], 0, 1.0, 2.0")
    assert collect.gpus() == dict.fromkeys(("0", "GPU-0"), judge.GpuReading(0, None, 700.0, 1.0, 0.0))


@pytest.mark.parametrize("code", [SPINS, f"import os, signal\nif os.fork(): signal.pause()\n{SPINS}"])
def test_a_process_works_if_it_or_a_descendant_uses_a_processor(code: str) -> None:
    with program(code) as pid:
        processes = collect.Processes()
        assert processes.look([pid], 1.0)[pid].busy, "nothing is known at first"
        wait_for("it works", lambda: processes.look([pid], 1.0)[pid].busy)


def test_a_process_that_sleeps_does_not_work_and_one_that_is_stopped_is_seen() -> None:
    with program(SLEEPS) as pid:
        processes = collect.Processes()
        wait_for("it sleeps", lambda: not processes.look([pid], 1.0)[pid].busy)
        os.kill(pid, signal.SIGSTOP)
        wait_for("it is stopped", lambda: processes.look([pid], 1.0)[pid].stopped)
        os.kill(pid, signal.SIGCONT)
    assert collect.Processes().look([pid], 0.0) == {}
