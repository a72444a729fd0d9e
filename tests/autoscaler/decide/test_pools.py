"""Cool-downs of pools, what ends them, and instances that belong to no node. See scenario_steps for the method."""

from __future__ import annotations

import itertools
from dataclasses import replace

from gpucluster.autoscaler.decide.explain import explain_job, explain_node
from gpucluster.autoscaler.decide.types import (
    Annotate,
    CoolDown,
    Delay,
    Fault,
    Hold,
    MarkDown,
    PowerDown,
    SaveConsole,
    Terminate,
)
from gpucluster.autoscaler.policy import MAX_ORPHANS_PER_PASS
from gpucluster.node_agent.rules import reasons
from tests.autoscaler.builders import (
    DEAD,
    OFF,
    World,
    names,
    policy,
    pool,
)
from tests.autoscaler.decide.scenario_steps import LIMIT, ONE, requeued, retry_until_given_up

BAD_IMAGE = "404 NotAuthorizedOrNotFound: imageId ocid1.image.oc1..gone was not found"


def test_scenario_04_the_other_pool_of_the_partition_takes_over() -> None:
    world = World(policy(pool("one"), pool("two", availability_domain="AD-2")))
    gang = names(1, 4, "one-e")
    world.starts(1, gang)
    world.reconcile()
    world.refuses(*gang)
    retry_until_given_up(world, gang)
    (marked,) = world.the(MarkDown)
    assert set(marked.nodes) == set(names(5, 40, "one-e"))
    assert marked.why.startswith("gpucluster: ")
    assert not world.the(Delay)  # nothing is to be waited for
    assert [tell.job for tell in world.the(Annotate)] == ["1"]
    assert "another pool" in world.the(Annotate)[0].why
    world.are(names(5, 40, "one-e"), DEAD, marked.why)
    requeued(world, 1, gang)
    world.reconcile(1)
    world.are(gang, OFF)
    world.reconcile(31)
    assert set(world.the(MarkDown)[0].nodes) == set(gang)
    world.are(gang, DEAD, marked.why)
    there = names(1, 4, "two-e")
    world.starts(1, there)
    world.reconcile(1)
    assert sorted(world.launched()) == there
    assert not world.the(PowerDown)


def test_scenario_04_a_cool_down_ends_with_one_try_and_then_for_all() -> None:
    world = World(policy(pool(max_nodes=40)))
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    world.refuses("gpu-e1")
    retry_until_given_up(world, ["gpu-e1"])
    over = world.memory.cool_downs["gpu"].until
    assert over == world.now + 300
    world.are(names(1, 40), DEAD, world.the(MarkDown)[0].why)
    world.jobs = {}
    world.reconcile(200)
    assert not world.plan.actions
    world.now = over
    world.reconcile(1)
    assert sum(len(each.nodes) for each in world.the(PowerDown)) == 40  # healed
    world.are(names(1, 40), OFF)
    world.reconcile(60)
    world.starts(2, ["gpu-e2"], priority=10)
    world.starts(3, ["gpu-e3"], priority=20)
    world.reconcile(1)
    assert world.launched() == ["gpu-e3"]
    assert [delay.job for delay in world.the(Delay)] == ["2"]
    world.accepts("gpu-e3", state="RUNNING")
    world.are(["gpu-e2"], OFF)
    world.jobs.pop("2")
    world.reconcile(30)
    assert not world.memory.cool_downs
    world.starts(4, ["gpu-e4"])
    world.reconcile(1)
    assert world.launched() == ["gpu-e4"]


def test_scenario_04_a_cool_down_that_fails_again_is_longer() -> None:
    world = World(policy(gang_retry_window=0))
    lengths = []
    for number in (1, 2, 3):
        world.starts(number, ["gpu-e1"])
        world.reconcile()
        world.refuses("gpu-e1")
        world.reconcile(1)
        lengths.append(world.memory.cool_downs["gpu"].until - world.now)
        world.jobs.clear()
        world.are(["gpu-e1"], OFF)
        world.now = world.memory.cool_downs["gpu"].until + 1
        world.reconcile()
    assert lengths == [300, 600, 1200]


def test_scenario_06_a_limit_is_not_tried_again_for_ten_minutes() -> None:
    world = World(policy(limit_cool_down=600))
    attempts = []
    for number in range(1, 40):
        node = f"gpu-e{number}"
        world.starts(number, [node])
        world.reconcile(30)
        attempts += [world.now for _ in world.launched()]
        world.refuses(*world.launched(), fault=Fault.LIMIT, message=LIMIT)
        world.reconcile(1)
        assert world.the(PowerDown) or number > 1
        world.are([node], OFF)
        world.jobs.clear()
        world.reconcile(20)
    assert all(later - earlier >= 600 for earlier, later in itertools.pairwise(attempts))
    assert 2 <= len(attempts) <= 4


def test_scenario_07_a_fault_of_configuration_opens_the_breaker_after_one_gang() -> None:
    world, gang = World(), names(1, 8)
    world.starts(1, gang, priority=2)
    world.reconcile()
    world.refuses(gang[0], fault=Fault.CONFIGURATION, message=BAD_IMAGE)
    world.reconcile(1)
    (hold,) = world.the(Hold)
    assert "imageId" in hold.why
    assert sorted(world.the(PowerDown)[0].nodes) == sorted(gang)
    # the launches that are still queued are not sent: their claims are no longer intended
    assert not any(claim.state == "intended" for claim in world.memory.claims.values())
    requeued(world, 1, gang, reason="JobHeldAdmin")
    world.starts(2, ["gpu-e9"])
    world.reconcile(1)
    assert not world.launched()
    assert "imageId" in world.the(Delay)[0].why
    lines = explain_job("1", world.observation(), world.memory, world.policy, world.now)
    assert any("imageId" in line for line in lines)


def test_scenario_16_the_third_in_a_row_protects_the_pool() -> None:
    world, gang = World(), names(1, 3)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang, state="RUNNING")
    world.reconcile(2)
    world.reconcile(700)
    assert len(world.the(SaveConsole)) == 3
    assert world.memory.cool_downs["gpu"].fault == Fault.BOOT
    assert sorted(world.the(PowerDown)[0].nodes) == gang
    assert "3 nodes in a row did not come into service" in world.the(Delay)[0].why
    assert world.the(Delay)[0].until > world.now + 3600
    world.jobs.clear()
    world.are(gang, OFF)
    world.starts(2, ["gpu-e9"])
    world.reconcile(10)
    assert not world.launched()


def test_scenario_16_a_node_that_registers_ends_the_row() -> None:
    world = World()
    for number in (1, 2, 3, 4):
        name = f"gpu-e{number}"
        world.starts(number, [name])
        world.reconcile()
        world.accepts(name, state="RUNNING")
        world.reconcile(1)
        if number == 2:
            world.runs(name)
        world.reconcile(700)
        world.instances.pop(f"ocid.{name}.1", None)
        world.jobs.clear()
        world.are(names(1, 40), OFF)
        world.reconcile(200)
    assert not world.memory.cool_downs
    assert world.memory.boot_failures == {"gpu": 2}


def _three_that_do_not_boot(world: World) -> list[str]:
    gang = names(1, 3)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang, state="RUNNING")
    world.reconcile(2)
    return gang


def test_scenario_16_what_failed_while_the_autoscaler_was_away_is_not_the_pools_fault() -> None:
    world = World()
    gang = _three_that_do_not_boot(world)
    world.now += 700
    back = world.now
    world.reconcile(1, looking_since=back)
    assert not world.the(SaveConsole), "each has its whole time again"
    world.reconcile(601, looking_since=back)
    assert len(world.the(SaveConsole)) == 3
    assert not world.memory.cool_downs
    assert not world.memory.boot_failures
    # Those that are asked for now count.
    for name in gang:
        world.becomes(name, "TERMINATED")
    world.reconcile(5, looking_since=back)
    assert sorted(world.launched()) == gang
    world.accepts(*gang, state="RUNNING")
    world.reconcile(2, looking_since=back)
    world.reconcile(700, looking_since=back)
    assert world.memory.cool_downs["gpu"].fault == Fault.BOOT


def test_scenario_16_nodes_that_slurm_gave_up_meanwhile_do_not_count_and_a_failed_check_does() -> None:
    world = World()
    gang = _three_that_do_not_boot(world)
    world.jobs.clear()
    world.are(gang, "DOWN+CLOUD+POWERED_DOWN", "ResumeTimeout reached")
    back = world.now + 300
    world.reconcile(301, looking_since=back)
    assert {world.claim(name).state for name in gang} == {"ending"}
    assert not world.memory.boot_failures
    world = World()
    _three_that_do_not_boot(world)
    reason = reasons.of_checks([("gpu_count", "7 of 8 GPUs")], again=False)
    world.reconcile(301, looking_since=back, unfit={"ocid.gpu-e1.1": reason})
    assert world.memory.boot_failures == {"gpu": 1}


def test_scenario_16_an_operator_who_has_fixed_the_cause_ends_the_cool_down_at_once() -> None:
    world = World()
    gang = _three_that_do_not_boot(world)
    world.reconcile(700)
    assert world.memory.cool_downs
    world.are(gang, OFF)
    for name in gang:
        world.becomes(name, "TERMINATED")
    world.waits(1, reason="BeginTime")
    world.reconcile(60)
    (line,) = (each for each in explain_job("1", world.observation(), world.memory, world.policy, world.now)
               if each.startswith("Pool gpu cools down until"))  # fmt: skip
    assert line.endswith("run: gpucluster autoscaler resume")
    world.memory = replace(world.memory, resumed_at=world.now)
    world.reconcile(1)
    assert not world.memory.cool_downs
    assert not world.memory.boot_failures
    (delay,) = world.the(Delay)
    assert (delay.job, delay.until) == ("1", world.now + 1)
    assert "an operator has" in world.said()
    world.starts(1, names(4, 6))
    world.reconcile(5)
    assert sorted(world.launched()) == names(4, 6)
    # A later one is a new one.
    world.accepts(*names(4, 6), state="RUNNING")
    world.reconcile(2)
    world.reconcile(700)
    assert world.memory.cool_downs


def test_scenario_16_that_slurm_gave_a_node_up_does_not_hide_why_its_instances_failed() -> None:
    """Three instances of a slow cloud may take longer than ResumeTimeout, which runs from the first one."""
    world = World()
    reason = reasons.of_checks([("mounts", "/mnt/home is not mounted")], again=False)
    why = "its checks at boot failed: mounts: /mnt/home is not mounted"
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    for generation in (1, 2):
        world.accepts("gpu-e1", state="RUNNING")
        world.reconcile(1)
        world.reconcile(100, unfit={f"ocid.gpu-e1.{generation}": reason})
        world.becomes("gpu-e1", "TERMINATED")
        world.reconcile(60)
        assert world.launched() == ["gpu-e1"]
        assert world.memory.boot_causes == {"gpu": f"gpu-e1: {why}"}
    world.accepts("gpu-e1", state="RUNNING")
    world.jobs.clear()
    world.node("gpu-e1", DEAD, "ResumeTimeout reached")
    world.reconcile(5)
    words = world.memory.cool_downs["gpu"].message
    assert words == (
        "3 nodes in a row did not come into service; gpu-e1: it did not register before Slurm's ResumeTimeout. "
        f"Before it, gpu-e1: {why}"
    )
    # Where an operator lets it continue, all of it is over.
    world.memory = replace(world.memory, resumed_at=world.now + 1)
    world.reconcile(2)
    assert not world.memory.boot_causes


def test_scenario_26_orphans_are_ended_after_a_while_and_not_too_many_at_once() -> None:
    world = World()
    for number in range(100, 130):
        world.instance(f"gpu-e{number}")
    for _ in range(30):
        world.reconcile(10)
        assert world.plan.actions == ()
    ended: list[str] = []
    for _ in range(5):
        world.reconcile(4)
        assert len(world.the(Terminate)) <= MAX_ORPHANS_PER_PASS
        ended += [each.instance_id for each in world.the(Terminate)]
    assert len(ended) == len(set(ended)) == 30
    for one in list(world.instances.values()):
        world.becomes(one.node, "TERMINATED")
    world.reconcile(1)
    assert not world.memory.orphans_seen


def test_scenario_26_an_instance_of_a_node_that_is_powered_down_is_ended() -> None:
    world = World()
    world.instance("gpu-e1")
    world.reconcile(1)
    assert world.plan.actions == ()
    world.reconcile(31)
    assert [(each.node, each.unless_wanted) for each in world.the(Terminate)] == [("gpu-e1", True)]


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
