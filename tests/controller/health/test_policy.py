"""The policy: what drains, what does not, and what is never done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.controller.health import policy
from gpucluster.controller.health.policy import (
    Action,
    Decision,
    Evidence,
    JournalRecord,
    Moment,
    PolicySettings,
    RecordKind,
    SchedulerNode,
)
from gpucluster.node_agent.checks.model import Status
from gpucluster.node_agent.rules import reasons
from tests.controller.health.doubles import NOW, ago, nodes

SETTINGS = PolicySettings()


def seen(
    node: str,
    status: Status = Status.FAIL,
    check: str = "gpu",
    *,
    at: Moment = NOW,
    drains: bool = True,
    current: bool = True,
) -> Evidence:
    return Evidence(node, check, status, "7 of 8 GPUs", at, drains, current)


def one(
    evidence: list[Evidence],
    journal: list[JournalRecord] | None = None,
    *,
    settings: PolicySettings = SETTINGS,
    **changed: Any,
) -> Decision | None:
    """The decision about compute-1 of ten nodes, the others of which pass."""
    present = nodes(10)
    present["compute-1"] = replace(present["compute-1"], **changed)
    others = [seen(name, Status.PASS) for name in present if name != "compute-1"]
    records = journal or []
    records = [*records, *policy.settle(NOW, present, records)]
    found = policy.decide(NOW, [*others, *evidence], present, records, settings)
    return next((each for each in found if each.node == "compute-1"), None)


def drained(at: Moment, kind: RecordKind = RecordKind.DRAIN, **more: Any) -> list[JournalRecord]:
    record = JournalRecord(kind, "compute-1", at, "compute", ("gpu",), OURS)
    return [replace(record, **more), JournalRecord(RecordKind.DONE, "compute-1", at)]


OURS = reasons.of_checks([("gpu", "7 of 8 GPUs")], again=False)
DRAINED: dict[str, Any] = {"flags": frozenset({"IDLE", "DRAIN"}), "reason": OURS}


def test_a_failed_check_drains_the_node_and_the_reason_states_what_was_seen() -> None:
    decision = one([seen("compute-1")])
    assert decision is not None
    assert (decision.action, decision.reason) == (Action.DRAIN, "gpucluster: check failed: gpu: 7 of 8 GPUs")
    assert reasons.from_gpucluster(decision.reason)
    assert reasons.drained_by_checks(decision.reason)
    assert not reasons.drained_by_apply(decision.reason)


@pytest.mark.parametrize("status", [Status.UNKNOWN, Status.WARN, Status.SKIP, Status.PASS])
def test_only_a_failure_drains(status: Status) -> None:
    assert one([seen("compute-1", status)]) is None


def test_a_check_that_only_reports_does_not_drain() -> None:
    assert one([seen("compute-1", drains=False)]) is None


def test_an_old_report_blames_no_node() -> None:
    assert one([seen("compute-1", current=False)]) is None


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"IDLE", "DRAIN"}, "broken fan, ticket 17"),
        ({"DOWN"}, "taken out by Alice"),
        ({"IDLE", "DRAIN"}, reasons.CHANGED),
        ({"IDLE", "DRAIN"}, ""),
        ({"IDLE", "POWERED_DOWN"}, ""),
    ],
)
def test_what_another_administrator_decided_is_kept(flags: set[str], reason: str) -> None:
    for evidence in ([seen("compute-1")], [seen("compute-1", Status.PASS)]):
        decision = one(evidence, flags=frozenset(flags), reason=reason)
        assert decision is None or decision.action is Action.NONE


def test_a_node_that_slurmctld_gave_up_can_be_drained() -> None:
    decision = one([seen("compute-1")], flags=frozenset({"DOWN"}), reason="Node unexpectedly rebooted")
    assert decision is not None
    assert decision.action is Action.DRAIN


def test_our_drain_ends_when_its_checks_passed_later() -> None:
    decision = one([seen("compute-1", Status.PASS, at=ago(10))], drained(ago(60)), **DRAINED)
    assert decision is not None
    assert decision.action is Action.UNDRAIN


@pytest.mark.parametrize(
    "evidence",
    [
        [seen("compute-1", Status.PASS, at=ago(90))],
        [seen("compute-1", Status.UNKNOWN, at=ago(10))],
        [seen("compute-1", Status.PASS, "disk", at=ago(10))],
        [seen("compute-1", Status.PASS, at=ago(10)), seen("compute-1", Status.FAIL, "disk", at=ago(10))],
    ],
    ids=["older than the drain", "unknown", "another check", "another check fails now"],
)
def test_our_drain_stays(evidence: list[Evidence]) -> None:
    decision = one(evidence, drained(ago(60)), **DRAINED)
    assert decision is None or decision.action is Action.NONE


def test_a_drain_that_the_journal_does_not_have_stays() -> None:
    assert one([seen("compute-1", Status.PASS)], **DRAINED) is None


def test_a_clock_that_jumped_back_does_not_undrain() -> None:
    """By the wall the report is an hour older than the drain; it came after it, in the same boot."""
    at = Moment(NOW.wall - 3600, NOW.boot, NOW.up - 5)
    decision = one([seen("compute-1", Status.PASS, at=at)], drained(ago(60)), **DRAINED)
    assert decision is not None
    assert decision.action is Action.UNDRAIN
    before = Moment(NOW.wall + 3600, NOW.boot, NOW.up - 90)
    assert one([seen("compute-1", Status.PASS, at=before)], drained(ago(60)), **DRAINED) is None


@pytest.mark.parametrize(("days", "again"), [(1, True), (8, False)])
def test_a_second_failure_within_a_week_goes_to_a_person(days: float, again: bool) -> None:
    past = [*drained(ago(days * 86400)), JournalRecord(RecordKind.ENDED, "compute-1", ago(days * 86400 - 60))]
    decision = one([seen("compute-1")], past)
    assert decision is not None
    assert decision.action is (Action.PERSON if again else Action.DRAIN)
    # The autoscaler gives up what gpucluster drained, and leaves to operators what is theirs.
    assert reasons.from_gpucluster(decision.reason) is not again
    assert reasons.from_administrator(decision.reason) is again


def test_another_machine_under_the_same_name_is_not_the_second_failure() -> None:
    past = [*drained(ago(60), instance="one"), JournalRecord(RecordKind.ENDED, "compute-1", ago(30))]
    decision = one([seen("compute-1")], past, instance="two")
    assert decision is not None
    assert decision.action is Action.DRAIN


def test_an_operator_decides_on_what_failed_twice() -> None:
    for status in (Status.PASS, Status.FAIL):
        reason = reasons.of_checks([("gpu", "7 of 8 GPUs")], again=True)
        journal = drained(ago(60), RecordKind.PERSON, reason=reason)
        flags = frozenset({"IDLE", "DRAIN"})
        decision = one([seen("compute-1", status)], journal, flags=flags, reason=reason)
        assert decision is None or decision.action is Action.NONE


def test_a_drain_that_an_operator_ended_is_over() -> None:
    present = nodes(10)
    assert [record.kind for record in policy.settle(NOW, present, drained(ago(60)))] == [RecordKind.ENDED]


def test_what_was_interrupted_is_done_again_and_counts_once() -> None:
    begun = drained(ago(5))[:1]
    decision = one([seen("compute-1")], begun)
    assert decision is not None
    assert decision.repeats
    assert decision.action is Action.DRAIN


def test_what_slurm_never_did_is_given_up_after_a_while() -> None:
    begun = drained(ago(3000))[:1]
    assert [record.kind for record in policy.settle(NOW, nodes(10), begun)] == [RecordKind.ENDED]
    assert one([seen("compute-1", Status.PASS)], begun) is None


@pytest.mark.parametrize(
    ("size", "percent", "allowed"), [(10, 20, 2), (3, 20, 1), (1, 20, 1), (100, 5, 5), (4, 100, 4), (10, 1, 1)]
)
def test_the_breaker_holds_the_rest(size: int, percent: int, allowed: int) -> None:
    present = nodes(size)
    # Each node fails another check, so that none of them is the suspect.
    evidence = [seen(name, check=f"check_{number}") for number, name in enumerate(present)]
    found = policy.decide(NOW, evidence, present, [], PolicySettings(max_drained_percent=percent))
    assert sum(each.action is Action.DRAIN for each in found) == allowed
    assert {each.holds for each in found if each.action is Action.NONE} <= {"breaker"}


def test_the_breaker_counts_an_hour_and_a_drain_that_was_undone() -> None:
    for minutes, allowed in ((30, 0), (90, 1)):
        record = JournalRecord(RecordKind.DRAIN, "compute-2", ago(60 * minutes), "compute", ("gpu",), OURS)
        over = JournalRecord(RecordKind.ENDED, "compute-2", ago(60 * minutes - 60))
        present = nodes(4)
        evidence = [seen("compute-1"), seen("compute-3", Status.PASS)]
        found = policy.decide(NOW, evidence, present, [record, over], SETTINGS)
        assert sum(each.action is Action.DRAIN for each in found) == allowed


def test_the_breaker_is_not_fooled_by_a_clock_that_jumps() -> None:
    """Ahead by a day, and back by a day: within one boot the other clock counts."""
    for jump in (-86400.0, 86400.0):
        record = JournalRecord(RecordKind.DRAIN, "compute-2", ago(600), "compute", ("gpu",), OURS)
        now = replace(NOW, wall=NOW.wall + jump)
        assert policy.breakers(now, nodes(4), [record], SETTINGS)["compute"].open
    # After a restart of the controller with a clock that is behind, the drain counts as recent.
    assert policy.breakers(Moment(0.0, "other", 5.0), nodes(4), [record], SETTINGS)["compute"].open


def test_a_check_that_all_nodes_fail_is_the_suspect() -> None:
    present = nodes(5)
    found = policy.decide(NOW, [seen(name) for name in present], present, [], SETTINGS)
    assert {each.action for each in found} == {Action.NONE}
    assert {each.holds for each in found} == {"suspect"}
    assert "fails on 5 nodes of pool compute" in found[0].reason


def test_a_suspect_does_not_hide_another_failure() -> None:
    present = nodes(5)
    evidence = [*(seen(name) for name in present), seen("compute-2", check="disk")]
    found = policy.decide(NOW, evidence, present, [], SETTINGS)
    assert [(each.node, each.checks) for each in found if each.action is Action.DRAIN] == [("compute-2", ("disk",))]


def test_shadow_mode_says_and_does_nothing() -> None:
    decision = one([seen("compute-1")], settings=PolicySettings(shadow=True))
    assert decision is not None
    assert decision.action is Action.SHADOW
    assert "would be drained" in decision.reason
    undrain = one([seen("compute-1", Status.PASS)], drained(ago(60)), settings=PolicySettings(shadow=True), **DRAINED)
    assert undrain is not None
    assert undrain.action is Action.SHADOW


# --- invariants, whatever the state is -----

STATES = [{"IDLE"}, {"ALLOCATED"}, {"DOWN"}, {"IDLE", "DRAIN"}, {"DOWN", "DRAIN"}, {"IDLE", "POWERED_DOWN"}]
TEXTS = ["", "loud fan", "Not responding", reasons.CHANGED, OURS, reasons.of_checks([("gpu", "x")], again=True)]
NAMES = st.sampled_from([*nodes(4), *nodes(3, "big")])
MOMENTS = st.builds(
    Moment,
    st.floats(NOW.wall - 1e6, NOW.wall + 1e6),
    st.sampled_from(["boot", "earlier"]),
    st.floats(0, NOW.up),
)
CHECKS = st.sampled_from(["gpu", "disk", "mount"])


@st.composite
def _pools(draw: st.DrawFn) -> dict[str, SchedulerNode]:
    found = {}
    for name, node in {**nodes(4), **nodes(3, "big")}.items():
        if draw(st.booleans()):
            flags = frozenset(draw(st.sampled_from(STATES)))
            found[name] = replace(node, flags=flags, reason=draw(st.sampled_from(TEXTS)))
    return found


EVIDENCE = st.lists(
    st.builds(Evidence, NAMES, CHECKS, st.sampled_from(Status), st.just("seen"), MOMENTS, st.booleans(), st.booleans()),
    max_size=14,
    unique_by=lambda each: (each.node, each.check),
)
JOURNAL = st.lists(
    st.builds(
        JournalRecord,
        st.sampled_from(RecordKind),
        NAMES,
        MOMENTS,
        st.sampled_from(["compute", "big"]),
        st.lists(CHECKS, max_size=2, unique=True).map(tuple),
        st.just(OURS),
    ),
    max_size=10,
)


@given(_pools(), EVIDENCE, JOURNAL, st.builds(PolicySettings, st.integers(1, 100), st.booleans()))
def test_what_is_never_done(
    present: dict[str, SchedulerNode], evidence: list[Evidence], journal: list[JournalRecord], settings: PolicySettings
) -> None:
    journal = [*journal, *policy.settle(NOW, present, journal)]
    found = policy.decide(NOW, evidence, present, journal, settings)
    before = policy.breakers(NOW, present, journal, settings)
    assert len({each.node for each in found}) == len(found)
    fresh: dict[str, int] = {}
    for each in found:
        if each.action is Action.NONE:
            continue
        node = present[each.node]
        results = {one.check: one for one in evidence if one.node == each.node}
        if settings.shadow:
            assert each.action is Action.SHADOW
            continue
        assert each.action is not Action.SHADOW
        if each.action is Action.UNDRAIN:
            assert node.ours
            assert not node.reason.startswith(reasons.FOR_A_PERSON)
            assert each.checks
            assert all(results[check].status is Status.PASS for check in each.checks)
            assert not any(one.accuses for one in results.values())
            continue
        # Neither an operator's decision nor a machine that is off is touched.
        assert not node.drained
        assert not node.away
        assert "DOWN" not in node.flags or not node.reason or reasons.from_slurm(node.reason)
        assert any(one.accuses for one in results.values())
        if not each.repeats:
            assert all(results[check].accuses for check in each.checks)
            fresh[node.pool] = fresh.get(node.pool, 0) + 1
    for pool, count in fresh.items():
        assert before[pool].drained + count <= before[pool].limit


@given(_pools(), EVIDENCE, st.builds(PolicySettings, st.integers(1, 100)))
def test_the_same_again_decides_the_same(
    present: dict[str, SchedulerNode], evidence: list[Evidence], settings: PolicySettings
) -> None:
    first = policy.decide(NOW, evidence, present, [], settings)
    assert first == policy.decide(NOW, list(reversed(evidence)), dict(reversed(present.items())), [], settings)
