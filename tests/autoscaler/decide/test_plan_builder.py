"""The observation with its indexes, and what is written into the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucluster.autoscaler.decide.phases import Phase
from gpucluster.autoscaler.decide.plan_builder import ASK_AGAIN, HOUR, PlanBuilder
from gpucluster.autoscaler.decide.types import (
    Annotate,
    ClaimState,
    Delay,
    Fault,
    GangHistory,
    Hold,
    Launch,
    MarkDown,
    NodeClaim,
    PowerDown,
    Terminate,
)
from tests.autoscaler.builders import COMING, World, job, names, policy, pool

NODE = "gpu-e1"


def builder(world: World, in_flight: frozenset[str] = frozenset()) -> PlanBuilder:
    observation = replace(world.observation(), in_flight=in_flight)
    return PlanBuilder(observation, world.memory, world.policy, world.now)


def claim(world: World, state: ClaimState, node: str = NODE, **changes: object) -> NodeClaim:
    made = NodeClaim(node, "gpu", 1, f"token {node}", state, world.now, world.now)
    made = replace(made, **changes)  # type: ignore[arg-type]
    world.memory = replace(world.memory, claims={**world.memory.claims, node: made})
    return made


@pytest.fixture
def world() -> World:
    return World()


def test_instances_are_found_by_node_and_those_that_end_are_not_live(world: World) -> None:
    world.instance(NODE, "TERMINATED", generation=2)
    world.instance(NODE, "TERMINATING", generation=3)
    running = world.instance(NODE, "RUNNING", generation=1)
    built = builder(world)
    assert built.live == {NODE: [running]}
    assert built.gone == {f"ocid.{NODE}.2", f"ocid.{NODE}.3"}
    assert (built.terminating, built.highest) == ({NODE}, {NODE: 3})


def test_a_node_is_held_by_jobs_that_still_need_it(world: World) -> None:
    world.starts(1, names(1, 2))
    world.jobs["2"] = job(2, names(2, 3), state="COMPLETING")
    world.waits(3)
    built = builder(world)
    assert {name: [each.id for each in jobs] for name, jobs in built.holders.items()} == {
        "gpu-e1": ["1"], "gpu-e2": ["1"],
    }  # fmt: skip
    assert built.gangs_of("gpu-e1") == ("1",)
    assert built.gangs_of("gpu-e3") == ()


def test_the_parts_of_a_heterogeneous_job_are_found_by_their_leader(world: World) -> None:
    world.starts(10, names(1, 1))
    world.starts(11, names(2, 2), gang="10")
    world.waits(21, gang="20")
    assert {gang: sorted(each.id for each in jobs) for gang, jobs in builder(world).components.items()} == {
        "10": ["10", "11"],
    }  # fmt: skip


def test_the_tally_counts_what_is_there_and_what_is_about_to_be(world: World) -> None:
    world.instance("gpu-e1")
    world.instance("gpu-e1", generation=2)  # a second one under the same name costs money, too
    world.instance("gpu-e2", "TERMINATED")
    claim(world, ClaimState.INTENDED, "gpu-e3")
    claim(world, ClaimState.UP, "gpu-e1")
    claim(world, ClaimState.DROPPING, "gpu-e4", since=world.now - HOUR)
    assert builder(world).tally == {"gpu": 3}
    # One that the executor has sent may become an instance.
    assert builder(world, frozenset({"token gpu-e4"})).tally == {"gpu": 4}


def test_an_instance_that_is_replaced_keeps_its_place_while_its_gang_is_admitted(world: World) -> None:
    world.node(NODE, COMING)
    claim(world, ClaimState.ENDING, jobs=("7",), since=world.now - HOUR)
    for admitted_at, number in ((0.0, 0), (world.now, 1)):
        world.memory = replace(world.memory, gangs={"7": GangHistory("7", admitted_at=admitted_at)})
        built = builder(world)
        built.powering_up[NODE] = world.nodes[NODE]
        assert built.tally["gpu"] == number


def test_a_launch_has_a_generation_that_no_other_had(world: World) -> None:
    world.instance(NODE, "TERMINATED", generation=4)
    world.memory = replace(world.memory, generations={NODE: 6})
    built = builder(world)
    built.launch(world.nodes[NODE], ("7",), "why")
    (action,) = built.plan().actions
    assert action == Launch(NODE, "gpu", 7, world.memory.token(NODE, 7), "why")
    memory = built.plan().memory
    assert (memory.claims[NODE].state, memory.claims[NODE].jobs) == (ClaimState.INTENDED, ("7",))
    assert (memory.generations, memory.launched_at) == ({NODE: 7}, (world.now,))


def test_failed_tries_count_for_the_same_jobs_only(world: World) -> None:
    claim(world, ClaimState.FAILED, jobs=("7",), tries=2)
    for jobs, tries in ((("7",), 2), (("8",), 0)):
        built = builder(world)
        built.launch(world.nodes[NODE], jobs, "why")
        assert built.claims[NODE].tries == tries


def test_the_same_launch_is_sent_again_once(world: World) -> None:
    known = claim(world, ClaimState.INTENDED)
    built = builder(world)
    built.launch_again(known, "no answer")
    built.launch_again(known, "no answer")
    assert [(each.token, each.generation) for each in built.plan().actions if isinstance(each, Launch)] == [
        (known.token, 1)
    ]


def test_a_termination_is_asked_for_again_only_after_a_while(world: World) -> None:
    claim(world, ClaimState.ENDING, instance_id="ocid", ended_at=world.now - ASK_AGAIN + 1)
    assert not builder(world).terminate(NODE, "gpu", "ocid", "why")
    assert builder(world).terminate(NODE, "gpu", "another", "why")
    world.now += 1
    built = builder(world)
    assert built.terminate(NODE, "gpu", "ocid", "why")
    assert built.claims[NODE].ended_at == world.now
    (action,) = built.plan().actions
    assert isinstance(action, Terminate)
    assert action.unless_wanted


@pytest.mark.parametrize(
    ("state", "fault", "dropped"),
    [
        (ClaimState.INTENDED, None, True),
        (ClaimState.UP, None, True),
        (ClaimState.FAILED, Fault.CAPACITY, True),
        (ClaimState.DROPPING, None, False),
        (ClaimState.ENDING, None, False),
    ],
)
def test_a_claim_is_dropped_once(state: ClaimState, fault: Fault | None, dropped: bool, world: World) -> None:
    known = claim(world, state, fault=fault, since=world.now - 10)
    built = builder(world)
    built.drop(known)
    assert built.claims[NODE].state is (ClaimState.DROPPING if dropped else state)
    assert (built.claims[NODE].since == world.now) is dropped
    # What failed for good has nothing that could still become an instance.
    assert (built.claims[NODE].token == "") is (fault is not None)


def test_a_new_state_begins_now_and_other_changes_do_not(world: World) -> None:
    known = claim(world, ClaimState.LAUNCHED, since=world.now - 10)
    built = builder(world)
    assert built.change(known, tries=3).since == world.now - 10
    assert built.change(known, state=ClaimState.UP).since == world.now


def test_an_instance_that_the_ledger_does_not_know_is_adopted(world: World) -> None:
    instance = world.instance(NODE, generation=5)
    built = builder(world)
    adopted = built.adopt(world.nodes[NODE], instance, ClaimState.UP, ("7",))
    assert (adopted.generation, adopted.instance_id, adopted.jobs) == (5, instance.id, ("7",))
    assert adopted.token == world.memory.token(NODE, 5)
    built.reserve(world.nodes["gpu-e2"], ClaimState.DROPPING)
    assert (built.claims["gpu-e2"].token, built.claims["gpu-e2"].generation) == ("", 0)


def test_actions_come_in_the_order_in_which_they_have_an_effect(world: World) -> None:
    built = builder(world)
    built.launch(world.nodes[NODE], (), "why")
    built.terminate("gpu-e2", "gpu", "ocid", "why")
    built.actions += [Hold("2", "why"), Delay("1", 1.0, "why"), Annotate("1", "why")]
    for name in ("gpu-e3", "gpu-e4"):
        built.power_down(name, "together")
    built.power_down_idle("gpu-e5", "together")
    built.mark_down("gpu-e6", "why")
    actions = built.plan().actions
    assert [type(each) for each in actions] == [
        Annotate, MarkDown, PowerDown, PowerDown, Delay, Hold, Terminate, Launch,
    ]  # fmt: skip
    assert actions[2:4] == (
        PowerDown(("gpu-e3", "gpu-e4"), "together"), PowerDown(("gpu-e5",), "together", force=False),
    )  # fmt: skip


def test_where_nothing_changes_the_memory_is_the_same_object(world: World) -> None:
    assert builder(world).plan().memory is world.memory
    world.memory = replace(world.memory, launched_at=(world.now - HOUR - 1, world.now - 1))
    memory = builder(world).plan().memory
    assert memory.launched_at == (world.now - 1,)
    assert memory.claims is world.memory.claims


def test_the_phase_of_a_node_that_is_not_listed_is_not_known(world: World) -> None:
    world.node(NODE, COMING)
    built = builder(world)
    assert built.phase_of(NODE) is Phase.POWERING_UP
    assert built.phase_of("gpu-e99") is None


def test_the_pool_of_an_instance_without_one_follows_from_its_name() -> None:
    world = World(policy(pool("gpu"), pool("cpu")))
    world.instance("cpu-e1", pool="")
    assert builder(world).tally == {"cpu": 1}
