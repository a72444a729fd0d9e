"""Details of decisions that no numbered scenario covers. See test_scenarios for the method."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucluster.autoscaler.decide.explain import explain_job, explain_node
from gpucluster.autoscaler.decide.nodes import MAX_HEALED_PER_PASS
from gpucluster.autoscaler.decide.types import (
    Annotate,
    CoolDown,
    Delay,
    Fault,
    Hold,
    Launch,
    Outcome,
    PowerDown,
    Terminate,
)
from gpucluster.node_agent.rules.reasons import from_administrator, from_gpucluster
from tests.autoscaler.builders import (
    BUSY,
    COMING,
    DEAD,
    IDLE,
    LEAVING,
    LOST,
    NOON,
    OFF,
    WAITED_FOR,
    WARMING,
    World,
    job,
    names,
    policy,
    pool,
)

ONE = "gpu-e1"


def failing() -> World:
    """A gang of two of which the second can't be launched; the pass in which it is given up is the last."""
    world = World(policy(gang_retry_window=0))
    world.starts(1, names(1, 2))
    world.reconcile()
    return world


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


@pytest.mark.parametrize("words", ["COMPLETING+CLOUD+POWERING_UP", COMING])
def test_a_job_that_the_list_lacks_is_waited_for(words: str) -> None:
    world = World()
    world.node(ONE, words)
    world.reconcile()
    assert world.plan.actions == ()


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


def test_what_was_just_given_up_is_not_started_again_because_slurm_is_slow() -> None:
    world = failing()
    world.refuses(*names(1, 2), fault=Fault.TRANSIENT)
    world.refuses("gpu-e2")
    world.reconcile(1)
    assert world.the(PowerDown)
    world.policy = replace(world.policy)
    world.memory = replace(world.memory, cool_downs={})
    world.reconcile(5)
    assert world.plan.actions == ()
    world.jobs.clear()
    world.are(names(1, 2), WARMING)
    world.reconcile(15)
    assert not world.launched()
    assert sorted(world.the(PowerDown)[0].nodes) == names(1, 2)


def test_healing_is_spread_over_looks() -> None:
    world = World(policy(pool(names=1200)))
    world.are(names(1, 1200), DEAD, "gpucluster: no capacity")
    world.reconcile()
    assert sum(len(each.nodes) for each in world.the(PowerDown)) == MAX_HEALED_PER_PASS


def test_healing_is_not_asked_for_twice_before_it_can_show() -> None:
    world = World()
    world.are([ONE], DEAD, "gpucluster: no capacity")
    world.reconcile()
    assert [each.nodes for each in world.the(PowerDown)] == [(ONE,)]
    world.reconcile(5)
    assert world.plan.actions == ()
    world.reconcile(11)
    assert [each.nodes for each in world.the(PowerDown)] == [(ONE,)]


@pytest.mark.parametrize("waits", [False, True], ids=["idle", "with a job that waits"])
def test_a_powered_down_node_for_which_slurm_waits_is_healed(waits: bool) -> None:
    world = World()
    world.node(ONE, WAITED_FOR)
    world.node("gpu-e2", WAITED_FOR, "")
    world.node("gpu-e3", OFF)
    if waits:
        world.waits(1)
    world.reconcile()
    assert [sorted(each.nodes) for each in world.the(PowerDown)] == [[ONE, "gpu-e2"]]
    world.reconcile(5)
    assert not world.the(PowerDown)
    world.reconcile(11)
    assert [sorted(each.nodes) for each in world.the(PowerDown)] == [[ONE, "gpu-e2"]]
    world.are([ONE, "gpu-e2"], OFF)
    world.reconcile(60)
    assert world.plan.actions == ()


@pytest.mark.parametrize(
    "words",
    [
        # The drain is an administrator's, and powering down would end it.
        "IDLE+CLOUD+DRAIN+POWERED_DOWN+NOT_RESPONDING",
        # Slurm powers them up.
        "ALLOCATED+CLOUD+POWERED_DOWN+NOT_RESPONDING",
        "IDLE+CLOUD+POWERED_DOWN+POWER_UP+NOT_RESPONDING",
        WARMING,
    ],
)
def test_a_node_that_is_drained_or_wanted_is_not_healed(words: str) -> None:
    world = World()
    world.node(ONE, words, "fan is loud" if "DRAIN" in words else "")
    world.reconcile()
    assert not world.the(PowerDown)


def test_healing_of_nodes_for_which_slurm_waits_is_spread_as_well() -> None:
    world = World(policy(pool(names=1200)))
    world.are(names(1, 1200), WAITED_FOR)
    world.reconcile()
    assert sum(len(each.nodes) for each in world.the(PowerDown)) == MAX_HEALED_PER_PASS


def test_a_node_that_powers_up_again_with_its_old_instance_is_given_its_time_and_then_replaced() -> None:
    world = World()
    world.serve(ONE)
    world.starts(1, [ONE])
    world.reconcile(1)
    assert world.plan.actions == ()
    world.reconcile(300)
    assert world.plan.actions == ()
    world.reconcile(400)
    assert [each.node for each in world.the(Terminate)] == [ONE]


def test_a_node_that_is_off_all_at_once_is_given_a_moment() -> None:
    world = World()
    world.serve(*names(1, 15))
    world.are(names(1, 15), OFF)
    world.reconcile(1)
    world.reconcile(20)
    assert world.plan.actions == ()
    world.reconcile(15)
    assert len(world.the(Terminate)) == 10  # no more at once on this word
    world.reconcile(1)
    assert len(world.the(Terminate)) == 5


def test_an_instance_that_is_being_configured_is_not_hurried() -> None:
    world = World(policy(pool(baked=False)))
    world.starts(1, [ONE])
    world.reconcile()
    world.accepts(ONE, state="RUNNING")
    world.reconcile(1)
    world.reconcile(5)
    assert world.claim(ONE).state == "running"
    world.joining.add(world.claim(ONE).instance_id)
    world.reconcile(500)
    world.reconcile(500)
    assert world.plan.actions == ()
    assert world.claim(ONE).state == "joining"
    world.reconcile(1001)
    assert "was not configured" in world.the(Terminate)[0].why


def test_an_instance_that_is_listed_again_has_no_strikes() -> None:
    world = World()
    world.serve(ONE)
    kept = world.instances.pop("ocid.gpu-e1.1")
    world.reconcile(10)
    world.reconcile(10)
    world.instances[kept.id] = kept
    world.reconcile(10)
    world.instances.clear()
    for _ in range(6):
        world.reconcile(10)
        assert world.plan.actions == ()


def test_an_interactive_job_that_runs_before_its_nodes_are_there_is_a_gang_too() -> None:
    world = World()
    world.starts(1, names(1, 2), state="RUNNING", requeue=False)
    world.reconcile()
    assert sorted(world.launched()) == names(1, 2)
    world.accepts("gpu-e1")
    for _ in range(60):
        world.refuses(*[name for name in world.launched() if name == "gpu-e2"])
        if world.now == world.memory.claims["gpu-e2"].since:
            world.refuses("gpu-e2")
        world.reconcile(5)
        if world.the(PowerDown):
            break
    assert sorted(world.the(PowerDown)[0].nodes) == names(1, 2)


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


def test_a_node_that_did_not_come_up_is_repaired_whatever_its_reason_was_long_ago() -> None:
    world = World()
    world.starts(1, [ONE])
    world.reconcile()
    world.accepts(ONE, state="RUNNING")
    world.reconcile(1)
    world.node(ONE, DEAD, "fan is loud")
    world.reconcile(1)
    assert world.the(PowerDown)


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


def test_a_pool_that_rests_is_shown_on_its_nodes_and_jobs() -> None:
    world = World()
    world.memory = replace(
        world.memory, cool_downs={"gpu": CoolDown("gpu", world.now + 100, Fault.CAPACITY, "500 Out of host capacity")}
    )
    about = explain_node(ONE, world.observation(), world.memory, world.policy, world.now)
    assert any("cools down until 2026-09-21 14:15:00 UTC" in line for line in about)
    assert any(line.startswith("Now: mark down") for line in about)
    world.starts(7, ["gpu-e2"])
    about = explain_job("7", world.observation(), world.memory, world.policy, world.now)
    assert any("Out of host capacity" in line for line in about)
    assert any(line.startswith("Now: delay") for line in about)


def test_a_node_at_rest_is_explained_without_a_note() -> None:
    world = World()
    world.serve("gpu-e2", words=IDLE)
    world.reconcile()
    assert world.plan.notes == ()
    off = explain_node(ONE, world.observation(), world.memory, world.policy, world.now)
    assert "is powered down" in off[0]
    up = explain_node("gpu-e2", world.observation(), world.memory, world.policy, world.now)
    assert "is in service" in up[0]
    assert any("ocid.gpu-e2.1" in line for line in up)
    nobody = explain_node("nobody", world.observation(), world.memory, world.policy, world.now)
    assert nobody == ("Slurm lists no node nobody",)


def test_a_node_that_is_down_and_not_reserved_is_lost_only_once() -> None:
    world = World()
    world.serve(ONE)
    world.becomes(ONE, "TERMINATED")
    world.node(ONE, BUSY)
    world.reconcile(1)
    assert world.the(PowerDown)
    world.node(ONE, LOST, "gpucluster: its instance is gone")
    world.reconcile(1)
    assert world.the(PowerDown)
    world.node(ONE, LEAVING)
    world.reconcile(60)
    assert world.plan.actions == ()
    assert not world.the(Launch)
