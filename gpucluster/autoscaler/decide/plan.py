"""What to do: one look at Slurm and the cloud, what is remembered, and the rules, to a plan.

Pure and deterministic: no clock, no service, no file. The same function serves the daemon, the dry run, `explain` and
the simulation. How it is divided:

    plan.decide      the order of things, and the rails that stop everything
      nodes          one node at a time: its phase in Slurm against the instance under its name
      gangs, gates   nodes that power up, together with the jobs that they are for
      pools          cool-downs, and instances of no node
      draft          the look and the growing plan
"""

from __future__ import annotations

from gpucluster.autoscaler.decide import gangs, nodes, pools
from gpucluster.autoscaler.decide.plan_builder import Draft
from gpucluster.autoscaler.decide.world import Fault, Memory, Observation, Outcome, Plan
from gpucluster.autoscaler.policy import Policy

# What notes about everything are filed under.
EVERYTHING = "autoscaler"


def decide(observation: Observation, memory: Memory, policy: Policy, now: float) -> Plan:
    """Decide what is to be done now.

    Args:
        observation: one look; its outcomes and intents are those since the last one.
        memory: what the last plan said is to be remembered.
        now: seconds of the epoch by the loop's own clock.
    """
    draft = Draft(observation, memory, policy, now)
    for outcome in observation.outcomes:
        _learn(draft, outcome)
    obstacle = _obstacle(draft)
    if obstacle:
        draft.note(EVERYTHING, obstacle)
        return draft.plan()
    draft.node_count = len(draft.nodes)
    nodes.look(draft)
    gangs.look(draft)
    pools.tend(draft)
    pools.orphans(draft)
    _forget(draft)
    return draft.plan()


def _learn(draft: Draft, outcome: Outcome) -> None:
    """Put down how a launch ended. One of an older generation says nothing about the present one."""
    slot = draft.slots.get(outcome.node)
    if slot is None or slot.token != outcome.token:
        return
    if outcome.fault is None:
        state = "launched" if slot.state in ("intended", "held") else slot.state
        draft.change(slot, state=state, instance_id=outcome.instance_id, fault="", request_id=outcome.request_id)
        return
    if slot.state not in ("intended", "held", "launched"):
        return
    if outcome.fault is Fault.TRANSIENT:
        draft.change(
            slot, since=draft.now, fault=outcome.fault.value, message=outcome.message, request_id=outcome.request_id
        )
        return
    if slot.state != "launched" and draft.launched_at:
        # nothing was launched: it does not count against the launches of this hour
        draft.launched_at.pop()
    draft.change(
        slot,
        state="failed",
        fault=outcome.fault.value,
        message=outcome.message,
        request_id=outcome.request_id,
        tries=slot.tries + 1,
    )


def _obstacle(draft: Draft) -> str:
    """Why nothing at all may be done now; empty if nothing stands in the way."""
    observation, memory = draft.observation, draft.memory
    if observation.nodes is None or observation.jobs is None:
        return "Slurm can't be asked: nothing is done until it can"
    if observation.instances is None:
        return "the cloud can't be asked: nothing is launched, ended or taken down until it can"
    declared = sum(pool.names for pool in draft.policy.pools.values())
    expected = min(memory.node_count, declared) if memory.node_count else min(declared, 1)
    if len(observation.nodes) * 2 < expected:
        listed, before = len(observation.nodes), memory.node_count or declared
        return f"Slurm lists {listed} elastic nodes where there were {before}: nothing is done on that word alone"
    if memory.paused:
        for slot in list(draft.slots.values()):
            if slot.state == "intended":
                draft.change(slot, state="held")
        return f"paused ({memory.paused}): nothing is launched, ended or changed until it is resumed"
    return ""


def _forget(draft: Draft) -> None:
    """Drop what is over: slots of names that Slurm no longer has, and instances that are gone."""
    if len(draft.slots) > 0 and draft.slots.keys() - draft.nodes.keys():
        for name, slot in list(draft.slots.items()):
            if name in draft.nodes or name in draft.live or draft.in_flight(slot):
                continue
            if draft.now - slot.since > draft.policy.times.listing_lag:
                del draft.slots[name]
    if draft.healed_at:
        draft.healed_at = {name: at for name, at in draft.healed_at.items() if draft.now - at < nodes.HEALS_IN}
    if draft.orphans_seen:
        there = {instance.id for instances in draft.live.values() for instance in instances}
        draft.orphans_seen = {name: at for name, at in draft.orphans_seen.items() if name in there}
