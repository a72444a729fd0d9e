"""The check `gpu_mig`: what is there against the profiles of the pool.

nvidia-smi is a double (tests/node_agent/mig/smi.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.node_agent import programs
from gpucluster.node_agent.checks import registry
from gpucluster.node_agent.checks.collect.mig import mig as measure
from gpucluster.node_agent.checks.collect.place import MeasuredHost, Refusal, Unmeasured
from gpucluster.node_agent.checks.model import Finding, Status
from gpucluster.node_agent.mig import apply, plan
from gpucluster.node_agent.rules import mig
from tests.node_agent.checks.measured import EMULATED, NODE, healthy, judged
from tests.node_agent.mig.smi import H100, Card, Smi, write_minors

SEVEN = ",".join(f"1g.10gb:{start}" for start in range(7))
PARTS = (*[SEVEN] * 7, "")
DIVIDED = replace(NODE, mig=PARTS)


class Node:
    """A node whose GPUs are divided as the pool states."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.smi = Smi(H100, [Card(index) for index in range(8)])
        write_minors(root, 8)
        apply.apply(apply.MigNode(root, self.smi), DIVIDED)

    def host(self) -> MeasuredHost:
        def ask(argv: list[str], _seconds: float, _most: int, **_more: object) -> programs.ProgramAnswer:
            said = self.smi(argv, 1.0)
            return programs.ProgramAnswer(said.status, said.output.encode(), b"", "")

        return MeasuredHost(DIVIDED, self.root, self.root, lambda: 0.0, lambda: 0.0, ask)

    def says(self) -> Finding:
        return judged("gpu_mig", {**healthy(), "mig": measure(self.host(), 5.0)}, DIVIDED)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_node_that_is_divided_is_good(node: Node) -> None:
    said = node.says()
    assert (said.status, said.message) == (Status.PASS, "49 instances, as the pool has them")


def _one_is_gone(node: Node) -> None:
    node.smi.cards[2].made.pop(3)


def _no_compute(node: Node) -> None:
    node.smi.cards[2].made[3].compute = False


def _mode_is_off(node: Node) -> None:
    node.smi.cards[2].mode, node.smi.cards[2].made = "Disabled", []


def _whole_one_is_divided(node: Node) -> None:
    node.smi.cards[7].mode = "Enabled"


def _mode_will_change(node: Node) -> None:
    node.smi.cards[2].pending = "Disabled"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (_one_is_gone, "GPU 2: 1g.10gb at 3 is missing"),
        (_no_compute, "GPU 2: 1g.10gb at 3 has no compute instance"),
        (_mode_is_off, "GPU 2: its MIG mode is Disabled, and not Enabled"),
        (_whole_one_is_divided, "GPU 7: its MIG mode is Enabled, and not Disabled"),
        (_mode_will_change, "GPU 2: its MIG mode will be Disabled after a restart"),
    ],
)
def test_what_is_wrong_is_a_failure(node: Node, fault: Callable[[Node], None], words: str) -> None:
    fault(node)
    said = node.says()
    assert (said.status, said.message) == (Status.FAIL, words)


def test_the_reason_of_the_program_that_divides_them_comes_first(node: Node) -> None:
    """It is what the node is drained for."""
    node.smi.boot()
    node.smi.cards[0].held_by = [""]
    with pytest.raises(plan.NotPossible):
        apply.apply(apply.MigNode(node.root, node.smi, lambda _seconds: None), DIVIDED)
    said = node.says()
    assert said.status is Status.FAIL
    assert said.message.startswith("GPU 0: could not turn MIG mode on: In use by another client")
    assert registry.BY_NAME["gpu_mig"].reaction.value == "drain"


def test_an_old_reason_is_not_told_where_all_is_well(node: Node) -> None:
    (node.root / mig.FOLDER.lstrip("/") / apply.RECORD).write_text(json.dumps({"said": "old"}))
    assert node.says().message == "49 instances, as the pool has them"


def test_a_gpu_that_does_not_answer_is_a_failure(node: Node) -> None:
    node.smi.dead = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    with pytest.raises(Refusal):
        measure(node.host(), 5.0)


def test_an_output_that_is_cut_off_is_not_a_measurement(node: Node) -> None:
    text = node.smi.query()
    node.smi.query = lambda: text[: len(text) // 2]  # type: ignore[method-assign]
    with pytest.raises(Unmeasured, match="cut off"):
        measure(node.host(), 5.0)


def test_outputs_that_do_not_belong_together_are_no_measurement(node: Node) -> None:
    """A GPU is divided while it is measured."""
    names = node.smi.names()
    del node.smi.cards[0].made[0]
    node.smi.names = lambda: "\n".join(names.splitlines()[:3])  # type: ignore[method-assign]
    with pytest.raises(Unmeasured, match="does not list"):
        measure(node.host(), 5.0)


def test_a_lost_gpu_is_for_another_check() -> None:
    found = healthy()
    found["mig"]["cards"].pop()
    said = judged("gpu_mig", found, DIVIDED)
    assert (said.status, said.message) == (Status.UNKNOWN, "the driver sees 7 of 8 GPUs")


def test_where_nothing_is_divided_it_is_skipped_with_the_reason() -> None:
    said = judged("gpu_mig", healthy(), replace(NODE, mig=()))
    assert (said.status, said.message) == (Status.SKIP, "the pool divides no GPU (gpus.mig in cluster.yml)")
    assert judged("gpu_mig", healthy(), EMULATED).message == "the hardware of this host is emulated"
