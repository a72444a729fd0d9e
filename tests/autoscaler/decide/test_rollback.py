"""What becomes of a gang that has to wait: its jobs, its nodes, its next start. See scenario_steps for the method."""

from __future__ import annotations

import time

import pytest

from gpucluster.autoscaler.decide.types import (
    Annotate,
    Delay,
    Fault,
    Hold,
    MarkDown,
    PowerDown,
    Terminate,
)
from gpucluster.autoscaler.policy import MAX_ATTEMPTS
from tests.autoscaler.builders import (
    BUSY,
    IDLE,
    LEAVING,
    NOON,
    OFF,
    World,
    job,
    names,
    policy,
    pool,
)
from tests.autoscaler.decide.scenario_steps import LIMIT, ONE, failing, requeued, retry_until_given_up


def test_scenario_39_times_are_shown_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        world = World(policy(gang_retry_window=0))
        world.starts(1, ["gpu-e1"])
        world.reconcile()
        world.refuses("gpu-e1")
        world.reconcile(1)
        assert "2026-09-21 14:18:22 UTC" in world.the(Delay)[0].why  # the pool rests for five minutes from 14:13:21
    finally:
        monkeypatch.undo()
        time.tzset()


def test_scenario_42_a_heterogeneous_job_is_rolled_back_as_one() -> None:
    world = World(policy(pool("gpu"), pool("cpu", partition="cpu"), gang_retry_window=0))
    world.starts(10, names(1, 2), gang="10")
    world.starts(11, names(1, 2, "cpu-e"), gang="10", partitions=("cpu",))
    world.serve("cpu-e9", words=BUSY)
    world.jobs["12"] = job(12, ["cpu-e9"], gang="10", partitions=("cpu",))
    world.reconcile()
    world.accepts(*names(1, 2), "cpu-e1")
    world.refuses("cpu-e2")
    world.reconcile(1)
    assert sorted(world.the(PowerDown)[0].nodes) == ["cpu-e1", "cpu-e2", "gpu-e1", "gpu-e2"]
    assert sorted(delay.job for delay in world.the(Delay)) == ["10", "11", "12"]
    assert set(world.memory.cool_downs) == {"cpu"}


def test_a_start_time_that_did_not_take_is_put_right() -> None:
    world = World(policy(gang_retry_window=0))
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    world.refuses("gpu-e1")
    world.reconcile(1)
    until = world.the(Delay)[0].until
    world.node("gpu-e1", LEAVING)
    world.waits(1, reason="BeginTime", eligible_at=world.now + 31)
    world.reconcile(6)
    assert [delay.until for delay in world.the(Delay)] == [until]
    world.reconcile(1)
    assert not world.the(Delay)
    world.waits(1, reason="BeginTime", eligible_at=until)
    world.reconcile(10)
    assert not world.the(Delay)


def test_scenario_02_one_launch_of_sixteen_without_capacity_rolls_the_whole_gang_back() -> None:
    world, gang = World(), names(1, 16)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang[:15])
    world.refuses(gang[15])
    launches = retry_until_given_up(world, gang[15:])
    assert 3 <= launches <= 12
    assert 120 <= world.now - NOON <= 135
    (given_up,) = world.the(PowerDown)
    assert sorted(given_up.nodes) == sorted(gang)
    (delay,) = world.the(Delay)
    assert delay.job == "1"
    assert delay.until > world.now + 60
    assert "Out of host capacity" in delay.why
    assert "try 1 of 5" in delay.why
    assert " UTC" in delay.why
    order = [type(action) for action in world.plan.actions]
    assert order.index(MarkDown) < order.index(PowerDown) < order.index(Delay)
    requeued(world, 1, gang, eligible_at=delay.until)
    world.reconcile(1)
    assert sorted(each.node for each in world.the(Terminate)) == sorted(gang[:15])
    for name in gang:
        world.becomes(name, "TERMINATED")
    world.are(gang, OFF)
    world.reconcile(60)
    assert not world.memory.claims
    assert world.gang(1).attempts == 1


def test_scenario_02_each_time_the_wait_doubles_and_at_last_the_job_is_held() -> None:
    world, waits = World(policy(backoff=1000)), []
    for attempt in range(1, MAX_ATTEMPTS + 1):
        world.starts(1, names(1, 2))
        world.reconcile(5000)
        world.are(names(3, 40), OFF)
        world.refuses(*world.launched())
        retry_until_given_up(world, names(1, 2))
        if attempt < MAX_ATTEMPTS:
            waits.append(world.the(Delay)[0].until - world.now)
        requeued(world, 1, names(1, 2))
        world.reconcile(1)
        world.are(names(1, 40), OFF)
        world.reconcile(200)
    assert waits[0] < waits[1]
    assert all(1000 <= wait <= 3600 * 1.3 for wait in waits)
    assert [hold.job for hold in world.the(Hold)] or world.gang(1).held
    assert "release it" in world.gang(1).message


def test_scenario_06_a_limit_is_shown_on_the_job_and_at_last_it_is_held() -> None:
    world = World()
    for attempt in range(1, MAX_ATTEMPTS + 1):
        world.starts(1, ["gpu-e1"])
        world.reconcile()
        assert world.launched() == ["gpu-e1"]
        world.refuses("gpu-e1", fault=Fault.LIMIT, message=LIMIT)
        world.reconcile(1)
        if attempt < MAX_ATTEMPTS:
            (delay,) = world.the(Delay)
            assert delay.until >= world.now + 600
            assert "limit or quota" in delay.why
            assert "gpu4-count" in delay.why
        world.are(names(1, 40), OFF)
        world.waits(1)
        world.now += 2000
    assert [hold.job for hold in world.the(Hold)] == ["1"]


def test_a_job_that_slurm_will_not_run_again_is_told_before_it_ends() -> None:
    world = World(policy(gang_retry_window=0))
    world.starts(1, names(1, 2), requeue=False)
    world.reconcile()
    world.refuses(*names(1, 2))
    world.reconcile(1)
    kinds = [type(action) for action in world.plan.actions]
    assert kinds.index(Annotate) < kinds.index(PowerDown)
    assert "--no-requeue" in world.the(Annotate)[0].why
    assert not world.the(Delay)


def test_siblings_that_are_in_service_already_are_given_back_with_their_gang() -> None:
    world = failing()
    world.accepts("gpu-e1")
    world.reconcile(1)
    world.runs("gpu-e1")
    world.serve("gpu-e9")
    world.jobs["1"] = job(1, ["gpu-e1", "gpu-e2", "gpu-e9"])
    world.reconcile(1)
    world.refuses("gpu-e2")
    world.reconcile(1)
    assert sorted(world.the(PowerDown)[0].nodes) == ["gpu-e1", "gpu-e2"]  # gpu-e9 was there before


def test_a_gang_that_comes_again_must_pass_the_gates_again() -> None:
    world = World(policy(pool(max_nodes=2)))
    world.starts(1, names(1, 2))
    world.reconcile()
    assert world.gang(1).admitted_at
    world.are(names(1, 2), OFF)  # Slurm lost a node and requeued the job
    world.waits(1, node_count=2)
    world.in_flight.clear()
    world.reconcile(1)
    assert not world.gang(1).admitted_at
    world.starts(2, names(5, 6))
    world.reconcile(200)
    assert sorted(world.launched()) == names(5, 6)
    world.starts(1, names(1, 2))
    world.reconcile(1)
    assert not world.launched()
    assert world.the(Delay)


def test_a_gang_that_is_refused_again_waits_longer() -> None:
    world, waits = World(policy(pool(max_nodes=1))), []
    world.serve("gpu-e9", words=IDLE)
    for _ in range(4):
        world.starts(1, [ONE])
        world.reconcile()
        waits.append(world.the(Delay)[0].until - world.now)
        world.are([ONE], OFF)
        world.waits(1)
        world.reconcile(600)
    assert waits == sorted(waits)
    assert waits[-1] > 4 * waits[0]


def test_a_held_job_that_was_released_is_tried_again() -> None:
    world = failing()
    world.refuses("gpu-e2", fault=Fault.CONFIGURATION, message="400 InvalidParameter: subnetId")
    world.reconcile(1)
    assert world.the(Hold)
    world.are(names(1, 40), OFF)
    world.waits(1, reason="JobHeldAdmin")
    world.in_flight.clear()  # what was queued is not sent
    world.reconcile(700)
    assert not world.the(Hold)
    world.starts(1, names(1, 2))
    world.reconcile(1)
    assert sorted(world.launched()) == names(1, 2)
    assert not world.gang(1).held


def test_a_hold_that_had_no_effect_is_sent_again() -> None:
    world = failing()
    world.refuses("gpu-e2", fault=Fault.CONFIGURATION, message="400 InvalidParameter: subnetId")
    world.reconcile(1)
    world.are(names(1, 2), LEAVING)
    world.waits(1, reason="BeginTime", eligible_at=world.now + 31)
    world.reconcile(6)
    assert [hold.job for hold in world.the(Hold)] == ["1"]


def test_scenario_21_a_shared_node_that_fails_takes_both_gangs_with_it() -> None:
    world = World(policy(gang_retry_window=0))
    world.starts(1, ["gpu-e1", "gpu-e2"])
    world.starts(2, ["gpu-e2", "gpu-e3"])
    world.reconcile()
    world.accepts("gpu-e1", "gpu-e3")
    world.refuses("gpu-e2")
    world.reconcile(1)
    assert not world.launched()
    assert sorted(name for each in world.the(PowerDown) for name in each.nodes) == ["gpu-e1", "gpu-e2", "gpu-e3"]
    assert sorted(delay.job for delay in world.the(Delay)) == ["1", "2"]
    # Only the first has met the cloud's refusal; the other waits, and reports it.
    said = {delay.job: delay.why for delay in world.the(Delay)}
    assert "no free host" in said["1"]
    assert "it shares nodes with job 1, which has to wait" in said["2"]
    assert "no free host" not in said["2"]
    assert (world.gang(1).attempts, world.gang(2).attempts) == (1, 0)


def test_scenario_21_a_gang_that_fails_leaves_the_nodes_it_shares_to_the_other() -> None:
    world = World(policy(gang_retry_window=0))
    world.starts(1, ["gpu-e1", "gpu-e2"])
    world.starts(2, ["gpu-e2", "gpu-e3"])
    world.reconcile()
    world.accepts("gpu-e2", "gpu-e3")
    world.refuses("gpu-e1")
    world.reconcile(1)
    assert world.the(PowerDown)[0].nodes == ("gpu-e1",)
    assert [delay.job for delay in world.the(Delay)] == ["1"]
