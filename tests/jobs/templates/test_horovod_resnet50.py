"""Horovod's ResNet-50: figures of the worked examples are read and compared."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.checks.model import Status
from tests.jobs import seed_outputs
from tests.jobs.templates.test_rdma_perftest import GPU4, job, judge, statuses

# --- Horovod -----


def test_the_figures_of_the_seeds_are_read_and_compared() -> None:
    one = judge(seed_outputs.HOROVOD_ONE_NODE, job("horovod_resnet50", shape=GPU4, nodes=1))
    assert (one.values, one.status) == ({"img_per_s_per_gpu": 600.0, "img_per_s": 4800.1}, Status.PASS)
    both = seed_outputs.HOROVOD_ONE_NODE + seed_outputs.HOROVOD_TWO_NODES
    two = judge(both, job("horovod_resnet50", shape=GPU4))
    assert (two.values["img_per_s"], two.status, len(two.steps)) == (9170.8, Status.PASS, 10)
    assert two.values["efficiency"] == pytest.approx(0.955, abs=0.0005)
    given = judge(
        seed_outputs.HOROVOD_TWO_NODES, job("horovod_resnet50", shape=GPU4, compare="false", one_node="4800.1")
    )
    assert given.values["efficiency"] == pytest.approx(0.955, abs=0.0005)
    pascal = judge(seed_outputs.HOROVOD_P100, job("horovod_resnet50", nodes=4, gpus=2, compare="false"))
    assert pascal.values == {"img_per_s_per_gpu": 174.9, "img_per_s": 1399.1}
    assert pascal.status is Status.UNKNOWN, "no other figure is published for that hardware"


def test_nodes_that_lose_too_much_together_fail() -> None:
    slow = seed_outputs.horovod(16, (300.0, 310.0), "305.0 +-5.0", "4880.0 +-80.0")
    result = judge(seed_outputs.HOROVOD_ONE_NODE + slow, job("horovod_resnet50", shape=GPU4))
    assert statuses(result) == {"scaling": Status.FAIL, "steadiness": Status.PASS}
    shaky = seed_outputs.horovod(8, (400.0, 800.0), "600.0 +-392.0", "4800.0 +-3136.0")
    assert statuses(judge(shaky, job("horovod_resnet50", shape=GPU4, nodes=1)))["steadiness"] is Status.WARN


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("", Status.UNKNOWN, "ended before it trained"),
        (seed_outputs.HOROVOD_TWO_NODES[:400], Status.UNKNOWN, "there is no total"),
        (seed_outputs.HOROVOD_ONE_NODE, Status.UNKNOWN, "there is no total"),
        (seed_outputs.horovod(1, (70.0,), "70.0 +-0.0", "70.0 +-0.0") * 16, Status.FAIL, "16 processes trained alone"),
        (seed_outputs.horovod(12, (7.0,), "7.0 +-0.0", "84.0 +-0.0"), Status.FAIL, "12 processes trained together"),
        (seed_outputs.HOROVOD_TWO_NODES.replace("9170.8", "9..8"), Status.UNKNOWN, "there is no total"),
        ("x" * 1_000_000 + "\n" + "Iter #0: 1 img/sec per GPU\n" * 50_000, Status.UNKNOWN, "ended before it trained"),
    ],
    ids=["empty", "cut off", "one node only", "alone", "fewer", "no number", "huge"],
)  # fmt: skip
def test_a_training_that_did_not_happen_is_not_a_result(text: str, status: Status, said: str) -> None:
    result = judge(text, job("horovod_resnet50", shape=GPU4))
    assert (result.status, result.values) == (status, {})
    assert said in result.findings[0].message
