"""Reasons that are stored in Slurm: whose they are, and which words are stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.node_agent.rules.reasons import LONGEST, from_administrator, from_gpucluster, storable
from tests.examples import examples


@pytest.mark.parametrize(
    ("reason", "mine", "persons"),
    [
        ("", False, False),
        ("gpucluster: no capacity", True, False),
        ("gpucluster: no capacity : ResumeTimeout reached", False, False),
        ("fan is loud", False, True),
        ("fan is loud : Not responding", False, False),
        ("ResumeTimeout reached", False, False),
        ("gpucluster: 400 LimitExceeded : gpu-count", True, False),
    ],
)
def test_whose_reason_it_is(reason: str, mine: bool, persons: bool) -> None:
    assert from_gpucluster(reason) == mine
    assert from_administrator(reason) == persons


@given(st.text(max_size=600))
@examples(300)
def test_words_are_harmless(words: str) -> None:
    made = storable(words)
    assert len(made) <= LONGEST
    assert made == made.strip()
    assert made.isprintable()
    assert not set(made) & set('"\n\r\t\\|\x1e\x1f\0')
    made.encode()
    assert storable(made) == made
