"""Scenarios 33 to 50: limits, and what cannot be known. See test_scenarios for the method."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpucluster.autoscaler.decide.explain import explain_job
from gpucluster.autoscaler.decide.plan import decide
from gpucluster.autoscaler.decide.types import (
    Annotate,
    Delay,
    DrainNodes,
    Fault,
    Hold,
    Intent,
    Launch,
    Memory,
    Node,
    PowerDown,
    Terminate,
)
from gpucluster.autoscaler.policy import PolicyLimits
from tests.autoscaler.builders import (
    BUSY,
    COMING,
    IDLE,
    LEAVING,
    NOON,
    OFF,
    WARMING,
    World,
    job,
    names,
    policy,
    pool,
)
from tests.processor import growth

PRICES = {"BM.GPU4.8": 10.0}


@pytest.mark.parametrize(
    ("limits", "prices", "words"),
    [
        (PolicyLimits(max_nodes=10), {}, "max_nodes"),
        (PolicyLimits(max_cost_per_hour=100.0), PRICES, "max_cost_per_hour"),
        (PolicyLimits(max_launches_per_hour=10), {}, "max_launches_per_hour"),
    ],
)
def test_scenario_33_whole_gangs_are_admitted_or_refused_by_priority(
    limits: PolicyLimits, prices: dict[str, float], words: str
) -> None:
    world = World(policy(limits=limits, prices=prices))
    world.starts(1, names(1, 6), priority=1)
    world.starts(2, names(7, 12), priority=2)
    world.starts(3, names(13, 16), priority=1)
    world.reconcile()
    assert sorted(world.launched()) == sorted([*names(7, 12), *names(13, 16)])
    assert [each.nodes for each in world.the(PowerDown)] == [tuple(names(1, 6))]
    (delay,) = world.the(Delay)
    assert delay.job == "1"
    assert words in delay.why
    assert world.now < delay.until <= world.now + 3601
    # it comes again when there is room
    world.are(names(1, 6), LEAVING)
    world.waits(1)
    world.reconcile(200)
    world.are(names(1, 40), OFF)
    world.jobs.clear()
    world.in_flight.clear()
    world.reconcile(200)
    world.reconcile(3700)
    world.starts(1, names(1, 6))
    world.reconcile(1)
    assert sorted(world.launched()) == names(1, 6)


def test_scenario_33_a_pool_has_its_own_limit_and_a_shape_without_a_price_no_cap() -> None:
    world = World(policy(pool(max_nodes=4), limits=PolicyLimits(max_cost_per_hour=1.0), prices={"other": 9.0}))
    world.starts(1, names(1, 3))
    world.reconcile()
    assert len(world.launched()) == 3
    world.starts(2, names(4, 5))
    world.reconcile(1)
    assert not world.launched()
    assert "pool gpu has 3 of 4" in world.the(Delay)[0].why


def test_scenario_33_a_job_that_slurm_would_not_requeue_keeps_its_place() -> None:
    world = World(policy(pool(max_nodes=4)))
    world.starts(1, names(1, 4))
    world.reconcile()
    world.starts(2, names(5, 6), requeue=False)
    world.reconcile(1)
    assert [tell.job for tell in world.the(Annotate)] == ["2"]
    world.reconcile(1)
    assert world.plan.actions == ()
    world.jobs.pop("1")
    world.are(names(1, 4), LEAVING)
    world.in_flight.clear()
    world.reconcile(1)
    assert sorted(world.launched()) == names(5, 6)


def test_scenario_33_launches_that_failed_do_not_count_against_the_hour() -> None:
    world = World(policy(limits=PolicyLimits(max_launches_per_hour=4), gang_retry_window=0))
    world.starts(1, names(1, 4))
    world.reconcile()
    before = world.memory
    assert len(before.launched_at) == 4
    world.refuses(*names(1, 4))
    world.reconcile(1)
    assert world.memory.launched_at == ()


def test_scenario_33_slurms_own_limit_is_understood() -> None:
    world = World()
    world.waits(1, reason="MaxPoweredUpNodes")
    lines = explain_job("1", world.observation(), world.memory, world.policy, world.now)
    assert any("max_nodes" in line for line in lines)


@pytest.mark.parametrize(
    "limits",
    [PolicyLimits(max_nodes=3), PolicyLimits(max_launches_per_hour=3), PolicyLimits(max_cost_per_hour=30.0)],
)
def test_scenario_34_a_job_that_can_never_fit_is_held_and_launches_nothing(limits: PolicyLimits) -> None:
    world = World(policy(limits=limits, prices=PRICES))
    world.starts(1, names(1, 4))
    world.reconcile()
    assert not world.launched()
    assert [hold.job for hold in world.the(Hold)] == ["1"]
    assert world.the(PowerDown)
    world = World(policy(pool(max_nodes=3)))
    world.starts(1, names(1, 4))
    world.reconcile()
    assert "pool gpu may have 3" in world.the(Hold)[0].why


def test_scenario_35_a_node_that_an_operator_powers_up_is_launched() -> None:
    world = World()
    world.are(["gpu-e1", "gpu-e2"], WARMING)
    world.reconcile()
    assert sorted(world.launched()) == ["gpu-e1", "gpu-e2"]
    world.accepts("gpu-e1")
    world.refuses("gpu-e2")
    for _ in range(40):
        world.reconcile(5)
        world.refuses(*world.launched())
        if world.the(PowerDown):
            break
    assert world.the(PowerDown)[0].nodes == ("gpu-e2",)
    assert not world.the(Delay)
    world.runs("gpu-e1", words=IDLE)
    world.node("gpu-e2", OFF)
    world.reconcile(10)
    assert world.claim("gpu-e1").state == "up"


def test_scenario_36_idle_nodes_are_slurms_to_power_down() -> None:
    world = World()
    world.serve(*names(1, 4), words=IDLE)
    for _ in range(10):
        world.reconcile(3600)
        assert world.plan.actions == ()
        assert world.plan.memory is world.memory


def test_scenario_37_a_reconfigure_amid_a_scale_up_leaves_no_node_stuck() -> None:
    world, gang = World(), names(1, 4)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang)
    whole = dict(world.nodes)
    for _ in range(10):
        world.nodes = {name: node for name, node in whole.items() if name != "gpu-e2"}
        world.reconcile(5)
        world.nodes = dict(whole)
        world.reconcile(5)
    assert world.claim("gpu-e2").instance_id == "ocid.gpu-e2.1"
    assert not world.the(Terminate)
    assert not world.launched()


def test_scenario_38_every_launch_is_remembered_in_the_same_plan() -> None:
    world = World()
    world.starts(1, names(1, 4))
    plan = decide(world.observation(), world.memory, world.policy, world.now)
    launches = [action for action in plan.actions if isinstance(action, Launch)]
    assert len(launches) == 4
    assert all(plan.memory.claims[each.node].token == each.token for each in launches)
    assert world.memory.claims == {}  # and not in what was remembered before


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_scenario_39_the_clouds_clock_does_not_count_for_deadlines(jump: float) -> None:
    world = World()
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    world.accepts("gpu-e1", state="RUNNING")
    world.instances = {key: replace(one, created_at=one.created_at + jump) for key, one in world.instances.items()}
    world.reconcile(1)
    for _ in range(5):
        world.reconcile(100)
        assert world.plan.actions == ()


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


def test_scenario_40_two_that_decide_on_the_same_ask_for_the_same() -> None:
    world = World()
    world.starts(1, names(1, 4))
    one = decide(world.observation(), world.memory, world.policy, world.now)
    two = decide(world.observation(), world.memory, world.policy, world.now)
    assert one == two


def test_scenario_41_a_flood_is_decided_in_one_look_and_the_work_grows_with_it_and_no_faster() -> None:
    """How long it takes is in `benchmarks/run.py autoscaler-tick`."""

    def work(count: int) -> Callable[[], object]:
        world = World(policy(pool(names=count, max_nodes=count)))
        for number in range(count):
            world.waits(100_000 + number)
        half = count // 10
        world.starts(1, names(1, half))
        for number in range(half + 1, 2 * half + 1):
            world.starts(number, [f"gpu-e{number}"])
        observation = world.observation()

        def look() -> None:
            plan = decide(observation, world.memory, world.policy, world.now)
            assert len([action for action in plan.actions if isinstance(action, Launch)]) == 2 * half
            assert len(plan.notes) < 3 * half

        return look

    assert growth(work, 1_000, 10_000) < 30


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


def test_scenario_43_credentials_that_expired_lose_no_gang() -> None:
    world, gang = World(), names(1, 2)
    world.starts(1, gang)
    world.reconcile()
    tokens = {launch.token for launch in world.the(Launch)}
    for _ in range(5):
        world.refuses(*gang, fault=Fault.TRANSIENT, message="401 NotAuthenticated")
        world.reconcile(1)
        assert not world.plan.actions
        world.reconcile(20)
        assert {launch.token for launch in world.the(Launch)} == tokens
    assert world.gang(1).attempts == 0


def test_scenario_44_without_the_resume_file_gangs_come_from_slurms_list() -> None:
    world = World(policy(limits=PolicyLimits(max_nodes=5)))
    world.starts(1, names(1, 4), priority=2)
    world.starts(2, names(5, 8), priority=1)
    world.intents.append(Intent("resume", world.now, tuple(names(1, 8))))
    world.reconcile()
    assert sorted(world.launched()) == names(1, 4)
    assert [each.nodes for each in world.the(PowerDown)] == [tuple(names(5, 8))]


def test_scenario_45_without_any_intent_the_same_is_decided() -> None:
    world = World()
    world.starts(1, names(1, 2))
    with_hook = world.observation(intents=(Intent("resume", NOON, tuple(names(1, 2)), {"1": tuple(names(1, 2))}),))
    without = world.observation()
    one, two = (decide(seen, world.memory, world.policy, NOON) for seen in (with_hook, without))
    assert one == two


def test_scenario_46_a_lost_ledger_is_made_again_from_slurm_and_the_tags() -> None:
    world = World()
    world.serve("gpu-e1", "gpu-e2")
    world.starts(1, ["gpu-e3", "gpu-e4"])
    world.instance("gpu-e3", "PROVISIONING", generation=5)
    world.instance("gpu-e4", "TERMINATED", generation=7)
    world.memory = Memory("new")
    world.reconcile()
    assert [(launch.node, launch.generation) for launch in world.the(Launch)] == [("gpu-e4", 8)]
    assert len(world.plan.actions) == 1
    assert world.claim("gpu-e3").generation == 5
    assert {world.claim(name).state for name in ("gpu-e1", "gpu-e2")} == {"up"}


def test_scenario_47_names_that_slurm_or_the_policy_does_not_know() -> None:
    world = World()
    world.serve("gpu-e1")
    world.instance("gone-e1", pool="gone")
    world.instance("gpu-e1", pool="gone", id="odd", node="")
    world.nodes["else-e1"] = Node("else-e1", "else", frozenset(COMING.split("+")))
    world.nodes["no-pool"] = Node("no-pool", "", frozenset(IDLE.split("+")))
    world.reconcile()
    assert world.plan.actions == ()
    world.nodes.pop("gpu-e1")  # taken out of slurm.conf while its instance runs
    world.reconcile(10)
    world.reconcile(310)
    assert sorted(each.instance_id for each in world.the(Terminate)) == ["ocid.gone-e1.1", "ocid.gpu-e1.1", "odd"]


def test_scenario_48_a_suspend_of_nodes_that_were_never_launched_is_nothing() -> None:
    world = World()
    world.are(names(1, 40), LEAVING)
    world.intents.append(Intent("suspend", world.now, tuple(names(1, 40))))
    world.reconcile()
    assert world.plan.actions == ()
    assert not world.memory.claims


def test_scenario_49_a_node_is_drained_ahead_of_maintenance_and_then_given_back() -> None:
    world = World()
    world.instance("gpu-e1", maintenance_at=NOON + 7200)
    world.node("gpu-e1", BUSY)
    world.reconcile()
    assert world.plan.actions == ()
    world.reconcile(3700)
    (drain,) = world.the(DrainNodes)
    assert drain.why.startswith("gpucluster: ")
    world.node("gpu-e1", BUSY + "+DRAIN", drain.why)
    world.reconcile(1)
    assert world.plan.actions == ()
    world.node("gpu-e1", IDLE + "+DRAIN", drain.why)
    world.reconcile(1)
    assert world.the(PowerDown)[0].nodes == ("gpu-e1",)


@pytest.mark.parametrize("left", [0, 10, 19])
def test_a_list_of_nodes_that_is_cut_short_moves_nothing(left: int) -> None:
    world = World()
    world.serve(*names(1, 40), words=IDLE)
    world.becomes("gpu-e1", "TERMINATED")
    world.nodes = {name: world.nodes[name] for name in names(1, left)}
    for _ in range(10):
        world.reconcile(400)
        assert world.plan.actions == ()


def test_a_first_look_that_shows_no_node_moves_nothing() -> None:
    world = World()
    world.nodes.clear()
    world.instance("gpu-e1")
    world.reconcile()
    world.reconcile(1000)
    assert world.plan.actions == ()


def test_while_paused_nothing_is_launched_or_ended_and_queued_launches_wait() -> None:
    world = World()
    world.serve("gpu-e9")
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    token = world.the(Launch)[0].token
    world.memory = replace(world.memory, paused="maintenance")
    world.starts(2, ["gpu-e2"])
    world.node("gpu-e9", LEAVING)
    world.reconcile(1)
    assert world.plan.actions == ()
    assert "paused (maintenance)" in world.said()
    assert world.claim("gpu-e1").state == "held"
    world.in_flight.clear()
    world.memory = replace(world.memory, paused="")
    world.reconcile(1)
    assert sorted(world.launched()) == ["gpu-e1", "gpu-e2"]
    assert token in {launch.token for launch in world.the(Launch)}
    assert world.the(Terminate)


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
