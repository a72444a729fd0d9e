"""One word for the state of a node."""

from __future__ import annotations

import pytest

from gpucluster.autoscaler.daemon.timeline import node_state
from gpucluster.autoscaler.decide.types import Node


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ("IDLE+CLOUD", "idle"),
        ("MIXED+CLOUD", "allocated"),
        ("IDLE+CLOUD+DRAIN", "drained"),
        ("DOWN+CLOUD+NOT_RESPONDING", "down"),
        ("DOWN+CLOUD+POWERED_DOWN", "down"),
        ("ALLOCATED+CLOUD+POWERING_UP+NOT_RESPONDING", "powering_up"),
        ("IDLE+CLOUD+POWERING_DOWN", "powering_down"),
        ("IDLE+CLOUD+POWERED_DOWN", "powered_down"),
        ("IDLE+CLOUD+NOT_RESPONDING", "silent"),
    ],
)
def test_one_word_for_the_flags_of_a_node(flags: str, word: str) -> None:
    assert node_state(Node("n", "gpu", frozenset(flags.split("+")))) == word
