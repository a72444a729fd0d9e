"""Reasons that are stored in Slurm: whose they are, and which words are stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.node_agent.rules.reasons import (
    LONGEST,
    drained_by_checks,
    first_check,
    from_administrator,
    from_gpucluster,
    kill_task_failed,
    of_checks,
    reboot_first,
    reboot_timed_out,
    storable,
)
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


def test_a_reason_states_that_a_reboot_comes_first_and_slurmctld_may_add_to_it() -> None:
    reason = of_checks([("gpu_xid", "Xid 79"), ("gpu_count", "7 of 8 GPUs")], again=False, reboot_first=True)
    assert reason == "gpucluster: check failed, reboot first: gpu_xid: Xid 79; gpu_count: 7 of 8 GPUs"
    for added in ("", " : reboot issued", " : reboot issued : reboot timed out", " : Not responding"):
        assert reboot_first(reason + added)
        assert drained_by_checks(reason + added)
        assert not from_administrator(reason + added)
        assert reboot_timed_out(reason + added) == added.endswith("timed out")
    assert first_check(reason) == "gpu_xid"
    assert not reboot_first(of_checks([("gpu_xid", "Xid 79")], again=False))


def test_what_a_reboot_has_changed_is_never_cut_off() -> None:
    reason = of_checks([("gpu_xid", "x" * 900)], again=False, outcome="still so after a reboot")
    assert len(reason) == LONGEST
    assert reason.endswith("... (still so after a reboot)")


@pytest.mark.parametrize(
    ("reason", "found"),
    [
        ("Kill task failed", True),
        ("loud fan : Kill task failed", True),
        ("Kill task failed : Not responding", False),
        ("Prolog error", False),
        ("gpucluster: changed by apply : Kill task failed", False),
        ("", False),
    ],
)
def test_a_process_that_slurmd_could_not_end_is_known(reason: str, found: bool) -> None:
    assert kill_task_failed(reason) is found
