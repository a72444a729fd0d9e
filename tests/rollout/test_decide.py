"""The decision of a rollout: step by step, and in random pools."""

from __future__ import annotations

import random

import pytest

from gpucluster.errors import InputError
from gpucluster.rollout.decide import (
    Change,
    Drain,
    End,
    Prove,
    Release,
    RolloutNode,
    RolloutPolicy,
    TakeBack,
    Wait,
    decide,
)
from gpucluster.rollout.record import RolloutRecord, begin, parse, with_answer, with_outcomes, with_request
from tests.rollout.pool_model import NEW, OLD, ModelNode, PoolModel

SERVES, BUSY = RolloutNode(serves=True), RolloutNode(serves=True, busy=True)
OURS, CLOSING = RolloutNode(False, ours=True), RolloutNode(False, busy=True, ours=True)
THEIRS = RolloutNode(False, reason="loud fan")
POLICY = RolloutPolicy()
FOUR = dict.fromkeys(("n1", "n2", "n3", "n4"), OLD)
HALF = RolloutPolicy(min_capacity=50)


def four(**other: RolloutNode) -> dict[str, RolloutNode]:
    return {**dict.fromkeys(FOUR, SERVES), **other}


def after_canary() -> RolloutRecord:
    return with_outcomes(with_answer(with_request(begin(FOUR, NEW), {"n1": NEW}), ["n1"]), {"n1": ""})


# --- the order of steps -----


def test_the_first_node_is_a_canary_an_idle_one_before_one_with_jobs() -> None:
    assert decide(begin(FOUR, NEW), HALF, four(n1=BUSY)) == Drain(("n2",))


def test_no_other_node_is_drained_before_the_canary_is_proven() -> None:
    record = begin(FOUR, NEW)
    assert decide(record, HALF, four(n2=CLOSING)) == Wait(("n2",))
    assert decide(record, HALF, four(n2=OURS)) == Change({"n2": NEW})
    record = with_request(record, {"n2": NEW})
    assert decide(record, HALF, four(n2=OURS)) == Change({"n2": NEW}), "it was killed before the cloud was asked"
    assert decide(with_answer(record, ["n2"]), HALF, four(n2=OURS)) == Prove(("n2",))


def test_after_the_canary_as_many_leave_as_the_capacity_allows() -> None:
    assert decide(after_canary(), HALF, four()) == Drain(("n2", "n3"))
    assert decide(after_canary(), RolloutPolicy(min_capacity=50, batch=1), four()) == Drain(("n2",))
    assert decide(after_canary(), HALF, four(n1=THEIRS)) == Drain(("n2",))


def test_who_has_ended_its_jobs_does_not_wait_for_the_others() -> None:
    assert decide(after_canary(), HALF, four(n2=CLOSING, n3=OURS)) == Change({"n3": NEW})


def test_never_more_are_changed_at_once_than_may_fail() -> None:
    names = {f"n{number}": OLD for number in range(64)}
    record = with_outcomes(with_request(begin(names, NEW), {"n0": NEW}), {"n0": ""})
    step = decide(record, RolloutPolicy(min_capacity=0, max_failures=3), dict.fromkeys(names, SERVES))
    assert isinstance(step, Drain)
    assert len(step.nodes) == 3


def test_a_failed_canary_gets_its_old_image_and_another_one_is_the_canary() -> None:
    record = with_outcomes(with_answer(with_request(begin(FOUR, NEW), {"n1": NEW}), ["n1"]), {"n1": "no GPU"})
    assert decide(record, HALF, four(n1=OURS)) == Change({"n1": OLD})
    record = with_outcomes(with_answer(with_request(record, {"n1": OLD}), ["n1"]), {"n1": ""})
    assert (record.reverted, record.failed) == (("n1",), {"n1": "no GPU"})
    assert decide(record, HALF, four()) == Drain(("n2",))
    assert record.images == FOUR


def test_a_node_that_does_not_answer_gets_its_old_image_before_others_are_proven() -> None:
    record = with_answer(with_request(after_canary(), {"n2": NEW, "n3": NEW}), ["n3"])
    record = with_outcomes(record, {"n2": "no answer"}, silent=True)
    assert decide(record, HALF, four(n2=OURS, n3=OURS)) == Change({"n2": OLD})
    record = with_outcomes(with_request(record, {"n2": OLD}), {"n2": "no answer"}, silent=True)
    assert decide(record, HALF, four(n2=OURS, n3=OURS)) == End({"n2": "no answer"})


def test_too_many_failures_take_it_back_also_what_had_passed() -> None:
    record = with_outcomes(with_request(after_canary(), {"n2": NEW, "n3": NEW}), {"n2": "no GPU", "n3": "no GPU"})
    record = with_outcomes(with_request(record, {"n2": OLD, "n3": OLD}), {"n2": "", "n3": ""})
    assert decide(record, HALF, four()) == TakeBack("n2: no GPU; n3: no GPU")
    back = RolloutRecord(**{**vars(record), "taking_back": "it is bad"})
    assert decide(back, HALF, four()) == Drain(("n1",))
    assert decide(back, HALF, four(n1=OURS)) == Change({"n1": OLD})
    back = with_outcomes(with_request(back, {"n1": OLD}), {"n1": ""})
    assert decide(back, HALF, four()) == End({})
    assert back.images == FOUR


def test_nodes_that_were_drained_for_it_are_let_in_when_it_is_taken_back() -> None:
    record = RolloutRecord(**{**vars(after_canary()), "taking_back": "it is bad"})
    assert decide(record, HALF, four(n3=CLOSING)) == Release(("n3",))


def test_a_node_that_fails_with_its_old_image_too_stays_drained() -> None:
    record = with_outcomes(with_request(begin(FOUR, NEW), {"n1": NEW}), {"n1": "no GPU"})
    record = with_outcomes(with_request(record, {"n1": OLD}), {"n1": "no GPU"})
    assert record.lost == {"n1": "no GPU"}
    assert decide(record, HALF, four(n1=OURS)) == Drain(("n2",))


# --- what keeps it waiting -----


def test_nodes_that_others_have_drained_are_left_to_them() -> None:
    record = after_canary()
    step = decide(record, HALF, {"n1": SERVES, "n2": THEIRS, "n3": THEIRS, "n4": THEIRS})
    assert step == End({"n2": "loud fan", "n3": "loud fan", "n4": "loud fan"})
    assert decide(begin({"n1": OLD}, NEW), HALF, {}) == End({"n1": "Slurm does not know it"})


def test_a_reservation_is_waited_for() -> None:
    held = RolloutNode(serves=True, reserved=True)
    assert decide(after_canary(), HALF, four(n2=held, n3=held)) == Drain(("n4",))
    step = decide(after_canary(), HALF, four(n2=held, n3=held, n4=held))
    assert step == Wait((), "a reservation holds n2, n3, n4")


def test_without_the_capacity_it_waits_and_names_who_is_out() -> None:
    step = decide(begin(FOUR, NEW), POLICY, four(n4=THEIRS))
    assert isinstance(step, Wait)
    assert "3 of 4 nodes are in service, and 3 must be; out of service: n4 (loud fan)" in step.why


@pytest.mark.parametrize(
    ("percent", "nodes", "required"),
    [(None, 1, 0), (None, 2, 1), (None, 10, 9), (None, 64, 58), (50, 3, 2), (90, 64, 58), (0, 4, 0), (90, 10, 9)],
)
def test_the_capacity_in_nodes(percent: float | None, nodes: int, required: int) -> None:
    assert RolloutPolicy(min_capacity=percent).required(nodes) == required


def test_a_capacity_that_no_node_may_leave_is_refused() -> None:
    RolloutPolicy().check("gpu", 1)
    RolloutPolicy(min_capacity=50).check("gpu", 2)
    with pytest.raises(InputError, match="--min-capacity 50"):
        RolloutPolicy(min_capacity=90).check("gpu", 2)


# --- what is stored -----


def test_a_record_is_read_as_it_was_written_and_a_damaged_one_is_none() -> None:
    record = with_outcomes(with_request(after_canary(), {"n2": NEW}), {"n2": "why"})
    assert parse(record.to_json()) == record
    for text in ("", "{", "[]", '{"format": 2}', '{"format": 1}', record.to_json().replace("before", "later")):
        assert parse(text) is None


def test_a_new_attempt_takes_back_what_the_earlier_one_has_changed() -> None:
    ended = RolloutRecord(**{**vars(after_canary()), "ended": "stopped", "failed": {"n2": "why"}})
    again = begin({**FOUR, "n1": NEW}, NEW, ended)
    assert (again.passed, again.failed, again.ended, again.before) == (("n1",), {}, "", FOUR)
    assert begin({**FOUR, "n1": NEW}, "another", ended).before == {**FOUR, "n1": NEW}


# --- random pools -----


def _pool(seed: int, policy: RolloutPolicy, count: int = 64) -> PoolModel:
    chance = random.Random(seed)
    nodes = {f"n{number:02}": ModelNode(job=chance.choice([0, chance.randint(1, 30)])) for number in range(count)}
    return PoolModel(nodes, policy, chance)


@pytest.mark.parametrize("seed", range(30))
def test_thirty_rollouts_over_64_nodes_a_bad_image_in_ten_of_them(seed: int) -> None:
    """The bad image fails on some nodes alone, so that the canary may pass; the run is killed again and again."""
    pool = _pool(seed, POLICY)
    share = pool.chance.choice([0.1, 0.5, 1.0]) if seed % 3 == 0 else 0.0
    sick = {name for name in pool.nodes if pool.chance.random() < share} if share else set()
    if share:
        sick.update(pool.chance.sample(sorted(pool.nodes), 2))
    how = {name: pool.chance.choice(["silent", "no GPU"]) for name in sick}
    pool.bad = lambda node, image: how.get(node, "") if image == NEW else ""
    pool.killed = lambda: pool.chance.random() < 0.2
    pool.begin()
    end = pool.run()
    assert pool.jobs_killed == 0
    assert pool.lowest >= 58, "at least 90 % of 64"
    assert len(pool.record.failed) == (2 if sick else 0)
    assert {node.image for node in pool.nodes.values()} == {OLD if sick else NEW}
    assert all(not node.reason for node in pool.nodes.values())
    assert end.left == {}
    assert pool.record.images == {name: node.image for name, node in pool.nodes.items()}


@pytest.mark.parametrize("seed", range(40))
def test_bad_hosts_drains_of_others_and_small_pools(seed: int) -> None:
    chance = random.Random(1000 + seed)
    policy = RolloutPolicy(
        min_capacity=chance.choice([None, 0, 25, 50]), max_failures=chance.randint(1, 4), batch=chance.randint(0, 3)
    )
    pool = _pool(seed, policy, count=chance.randint(2, 12))
    broken = {name for name in pool.nodes if chance.random() < 0.15}
    pool.bad = lambda node, _image: "bad memory" if node in broken else ""
    if policy.required(len(pool.nodes)) < len(pool.nodes) - 1:
        pool.nodes["n00"].reason = "loud fan"
    pool.begin()
    serving = sum(node.serves for node in pool.seen().values())
    try:
        pool.run(ticks=2000)
    except AssertionError:
        # Broken hosts hold the capacity that was stated: it waits, and the caller's deadline ends it.
        assert isinstance(pool.steps[-1], Wait)
        assert pool.steps[-1].why
    assert pool.jobs_killed == 0
    assert pool.lowest >= min(serving, policy.required(len(pool.nodes))) - 0
    assert len(pool.record.failed) <= policy.max_failures
    assert pool.nodes["n00"].reason in ("", "loud fan", "rollout")
