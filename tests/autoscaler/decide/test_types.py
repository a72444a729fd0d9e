"""What the flags of a node and the state of a job mean, and the tokens of launches."""

from __future__ import annotations

import pytest

from gpucluster.autoscaler.decide.types import RELEASED, STARTED, UNANSWERED, ClaimState, CloudInstance, Memory, Node
from gpucluster.oci.states import LifecycleState
from tests.autoscaler.builders import BUSY, COMING, DEAD, IDLE, LEAVING, LOST, OFF, WARMING, flags, job

PROPERTIES = ("powering_up", "powering_down", "powered_down", "down", "drained", "busy", "silent", "in_service")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (OFF, {"powered_down"}),
        (COMING, {"powering_up", "busy", "silent"}),
        (WARMING, {"powering_up", "silent"}),
        (IDLE, {"in_service"}),
        (BUSY, {"in_service", "busy"}),
        (LEAVING, {"powering_down"}),
        (DEAD, {"powered_down", "down"}),
        (LOST, {"down", "silent"}),
    ],
)
def test_what_the_flags_of_a_node_mean(words: str, expected: set[str]) -> None:
    node = Node("gpu-e1", "gpu", flags(words))
    assert {name for name in PROPERTIES if getattr(node, name)} == expected


def test_a_drained_node_may_be_busy() -> None:
    node = Node("gpu-e1", "gpu", flags(f"{BUSY}+DRAIN"))
    assert (node.drained, node.busy) == (True, True)


@pytest.mark.parametrize(
    ("state", "pending", "holding"),
    [
        ("PENDING", True, False),
        ("CONFIGURING", False, True),
        ("RUNNING", False, True),
        ("COMPLETED", False, False),
    ],
)
def test_whether_a_job_waits_or_has_its_nodes(state: str, pending: bool, holding: bool) -> None:
    each = job(1, state=state)
    assert (each.pending, each.holding) == (pending, holding)


@pytest.mark.parametrize(
    ("state", "live"),
    [
        (LifecycleState.PROVISIONING, True),
        (LifecycleState.RUNNING, True),
        (LifecycleState.STOPPED, True),  # it costs money, and has its name
        (LifecycleState.TERMINATING, False),
        (LifecycleState.TERMINATED, False),
    ],
)
def test_an_instance_that_ends_is_not_live(state: LifecycleState, live: bool) -> None:
    assert CloudInstance("ocid", "gpu-e1", "gpu", 1, state, 0.0).live is live


def test_a_token_is_that_of_one_launch_of_one_ledger() -> None:
    tokens = [
        Memory(ledger).token(node, generation)
        for ledger in ("a", "b")
        for node in ("gpu-e1", "gpu-e11")
        for generation in (1, 2, 11)
    ]
    assert len(set(tokens)) == len(tokens)
    assert Memory("a").token("gpu-e1", 1) == Memory("a", paused="x").token("gpu-e1", 1)
    assert all(0 < len(token) <= 64 for token in tokens)


def test_a_claim_is_unanswered_started_or_released() -> None:
    assert UNANSWERED.isdisjoint(STARTED)
    assert UNANSWERED.isdisjoint(RELEASED)
    assert STARTED.isdisjoint(RELEASED)
    assert set(ClaimState) >= UNANSWERED | STARTED | RELEASED
