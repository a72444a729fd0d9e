"""Scenarios of the plan as a whole: restarts, lost answers, and what cannot be known. See scenario_steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpucluster.autoscaler.decide.plan import decide
from gpucluster.autoscaler.decide.types import (
    DrainNodes,
    Fault,
    Intent,
    Launch,
    Memory,
    Node,
    Outcome,
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
    World,
    job,
    names,
    policy,
    pool,
)
from tests.processor import growth


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


@pytest.mark.parametrize("killed", ["before the call", "before the response", "after the response"])
def test_scenario_09_killed_at_any_line_there_is_one_instance_for_a_slot(killed: str) -> None:
    world = World()
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    first = world.the(Launch)[0]
    assert world.memory.claims["gpu-e1"].token == first.token  # written down before the launch is sent
    world.in_flight.clear()
    if killed != "before the call":
        world.instance("gpu-e1", "PROVISIONING", 1)
    world.reconcile(2)
    if killed == "before the call":
        assert [launch.token for launch in world.the(Launch)] == [first.token]
    else:
        assert not world.launched()
        assert world.claim("gpu-e1").state == "launched"


def test_scenario_10_a_reboot_of_the_controller_amid_a_scale_up_loses_nothing() -> None:
    world, gang = World(), names(1, 4)
    world.starts(1, gang)
    world.reconcile()
    world.accepts(*gang)
    world.outcomes.clear()  # the answers never reached us
    world.in_flight.clear()
    for name in gang:
        world.becomes(name, "RUNNING")
    world.reconcile(240)
    assert world.plan.actions == ()
    world.runs(*gang)
    world.jobs["1"] = job(1, gang, state="RUNNING")
    world.reconcile(10)
    assert world.plan.actions == ()
    assert {world.claim(name).state for name in gang} == {"up"}


def test_scenario_11_a_repeated_resume_launches_nothing_twice() -> None:
    world, gang = World(), names(1, 4)
    world.starts(1, gang)
    seen: list[str] = []
    for _ in range(5):
        world.intents += [Intent("resume", world.now, tuple(gang), {"1": tuple(gang)})] * 2
        world.reconcile(2)
        seen += world.launched()
    assert sorted(seen) == gang


def test_scenario_12_without_slurm_nothing_is_done_and_afterwards_all_goes_on() -> None:
    world, gang = World(), names(1, 4)
    world.starts(1, gang[:2])
    world.serve("gpu-e9", words=IDLE)
    world.reconcile()
    world.accepts(*gang[:2])
    for _ in range(60):
        world.reconcile(10, nodes=None, jobs=None)
        assert world.plan.actions == ()
    assert "Slurm does not answer" in world.said()
    world.starts(2, gang[2:])
    world.reconcile(10)
    assert sorted(world.launched()) == gang[2:]
    assert not world.the(Terminate)


def test_scenario_13_a_look_without_slurms_answer_is_skipped() -> None:
    world = World()
    world.starts(1, ["gpu-e1"])
    world.reconcile(jobs=None)
    assert world.plan.actions == ()
    world.reconcile(nodes=None)
    assert world.plan.actions == ()


def test_scenario_14_without_the_cloud_nothing_is_taken_down_ended_or_launched() -> None:
    world = World()
    world.serve(*names(1, 4))
    world.instance("gpu-e99")
    world.reconcile()
    world.starts(1, ["gpu-e6"])
    before = world.memory.claims
    for _ in range(180):
        world.reconcile(10, instances=None)
        assert world.plan.actions == ()
    assert world.memory.claims == before
    assert "the cloud does not answer" in world.said()
    world.reconcile(10)
    assert world.launched() == ["gpu-e6"]
    assert not world.the(PowerDown)


def test_scenario_15_a_listing_that_lags_is_not_believed() -> None:
    world = World()
    world.starts(1, ["gpu-e1"])
    world.reconcile()
    claim = world.claim("gpu-e1")
    world.outcomes.append(Outcome(claim.token, "gpu-e1", "ocid.gpu-e1.1"))
    world.in_flight.clear()
    for _ in range(6):
        world.reconcile(10)
        assert world.plan.actions == ()
    world.node("gpu-e1", BUSY)  # it may even register before it is listed
    world.reconcile(1)
    assert world.plan.actions == ()
    world.instance("gpu-e1", "RUNNING", 1)
    for generation in range(2, 5):  # and those long ended stay listed
        world.instance("gpu-e7", "TERMINATED", generation)
    world.reconcile(200)
    assert world.plan.actions == ()


def test_a_new_ledger_asks_with_other_tokens() -> None:
    assert Memory("a").token("gpu-e1", 1) != Memory("b").token("gpu-e1", 1)
    assert len(Memory("a").token("gpu-e1", 1)) <= 64
