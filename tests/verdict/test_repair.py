"""What follows for nodes that failed: by cases, and by properties over all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.controller.health.policy import Action
from gpucluster.measuring.plan import nodes_of
from gpucluster.node_agent.checks.model import Check, CheckOutcome, Finding, Profile, Reaction, Scope, Status
from gpucluster.verdict.repair import (
    HealthDecision,
    NodeInRepair,
    RepairPlan,
    Standing,
    Touched,
    deciding,
    failures_by_node,
    merged,
    plan,
    touched,
)


def check(name: str, scope: Scope, reaction: Reaction = Reaction.DRAIN) -> Check[Any]:
    def judge(_measured: object, _expected: object, _subject: str) -> CheckOutcome:
        return CheckOutcome(Status.PASS, "")

    return Check(name, name, scope, [Profile.QUICK], (), 1.0, "", reaction, judge)


CHECKS: Mapping[str, Check[Any]] = {
    each.name: each
    for each in (
        check("gpu_count", Scope.NODE),
        check("home_share", Scope.HOST),
        check("clock", Scope.NODE, Reaction.REPORT),
        check("nccl_pair", Scope.PAIR),
        check("pool_ready", Scope.POOL),
        check("accounting", Scope.CLUSTER),
    )
}


def found(name: str, subject: str, status: Status = Status.FAIL) -> Finding:
    return Finding(name, subject, status, "seven of eight")


def node(name: str, standing: Standing = Standing.SERVING, reason: str = "") -> NodeInRepair:
    return NodeInRepair(name, name.partition("-")[0], "-e" in name, standing, reason)


def decided(name: str, action: Action, *, done: bool = True, reason: str = "because") -> HealthDecision:
    return HealthDecision(name, action, done, reason, ("gpu_count",))


def planned(
    *nodes: NodeInRepair, failed: str = "", told: bool = False, decisions: tuple[HealthDecision, ...] = ()
) -> RepairPlan:
    accuses = {name: [found("gpu_count", name)] for name in failed.split()}
    return plan({each.name: each for each in nodes}, accuses, decisions, replace_permanent=told)


# --- the nodes of findings -----


def test_only_a_failed_check_of_one_node_that_drains_accuses_it() -> None:
    findings = [
        found("gpu_count", "c-1"),
        found("home_share", "c-1"),
        found("gpu_count", "c-2", Status.UNKNOWN),
        found("gpu_count", "c-3", Status.WARN),
        found("clock", "c-4"),
        found("nccl_pair", "c-5 and c-6"),
        found("pool_ready", "c"),
        found("accounting", ""),
        found("never_heard_of", "c-7"),
    ]
    assert failures_by_node(findings, CHECKS) == {"c-1": findings[:2]}
    # The service is told what passes, too: a check that no node of a pool passes is itself the suspect.
    findings.append(found("gpu_count", "c-8", Status.PASS))
    assert deciding(findings, CHECKS) == (*findings[:2], findings[-1])


# --- what follows -----


def test_an_elastic_node_that_the_service_has_drained_is_given_up() -> None:
    assert planned(node("c-e1", Standing.FAILED), failed="c-e1").elastic == ("c-e1",)
    # Drained by an earlier run that was killed: Slurm reports it, no finding of this run is needed.
    assert planned(node("c-e1", Standing.FAILED)).elastic == ("c-e1",)


def test_a_permanent_node_is_recreated_only_where_that_was_requested() -> None:
    bad = node("c-1", Standing.FAILED, "gpucluster: check failed: gpu_count: seven of eight")
    assert planned(bad, failed="c-1", told=True).permanent == ("c-1",)
    left = planned(bad, failed="c-1")
    assert left.replaced == ()
    assert str(left.left[0]).endswith("Next: gpucluster replace c-1")
    assert "what is on its disks is lost" in str(left.left[0])


@pytest.mark.parametrize(
    ("given_", "decision", "words"),
    [
        (node("c-e1", Standing.PERSON, "gpucluster: check failed again, a person decides: gpu_count"),
         decided("c-e1", Action.PERSON), "state=resume"),
        (node("c-e1", Standing.OTHER, "broken fan"), decided("c-e1", Action.NONE), "broken fan"),
        # The decision states that it is drained, and Slurm that an operator has done something else since.
        (node("c-e1", Standing.OTHER, "mine"), decided("c-e1", Action.DRAIN), "mine"),
        (node("c-e1"), decided("c-e1", Action.NONE, done=False, reason="the breaker is open"), "the breaker is open"),
        (node("c-e1"), None, "has decided nothing"),
    ],
)  # fmt: skip
def test_what_the_service_has_not_drained_is_left_with_the_next_command(
    given_: NodeInRepair, decision: HealthDecision | None, words: str
) -> None:
    result = planned(given_, failed="c-e1", told=True, decisions=(decision,) if decision else ())
    assert result.replaced == result.would == ()
    assert words in str(result.left[0])
    assert "gpucluster replace c-e1" in str(result.left[0])


def test_a_node_that_slurm_does_not_know_is_left() -> None:
    assert "Slurm does not know it" in str(planned(failed="demo-controller").left[0])


def test_in_shadow_mode_it_is_reported_and_nothing_follows() -> None:
    decisions = (decided("c-e1", Action.SHADOW, done=False), decided("c-1", Action.SHADOW, done=False))
    result = planned(node("c-e1"), node("c-1"), failed="c-e1 c-1", decisions=decisions)
    assert (result.would, result.replaced) == (("c-e1",), ())
    assert [each.node for each in result.left] == ["c-1"]
    assert "c-e1: would be replaced" in result.lines()
    assert json.loads(json.dumps(result.to_dict())) == {
        "elastic": [],
        "permanent": [],
        "would": ["c-e1"],
        "undrained": [],
        "left": [{"node": "c-1", "why": "because", "next": "gpucluster replace c-1"}],
    }


def test_in_shadow_mode_a_drained_node_whose_checks_pass_is_not_reported_as_replaced() -> None:
    decision = decided("c-e1", Action.SHADOW, done=False, reason="would be undrained")
    result = planned(node("c-e1", Standing.FAILED), decisions=(decision,))
    assert (result.replaced, result.would) == ((), ())
    assert "would be undrained" in str(result.left[0])


def test_a_node_whose_checks_pass_again_is_not_replaced() -> None:
    result = planned(node("c-1"), told=True, decisions=(decided("c-1", Action.UNDRAIN),))
    assert result == RepairPlan(undrained=("c-1",))
    # Asked for, and Slurm has not done it.
    late = planned(node("c-1", Standing.FAILED), decisions=(decided("c-1", Action.UNDRAIN, done=False),))
    assert late.undrained == ()


NAMES = ["c-1", "c-2", "c-e1", "c-e2", "d-e1"]
NODES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(Standing)).map(
    lambda chosen: {name: node(name, standing, "why") for name, standing in chosen.items()}
)
DECISIONS = st.lists(
    st.builds(decided, st.sampled_from(NAMES), st.sampled_from(Action), done=st.booleans()), unique_by=lambda x: x.node
)


@given(NODES, st.sets(st.sampled_from(NAMES)), DECISIONS, st.booleans())
def test_nothing_is_replaced_that_the_service_has_not_drained(
    nodes: Mapping[str, NodeInRepair], failed: set[str], decisions: list[HealthDecision], told: bool
) -> None:
    result = plan(nodes, {name: [found("gpu_count", name)] for name in failed}, decisions, replace_permanent=told)
    for name in result.replaced:
        assert nodes[name].standing is Standing.FAILED
    assert all(nodes[name].elastic for name in result.elastic)
    assert not result.permanent or told
    # Each node that is not good is in exactly one place, and no other node is anywhere.
    named = [*result.replaced, *result.would, *result.undrained, *(each.node for each in result.left)]
    assert len(named) == len(set(named))
    bad = {name for name, each in nodes.items() if each.standing in (Standing.FAILED, Standing.PERSON)}
    assert {*failed, *bad} <= set(named) <= {*failed, *bad, *(each.node for each in decisions)}
    assert all(each.next.startswith("gpucluster ") for each in result.left)


# --- what is checked again -----


def test_what_a_replacement_touches() -> None:
    part = touched(RepairPlan(elastic=("c-e1",), permanent=("c-1",)), {"c-e1": "c", "c-1": "c", "d-1": "d"})
    assert part == Touched(frozenset({"c-e1", "c-1"}), frozenset({"c"}), frozenset({"c-e1"}))
    assert part.covers("c-1", Scope.NODE)
    assert part.covers("c-2 and c-1", Scope.PAIR)
    assert part.covers("c", Scope.POOL)
    assert part.covers("", Scope.CLUSTER)
    assert not part.covers("c-10", Scope.NODE)
    assert not part.covers("d-1 and d-2", Scope.PAIR)
    assert not part.covers("d", Scope.POOL)
    assert not Touched().covers("", Scope.CLUSTER)


def test_old_findings_hold_only_where_nothing_was_touched() -> None:
    before = [
        found("gpu_count", "c-1"),
        found("gpu_count", "c-e1"),
        found("gpu_count", "d-1", Status.PASS),
        found("nccl_pair", "c-1 and c-2", Status.PASS),
        found("nccl_pair", "d-1 and d-2", Status.PASS),
        found("pool_ready", "c"),
    ]
    after = [found("gpu_count", "c-1", Status.PASS), found("pool_ready", "c", Status.PASS), found("clock", "c-1")]
    part = Touched(frozenset({"c-1", "c-e1"}), frozenset({"c"}), frozenset({"c-e1"}))
    result = {(each.check, each.subject): each.status for each in merged(before, after, part, CHECKS)}
    assert result == {
        ("gpu_count", "c-1"): Status.PASS,
        ("gpu_count", "d-1"): Status.PASS,
        # It was not measured since: not known, so the verdict is not a pass.
        ("nccl_pair", "c-1 and c-2"): Status.UNKNOWN,
        ("nccl_pair", "d-1 and d-2"): Status.PASS,
        ("pool_ready", "c"): Status.PASS,
        ("clock", "c-1"): Status.FAIL,
    }


SUBJECTS = {Scope.NODE: NAMES, Scope.HOST: NAMES, Scope.PAIR: ["c-1 and c-2", "c-e1 and c-2"], Scope.POOL: ["c", "d"]}
FINDINGS = st.lists(
    st.sampled_from(list(CHECKS.values())).flatmap(
        lambda each: st.builds(
            found, st.just(each.name), st.sampled_from(SUBJECTS.get(each.scope, [""])), st.sampled_from(Status)
        )
    ),
    unique_by=lambda each: (each.check, each.subject),
)


@given(FINDINGS, FINDINGS, st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)))
def test_no_result_from_before_a_replacement_counts_for_what_it_touched(
    before: list[Finding], after: list[Finding], permanent: set[str], elastic: set[str]
) -> None:
    pool_of = {name: name.partition("-")[0] for name in NAMES}
    part = touched(RepairPlan(elastic=tuple(elastic - permanent), permanent=tuple(permanent)), pool_of)
    result = merged(before, after, part, CHECKS)
    assert len({(each.check, each.subject) for each in result}) == len(result)
    assert all(each in result for each in after)
    for each in result:
        if each not in after and part.covers(each.subject, CHECKS[each.check].scope):
            assert each.status is Status.UNKNOWN
            assert not part.gone & set(nodes_of(each.subject))
