"""When the standby goes on: properties that hold for every course of events, and each reason to wait."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.failover.decide import LEAST_ROUNDS, Decision, Evidence, Silence, Verdict, decide, quorum
from gpucluster.oci.states import INSTANCE
from tests.examples import examples

OWN, OTHER = "ocid1.instance.standby", "ocid1.instance.controller"
PATIENCE, INTERVAL = 15.0, 5.0
PROBES = ("ssh", "slurmctld")
WITNESSES = ("login-1", "compute-1", "compute-2")


def silence(rounds: int = 4, start: float = 100.0) -> Silence:
    found = Silence()
    for number in range(rounds):
        found = found.after({"ssh": False}, start + number * INTERVAL, INTERVAL)
    return found


def verdict(evidence: Evidence | None, **more: object) -> Verdict:
    values = {"now": 100.0 + 3 * INTERVAL, "patience": PATIENCE, "own": OWN, **more}
    return decide(silence(), evidence, **values)  # type: ignore[arg-type]


def lost(**sees: bool | None) -> Evidence:
    return Evidence(sees or dict.fromkeys(("a", "b", "c"), False), "RUNNING", OTHER)


@pytest.mark.parametrize(
    ("evidence", "more", "decision", "reason"),
    [
        (None, {}, Decision.ASK, "nothing of the controller answers"),
        (lost(), {}, Decision.GO_ON, "3 of 3 other hosts do not reach it"),
        (lost(a=False, b=False, c=None), {}, Decision.GO_ON, "2 of 3"),
        (lost(a=False, b=None, c=None), {}, Decision.WAIT, "1 of 3 hosts confirm it, and 2 are needed"),
        (lost(a=False, b=False, c=True), {}, Decision.WAIT, "reached by c: the fault is on the way here"),
        (Evidence({}, "RUNNING", OTHER), {}, Decision.WAIT, "no other host that could be asked"),
        (Evidence({}, "STOPPED", OTHER), {}, Decision.GO_ON, "the controller's instance is STOPPED"),
        (Evidence({"a": None}, "TERMINATED", ""), {}, Decision.GO_ON, "TERMINATED"),
        (Evidence({"a": True}, "STOPPED", OTHER), {}, Decision.WAIT, "reached by a"),
        (Evidence({"a": False}, "STARTING", OTHER), {}, Decision.WAIT, "STARTING"),
        (Evidence({"a": False}, "", None), {}, Decision.WAIT, "the cloud does not answer"),
        (Evidence({}, "RUNNING", OWN), {}, Decision.GO_ON, "this host has the volume already"),
        (lost(), {"held_by": "apply by alice"}, Decision.WAIT, "a run holds the cluster: apply by alice"),
        (Evidence({}, "RUNNING", OWN), {"held_by": "x"}, Decision.WAIT, "a run holds the cluster"),
        (lost(), {"paused_seconds": 60.0}, Decision.WAIT, "announced a shutdown; 60 s"),
    ],
)
def test_each_reason(evidence: Evidence | None, more: Mapping[str, object], decision: Decision, reason: str) -> None:
    found = verdict(evidence, **more)
    assert found.decision is decision
    assert reason in found.reason


def test_a_short_silence_is_none() -> None:
    short = silence(LEAST_ROUNDS - 1)
    assert decide(short, None, now=1e6, patience=PATIENCE, own=OWN).decision is Decision.WATCH
    young = silence()
    assert decide(young, None, now=100.0 + PATIENCE - 0.1, patience=PATIENCE, own=OWN).decision is Decision.WATCH


def test_a_host_that_stood_still_begins_again() -> None:
    """A standby that was frozen for an hour has not watched for an hour."""
    before = silence()
    after = before.after({"ssh": False}, (before.last or 0.0) + 3600.0, INTERVAL)
    assert (after.rounds, after.seconds((before.last or 0.0) + 3600.0)) == (1, 0.0)


def test_half_of_the_witnesses_is_not_enough() -> None:
    assert [quorum(number) for number in (1, 2, 3, 4)] == [1, 2, 2, 3]


gaps = st.floats(min_value=2.0, max_value=60.0)
sights = st.dictionaries(st.sampled_from(WITNESSES), st.sampled_from([True, False, None]))
evidences = st.builds(
    Evidence,
    sights,
    st.sampled_from([*sorted(INSTANCE), "", "NEW_STATE"]),
    st.sampled_from([OWN, OTHER, "", None]),
)


@examples(200)
@given(st.lists(st.tuples(st.dictionaries(st.sampled_from(PROBES), st.booleans(), min_size=1), gaps), max_size=40),
       evidences, st.floats(0, 600), st.sampled_from(["", "apply by alice"]))  # fmt: skip
def test_it_never_goes_on_against_any_of_the_reasons(
    course: list[tuple[dict[str, bool], float]], evidence: Evidence, paused: float, held_by: str
) -> None:
    now, found, last_answer, begin = 1000.0, Silence(), None, None
    for answers, gap in course:
        now += gap
        found = found.after(answers, now, INTERVAL)
        begin = now if begin is None else begin
        if any(answers.values()):
            last_answer = now
        result = decide(
            found, evidence, now=now, patience=PATIENCE, own=OWN, paused_seconds=paused, held_by=held_by
        ).decision
        if result is Decision.GO_ON:
            assert now - max(last_answer or 0.0, begin) >= PATIENCE
            assert not paused
            assert not held_by
            assert evidence.holder is not None
            assert evidence.state
            if evidence.holder != OWN:
                assert not any(evidence.sees.values())
                if evidence.state == "RUNNING":
                    blind = [name for name, sees in evidence.sees.items() if sees is False]
                    assert 2 * len(blind) > len(evidence.sees)
                    assert blind


@examples(200)
@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(0, 3))
def test_a_partition_of_the_standby_alone_never_lets_it_go_on(reached: list[bool], witnesses: int) -> None:
    """The controller is there, and every witness that the standby reaches sees it; the cloud states RUNNING."""
    found, now = Silence(), 0.0
    for can_reach_witnesses in reached:
        now += INTERVAL
        found = found.after(dict.fromkeys(PROBES, False), now, INTERVAL)
        sees: dict[str, bool | None] = dict.fromkeys(WITNESSES[:witnesses], True if can_reach_witnesses else None)
        result = decide(found, Evidence(sees, "RUNNING", OTHER), now=now, patience=PATIENCE, own=OWN)
        assert result.decision in (Decision.WATCH, Decision.WAIT)


@examples(200)
@given(st.lists(st.integers(1, 3), max_size=20))
def test_a_controller_that_answers_now_and_then_is_not_lost(silent_rounds: list[int]) -> None:
    """A slow one, or a network that loses packets: an answer within the patience each time."""
    found, now = Silence(), 0.0
    for silent in silent_rounds:
        for answers in [*[False] * min(silent, 3), True]:
            now += INTERVAL
            found = found.after({"ssh": answers, "slurmctld": False}, now, INTERVAL)
            assert decide(found, lost(), now=now, patience=PATIENCE, own=OWN).decision is Decision.WATCH


@examples(200)
@given(st.floats(2.0, INTERVAL), st.sampled_from(["RUNNING", "STOPPED", "TERMINATED"]))
def test_a_controller_that_is_lost_alone_is_followed_in_time(gap: float, state: str) -> None:
    found, now = Silence(), 0.0
    while True:
        now += gap
        found = found.after(dict.fromkeys(PROBES, False), now, INTERVAL)
        evidence = Evidence(dict.fromkeys(WITNESSES, False), state, OTHER)
        if decide(found, evidence, now=now, patience=PATIENCE, own=OWN).decision is Decision.GO_ON:
            break
        assert now < 100
    assert now <= gap + PATIENCE + gap
