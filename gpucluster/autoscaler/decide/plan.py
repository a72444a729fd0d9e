"""The plan: from one observation of Slurm and the cloud, what is remembered, and the policy, to what is to be done.

Deterministic. The same function serves the daemon, the dry run, `explain` and the simulation. Its parts:

    plan              the order of the rules, and the conditions under which nothing is done
      nodes           one node at a time: its phase in Slurm against the instance under its name
      gangs           nodes that power up, together with the jobs that need them
        grouping      which nodes that power up belong together
        admission     cool-downs, node limits, launch rate, cost
        rollback      postponing a gang
      pools           cool-downs, and instances that belong to no node
      plan_builder    the observation with indexes, and the plan so far
"""

from __future__ import annotations

from gpucluster.autoscaler.decide import gangs, nodes, pools, rollback
from gpucluster.autoscaler.decide.plan_builder import PlanBuilder
from gpucluster.autoscaler.decide.types import UNANSWERED, ClaimState, Fault, Memory, Observation, Outcome, ScalingPlan
from gpucluster.autoscaler.policy import Policy

# The subject of notes about the whole autoscaler.
EVERYTHING = "autoscaler"


def decide(observation: Observation, memory: Memory, policy: Policy, now: float) -> ScalingPlan:
    """Decide what is to be done now.

    Args:
        observation: its outcomes and intents are those since the last pass.
        memory: the memory of the last plan.
        now: seconds of the epoch by the daemon's own clock.
    """
    builder = PlanBuilder(observation, memory, policy, now)
    for outcome in observation.outcomes:
        _learn(builder, outcome)
    obstacle = _obstacle(builder)
    if obstacle:
        builder.note(EVERYTHING, obstacle)
        return builder.plan()
    builder.node_count = len(builder.nodes)
    pools.end_cool_downs(builder)
    rollback.end_delays(builder)
    nodes.reconcile(builder)
    gangs.reconcile(builder)
    pools.update_cool_downs(builder)
    pools.end_orphans(builder)
    _forget(builder)
    return builder.plan()


def _learn(builder: PlanBuilder, outcome: Outcome) -> None:
    """Write the outcome of a launch into its claim. The outcome of an older generation is ignored."""
    claim = builder.claims.get(outcome.node)
    if claim is None or claim.token != outcome.token:
        return
    if outcome.fault is None:
        state = ClaimState.LAUNCHED if claim.state in UNANSWERED else claim.state
        builder.change(claim, state=state, instance_id=outcome.instance_id, fault=None, request_id=outcome.request_id)
        return
    if claim.state not in UNANSWERED and claim.state != ClaimState.LAUNCHED:
        return
    if outcome.fault is Fault.TRANSIENT:
        builder.change(
            claim, since=builder.now, fault=outcome.fault, message=outcome.message, request_id=outcome.request_id
        )
        return
    if claim.state != ClaimState.LAUNCHED and builder.launched_at:
        # Nothing was launched: it does not count against the launches of this hour.
        builder.launched_at.pop()
    builder.change(
        claim,
        state=ClaimState.FAILED,
        fault=outcome.fault,
        message=outcome.message,
        request_id=outcome.request_id,
        tries=claim.tries + 1,
    )


def _obstacle(builder: PlanBuilder) -> str:
    """Why nothing at all may be done now; empty if there is no obstacle."""
    observation, memory = builder.observation, builder.memory
    if observation.nodes is None or observation.jobs is None:
        return f"{builder.words.name} does not answer: nothing is done until it does"
    if observation.instances is None:
        return "the cloud does not answer: nothing is launched, terminated or taken down until it does"
    declared = sum(pool.names for pool in builder.policy.pools.values())
    expected = min(memory.node_count, declared) if memory.node_count else min(declared, 1)
    if len(observation.nodes) * 2 < expected:
        listed, before = len(observation.nodes), memory.node_count or declared
        return (
            f"{builder.words.name} lists {listed} elastic nodes, and listed {before} before: "
            "nothing is done until this is confirmed"
        )
    if memory.paused:
        for claim in list(builder.claims.values()):
            if claim.state == ClaimState.INTENDED:
                builder.change(claim, state=ClaimState.HELD)
        return f"paused ({memory.paused}): nothing is launched, terminated or changed until it is resumed"
    return ""


def _forget(builder: PlanBuilder) -> None:
    """Drop what is over: claims of names that Slurm no longer has, and instances that are gone."""
    if len(builder.claims) > 0 and builder.claims.keys() - builder.nodes.keys():
        for name, claim in list(builder.claims.items()):
            if name in builder.nodes or name in builder.live or builder.in_flight(claim):
                continue
            if builder.now - claim.since > builder.policy.times.listing_lag:
                del builder.claims[name]
    if builder.healed_at:
        builder.healed_at = {name: at for name, at in builder.healed_at.items() if builder.now - at < nodes.HEALS_IN}
    if builder.orphans_seen:
        listed = {instance.id for instances in builder.live.values() for instance in instances}
        builder.orphans_seen = {name: at for name, at in builder.orphans_seen.items() if name in listed}
