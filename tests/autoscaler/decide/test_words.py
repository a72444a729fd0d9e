"""The texts of decisions: each fault and each action has words, and advice for administrators stays out of them."""

from __future__ import annotations

from typing import get_args

import pytest

from gpucluster.autoscaler.decide import types
from gpucluster.autoscaler.decide.types import Fault
from gpucluster.autoscaler.decide.words import ADVICE, SCHEDULERS, VERBS, describe_fault, timestamp
from gpucluster.autoscaler.policy import Scheduler


def test_every_action_has_a_verb_of_its_own() -> None:
    assert set(VERBS) == set(get_args(types.Action))
    assert len(set(VERBS.values())) == len(VERBS)


def test_every_scheduler_has_all_words() -> None:
    assert set(SCHEDULERS) == set(get_args(Scheduler))
    for words in SCHEDULERS.values():
        assert all(getattr(words, name) for name in ("name", "daemon", "not_requeued", "release", "no_node_yet"))
    assert len({words.too_late for words in SCHEDULERS.values()}) == len(SCHEDULERS)


@pytest.mark.parametrize("fault", [*Fault, None])
def test_every_fault_is_described_with_the_words_of_the_cloud(fault: Fault | None) -> None:
    alone = describe_fault(fault)
    assert alone
    assert describe_fault(fault, "500 InternalError") == f"{alone} (500 InternalError)"


def test_advice_for_administrators_is_left_out() -> None:
    assert describe_fault(Fault.LIMIT, f"400 LimitExceeded{ADVICE}ask for more").endswith("(400 LimitExceeded)")
    assert describe_fault(Fault.LIMIT, f"{ADVICE}ask for more") == describe_fault(Fault.LIMIT)


def test_times_are_in_utc() -> None:
    assert timestamp(0.9) == "1970-01-01 00:00:00 UTC"
    assert timestamp(1_790_000_000) == "2026-09-21 14:13:20 UTC"
