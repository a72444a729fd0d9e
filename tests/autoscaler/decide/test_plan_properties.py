"""Properties that hold for every observation, however odd; hypothesis tries many."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gpucluster.autoscaler.decide.explain import explain_job, explain_node
from gpucluster.autoscaler.decide.plan import decide
from gpucluster.autoscaler.decide.types import (
    UNANSWERED,
    ClaimState,
    CloudInstance,
    CoolDown,
    Fault,
    GangHistory,
    Intent,
    Job,
    Launch,
    Memory,
    Node,
    NodeClaim,
    Observation,
    Outcome,
    PowerDown,
    ScalingPlan,
    Terminate,
)
from gpucluster.autoscaler.policy import PolicyLimits
from gpucluster.node_agent.rules.reasons import from_administrator
from tests.autoscaler.builders import (
    COMING,
    DEAD,
    IDLE,
    LEAVING,
    LOST,
    NOON,
    OFF,
    WAITED_FOR,
    WARMING,
    flags,
    policy,
    pool,
)
from tests.examples import examples

POLICY = policy(
    pool("a", names=3, max_nodes=2, baked=False),
    pool("b", names=2, max_nodes=2),
    limits=PolicyLimits(max_nodes=3, max_launches_per_hour=5, max_cost_per_hour=50.0),
    prices={"BM.GPU4.8": 10.0},
)
NAMES = ["a-e1", "a-e2", "a-e3", "b-e1", "b-e2"]
STRANGE = ["gone-e1", ""]
IDS = [f"{name}/{number}" for name in [*NAMES, *STRANGE] for number in range(2)]  # an id never changes its name
JOBS = ["1", "2", "3"]
MEMORY = Memory("ledger")

times = st.sampled_from([0.0, NOON - 4000, NOON - 700, NOON - 130, NOON - 40, NOON - 5, NOON, NOON + 100])
words = st.sampled_from(
    [
        OFF,
        COMING,
        WARMING,
        IDLE,
        "ALLOCATED+CLOUD",
        LEAVING,
        DEAD,
        WAITED_FOR,
        LOST,
        "IDLE+CLOUD+DRAIN",
        "MIXED+CLOUD+NOT_RESPONDING",
        "ALLOCATED+CLOUD+POWERED_DOWN",
        "COMPLETING+CLOUD+POWERING_UP",
        "DOWN+CLOUD+POWERING_UP",
        "UNKNOWN",
        "FUTURE",
    ]
)
reasons = st.sampled_from(["", "gpucluster: out of capacity", "Not responding", "ResumeTimeout reached", "fan is loud"])
states = st.sampled_from(
    ["PROVISIONING", "STARTING", "RUNNING", "STOPPED", "STOPPING", "TERMINATING", "TERMINATED", "X"]
)
faults = st.sampled_from([None, *Fault])
generations = st.integers(0, 3)


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, Node]:
    listed = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=3))
    made = {
        name: Node(name, name[0], flags(draw(words)), draw(reasons), "", draw(st.sampled_from(["", *IDS])))
        for name in listed
    }
    if draw(st.booleans()):
        made["odd"] = Node("odd", draw(st.sampled_from(["", "none"])), flags(draw(words)))
    return made


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Job]:
    made = {}
    for number in draw(st.lists(st.sampled_from(JOBS), unique=True)):
        given_nodes = tuple(draw(st.lists(st.sampled_from([*NAMES, "static-1"]), unique=True, max_size=3)))
        state = draw(st.sampled_from(["CONFIGURING", "RUNNING", "COMPLETING"])) if given_nodes else "PENDING"
        made[number] = Job(
            number,
            draw(st.sampled_from([number, "1"])),
            state,
            draw(st.sampled_from(["None", "Resources", "BeginTime", "JobHeldUser"])),
            ("gpu",),
            given_nodes,
            max(1, len(given_nodes)),
            draw(st.integers(0, 2)),
            eligible_at=draw(times),
            requeue=draw(st.booleans()),
        )
    return made


@st.composite
def instances(draw: st.DrawFn) -> tuple[CloudInstance, ...]:
    return tuple(
        CloudInstance(
            each,
            each.partition("/")[0],
            "a",
            draw(generations),
            draw(states),
            draw(times),
            maintenance_at=draw(st.sampled_from([None, NOON + 60])),
        )
        for each in draw(st.lists(st.sampled_from(IDS), unique=True, max_size=6))
    )


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    claims = {}
    for name in draw(st.lists(st.sampled_from([*NAMES, "gone-e1"]), unique=True)):
        state = draw(st.sampled_from(ClaimState))
        generation = draw(generations)
        claims[name] = NodeClaim(
            name,
            name[0],
            generation,
            MEMORY.token(name, generation),
            state,
            draw(times),
            draw(times),
            tuple(draw(st.lists(st.sampled_from(JOBS), unique=True, max_size=2))),
            "" if state in UNANSWERED else draw(st.sampled_from(["", f"{name}/0", f"{name}/1"])),
            draw(st.integers(0, 4)),
            missing_since=draw(times),
            strikes=draw(st.integers(0, 3)),
            fault=draw(faults),
        )
    gangs = {
        number: GangHistory(
            number,
            draw(st.integers(0, 5)),
            draw(times),
            draw(times),
            "words",  # a gang that is put off always gets a message
            admitted_at=draw(times),
            refused_at=draw(times),
        )
        for number in draw(st.lists(st.sampled_from([*JOBS, "node/a-e1"]), unique=True))
    }
    cool_downs = {
        name: CoolDown(name, draw(times), draw(st.sampled_from(list(Fault))), "words", 1, draw(st.booleans()))
        for name in draw(st.lists(st.sampled_from(["a", "b", "gone"]), unique=True))
    }
    return Memory("ledger", claims, gangs, cool_downs, boot_failures={"a": draw(st.integers(0, 3))})


@st.composite
def observations(draw: st.DrawFn) -> tuple[Observation, Memory]:
    memory = draw(memories())
    tokens = [claim.token for claim in memory.claims.values()]
    some_tokens = st.lists(st.sampled_from(tokens), unique=True) if tokens else st.just([])
    outcomes = tuple(
        Outcome(
            claim.token,
            claim.node,
            "" if fault else f"{claim.node}/{draw(st.integers(0, 1))}",
            fault,
            "words",
        )
        for claim in memory.claims.values()
        if (fault := draw(faults)) or draw(st.booleans())
    )
    known = draw(nodes())
    observation = Observation(
        known,
        draw(jobs()),
        draw(instances()),
        outcomes if draw(st.booleans()) else (),
        (Intent("resume", NOON, ("a-e1",), {"9": ("a-e1",)}),) if draw(st.booleans()) else (),
        frozenset(draw(some_tokens)),
        frozenset(draw(st.lists(st.sampled_from(IDS), max_size=2))),
        {"a-e1/0": "can't mount"} if draw(st.booleans()) else {},
    )
    return observation, memory


def launches(plan: ScalingPlan) -> list[Launch]:
    return [action for action in plan.actions if isinstance(action, Launch)]


@examples(150)
@given(observations())
def test_no_look_is_too_odd(seen: tuple[Observation, Memory]) -> None:
    observation, memory = seen
    plan = decide(observation, memory, POLICY, NOON)
    assert plan == decide(observation, memory, POLICY, NOON)
    assert observation.nodes is not None
    assert observation.instances is not None
    by_id = {one.id: one for one in observation.instances}
    live = Counter(one.node for one in observation.instances if one.live)

    # one launch for a claim, written down, for a node that Slurm powers up and that nothing stands behind
    asked = Counter(launch.node for launch in launches(plan))
    assert all(number == 1 for number in asked.values())
    for launch in launches(plan):
        claim = plan.memory.claims[launch.node]
        assert (claim.state, claim.token, claim.generation) == ("intended", launch.token, launch.generation)
        assert observation.nodes[launch.node].powering_up
        assert not live[launch.node]
        assert claim.token not in observation.in_flight or claim.token != memory.token(launch.node, launch.generation)

    for action in plan.actions:
        assert action.why.strip()
        if isinstance(action, Terminate):
            # only what the cloud lists as ours, or what it reported it had launched for us
            if action.instance_id in by_id:
                assert by_id[action.instance_id].node == action.node
            else:
                assert action.instance_id in {claim.instance_id for claim in memory.claims.values()} | {
                    outcome.instance_id for outcome in observation.outcomes
                }
            node = observation.nodes.get(action.node)
            assert node is None or not node.in_service or live[action.node] > 1
        if isinstance(action, PowerDown):
            assert len(set(action.nodes)) == len(action.nodes)
            for name in action.nodes:
                node = observation.nodes[name]
                # one that is powered down already only where Slurm waits for it, and then without force
                assert node.powering_up or not node.powered_down or node.down or (node.silent and not action.force)
                assert action.force or not node.drained
                # what an operator took down stays so, but for a node that was awaited: that reason is an old one
                awaited = name in memory.claims and memory.claims[name].state != "up"
                assert (
                    not (from_administrator(node.reason, node.reason_user) and node.down and not node.powering_up)
                    or awaited
                )


@examples(60)
@given(observations())
def test_without_slurm_or_the_cloud_or_while_paused_nothing_is_done(seen: tuple[Observation, Memory]) -> None:
    observation, memory = seen
    blind = Observation(None, observation.jobs, observation.instances, observation.outcomes)
    assert decide(blind, memory, POLICY, NOON).actions == ()
    blind = Observation(observation.nodes, None, observation.instances, observation.outcomes)
    assert decide(blind, memory, POLICY, NOON).actions == ()
    blind = Observation(observation.nodes, observation.jobs, None, observation.outcomes)
    assert decide(blind, memory, POLICY, NOON).actions == ()
    paused = Memory("ledger", memory.claims, memory.gangs, memory.cool_downs, paused="by ana")
    assert decide(observation, paused, POLICY, NOON).actions == ()


@examples(60)
@given(observations())
def test_everything_can_be_explained(seen: tuple[Observation, Memory]) -> None:
    observation, memory = seen
    for name in [*NAMES, "nobody", "odd"]:
        assert all(explain_node(name, observation, memory, POLICY, NOON))
    for number in [*JOBS, "99"]:
        assert all(explain_job(number, observation, memory, POLICY, NOON))


@examples(60)
@given(st.lists(st.sampled_from(["off", "up"]), min_size=5, max_size=5))
def test_at_rest_nothing_is_done_and_nothing_new_is_remembered(rest: list[str]) -> None:
    known, standing = {}, []
    for name, how in zip(NAMES, rest, strict=True):
        known[name] = Node(name, name[0], flags(OFF if how == "off" else IDLE))
        if how == "up":
            standing.append(CloudInstance(f"ocid.{name}", name, name[0], 1, "RUNNING", NOON))
    observation = Observation(known, {}, tuple(standing))
    first = decide(observation, MEMORY, POLICY, NOON)
    assert first.actions == ()
    second = decide(observation, first.memory, POLICY, NOON + 100)
    assert second.actions == ()
    assert second.memory is first.memory
    assert second.notes == ()
