"""Launches of a gang: all of it or nothing, and what is sent again. See scenario_steps for the method."""

from __future__ import annotations

import pytest

from gpucluster.autoscaler.decide.types import (
    Delay,
    Fault,
    Launch,
    Outcome,
    PowerDown,
    Terminate,
)
from tests.autoscaler.builders import (
    COMING,
    IDLE,
    LEAVING,
    NOON,
    OFF,
    World,
    job,
    names,
    policy,
)
from tests.autoscaler.decide.scenario_steps import ONE, retry_until_given_up


def test_scenario_01_all_launches_work_and_nothing_is_left_afterwards() -> None:
    world, gang = World(), names(1, 16)
    world.starts(1, gang)
    world.reconcile()
    assert sorted(world.launched()) == sorted(gang)
    assert all(
        launch.generation == 1 and launch.pool == "gpu" and "job 1" in launch.why for launch in world.the(Launch)
    )
    world.reconcile(1)
    assert world.plan.actions == ()  # they are in flight
    world.accepts(*gang)
    world.reconcile(3)
    world.runs(*gang)
    world.jobs["1"] = job(1, gang, state="RUNNING")
    world.reconcile(60)
    assert world.plan.actions == ()
    assert not world.memory.gangs
    world.reconcile(1)
    assert world.plan.memory is world.memory
    del world.jobs["1"]
    world.are(gang, IDLE)
    world.reconcile(500)
    assert world.plan.actions == ()  # how long a node idles is Slurm's to count
    world.are(gang, LEAVING)
    world.reconcile(100)
    assert sorted(each.node for each in world.the(Terminate)) == sorted(gang)
    assert all(each.unless_wanted for each in world.the(Terminate))
    world.reconcile(1)
    assert not world.plan.actions  # asked once, not in every pass
    for name in gang:
        world.becomes(name, "TERMINATED")
    world.are(gang, OFF)
    world.reconcile(60)
    assert world.plan.actions == ()
    assert not world.memory.claims


def test_scenario_02_the_missing_one_comes_within_the_window() -> None:
    world, gang = World(), names(1, 4)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang[:3])
    world.refuses(gang[3])
    world.reconcile(1)
    assert not world.launched()
    world.reconcile(15)
    assert world.launched() == [gang[3]]
    assert world.the(Launch)[0].generation == 2
    world.accepts(gang[3])
    world.reconcile(1)
    world.runs(*gang)
    world.reconcile(60)
    assert world.plan.actions == ()
    assert {world.claim(name).state for name in gang} == {"up"}


@pytest.mark.parametrize("by", ["the record of the work", "the listing"])
def test_scenario_03_capacity_that_fails_late_is_capacity_that_fails(by: str) -> None:
    world, gang = World(), names(1, 4)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang)
    world.reconcile(2)
    world.becomes(gang[0], "TERMINATED")
    if by == "the record of the work":
        claim = world.claim(gang[0])
        world.outcomes.append(Outcome(claim.token, gang[0], claim.instance_id, Fault.CAPACITY, "Out of host capacity"))
    world.reconcile(5)
    assert world.claim(gang[0]).fault == Fault.CAPACITY
    assert retry_until_given_up(world, gang[:1]) >= 2
    assert sorted(world.the(PowerDown)[0].nodes) == sorted(gang)
    assert world.the(Delay)


def test_scenario_05_a_throttled_launch_stays_in_flight_and_is_not_asked_for_again() -> None:
    world, gang = World(), names(1, 16)
    world.starts(1, gang)
    calls = len(world.reconcile().actions)
    for _ in range(60):
        calls += len(world.reconcile(10).actions)
    assert calls == 16
    world.accepts(*gang)
    world.reconcile(1)
    assert world.plan.actions == ()


def test_scenario_08_a_launch_without_an_answer_is_taken_over_when_it_is_listed() -> None:
    world = World()
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    first = world.the(Launch)[0]
    world.refuses("gpu-e1", fault=Fault.TRANSIENT, message="timeout")
    world.instance("gpu-e1", "PROVISIONING", 1)
    world.reconcile(1)
    assert not world.plan.actions
    assert world.claim("gpu-e1").instance_id == "ocid.gpu-e1.1"
    assert world.claim("gpu-e1").token == first.token


def test_scenario_08_a_launch_without_an_answer_is_sent_again_with_the_same_token() -> None:
    world = World()
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    first = world.the(Launch)[0]
    world.refuses("gpu-e1", fault=Fault.TRANSIENT, message="timeout")
    world.reconcile(1)
    assert not world.launched()
    world.reconcile(15)
    (again,) = world.the(Launch)
    assert (again.token, again.generation) == (first.token, first.generation)
    world.refuses("gpu-e1", fault=Fault.TRANSIENT, message="409 InvalidatedRetryToken: the token is used up")
    world.reconcile(1)
    (new,) = world.the(Launch)
    assert new.generation == 2
    assert new.token != first.token


def test_scenario_21_nodes_that_two_jobs_share_are_launched_once() -> None:
    world = World()
    world.starts(1, ["gpu-e1", "gpu-e2"])
    world.starts(2, ["gpu-e2", "gpu-e3"])
    world.reconcile()
    assert sorted(world.launched()) == ["gpu-e1", "gpu-e2", "gpu-e3"]
    assert world.claim("gpu-e2").jobs == ("1", "2")
    world.reconcile(1)
    assert not world.launched()


def test_scenario_21_a_launch_for_two_jobs_without_an_answer_is_sent_again_once() -> None:
    world = World()
    world.starts(1, ["gpu-e1"])
    world.starts(2, ["gpu-e1"])
    world.reconcile()
    assert world.launched() == ["gpu-e1"]
    world.in_flight.clear()  # the answer was lost
    world.reconcile(5)
    assert world.launched() == ["gpu-e1"]


def test_scenario_30_fewer_instances_than_were_asked_for_is_a_gang_that_failed() -> None:
    world, gang = World(policy(gang_retry_window=0)), names(1, 4)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang[:2])
    world.reconcile(300)
    assert world.plan.actions == ()  # two are still queued: no busy loop
    world.refuses(*gang[2:])
    world.reconcile(1)
    assert sorted(world.the(PowerDown)[0].nodes) == gang


def test_an_answer_to_an_older_launch_reports_nothing_about_the_present_one() -> None:
    world = World()
    world.starts(1, [ONE])
    world.reconcile()
    world.outcomes.append(Outcome("older", ONE, "", Fault.CONFIGURATION, "400 InvalidParameter"))
    world.reconcile(1)
    assert world.plan.actions == ()
    assert world.claim(ONE).state == "intended"


def test_a_cloud_that_never_gives_a_clear_answer_is_not_asked_for_ever() -> None:
    world = World()
    world.starts(1, [ONE])
    world.reconcile()
    for _ in range(300):
        world.refuses(*world.launched(), fault=Fault.TRANSIENT, message="502 bad gateway")
        world.reconcile(10)
        if world.the(PowerDown):
            break
    assert 1500 <= world.now - NOON <= 1600
    assert "no clear answer" in world.the(Delay)[0].why


def test_a_gang_is_not_begun_before_slurm_powers_all_of_it_up() -> None:
    world = World()
    world.starts(1, names(1, 4))
    world.node("gpu-e4", "ALLOCATED+CLOUD+POWERED_DOWN")
    world.reconcile()
    assert world.plan.actions == ()
    assert "gpu-e4" in world.said()
    world.node("gpu-e4", COMING)
    world.reconcile(1)
    assert sorted(world.launched()) == names(1, 4)
