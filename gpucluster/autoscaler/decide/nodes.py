"""One node at a time: what Slurm says of it against what the cloud has under its name.

Each phase has its rule. A node at rest, in service with its instance or powered down without one, is passed over. Nodes
that power up are brought up to date here and decided on in `gangs`, for they belong together.
"""

from __future__ import annotations

from collections.abc import Callable

from gpucluster.autoscaler.decide import pools
from gpucluster.autoscaler.decide.phases import OURS, Phase, a_persons, ours, phase, wanted
from gpucluster.autoscaler.decide.plan_builder import Draft
from gpucluster.autoscaler.decide.words import clock, count
from gpucluster.autoscaler.decide.world import Drain, Fault, Instance, Join, Node, SaveConsole, Slot, Tell
from gpucluster.autoscaler.policy import MAX_ORPHANS_PER_LOOK, STRIKES

# A node that is powered down without our having seen it leave gets this long to come back before its instance is ended.
SETTLE = 30.0
# Slurm holds its lock for as long as it powers nodes down: 3 s for ten thousand of them (measured with 22.05).
MAX_HEALED_PER_LOOK = 500
# Until a node that was healed shows it; Slurm is not told twice in this time.
HEALS_IN = 15.0
# In these states of a slot there is, or was, an instance that the cloud accepted.
ACCEPTED = frozenset({"launched", "joining", "running", "up"})


def look(draft: Draft) -> None:
    """Apply the rule of its phase to each node that is not at rest."""
    slots, live, pools_known = draft.slots, draft.live, draft.policy.pools
    for name, node in draft.nodes.items():
        now_in = phase(node.flags)
        if now_in is Phase.OFF:
            if name not in slots and name not in live:
                continue
        elif now_in is Phase.UP and _settled(slots.get(name), live.get(name), node):
            continue
        if node.pool not in pools_known:
            draft.note(name, f"node {name} belongs to no pool that this cluster has: it is left alone")
            continue
        _RULES[now_in](draft, node)


def _settled(slot: Slot | None, instances: list[Instance] | None, node: Node) -> bool:
    return (
        slot is not None
        and instances is not None
        and slot.state == "up"
        and len(instances) == 1
        and instances[0].id == slot.instance_id
        and instances[0].state == "RUNNING"
        and instances[0].maintenance_at is None
        and not slot.missing_since
        and not slot.silent_since
        and not node.flags & {"NOT_RESPONDING", "DRAIN"}
    )


# --- which instance stands behind a name -----


def standing(draft: Draft, node: Node) -> Instance | None:
    """The live instance of a node; where there are several, the others are ended.

    The one that slurmd registered from is kept, else the one we know of, else the oldest.
    """
    instances = draft.live.get(node.name)
    if not instances:
        return None
    if len(instances) == 1:
        return instances[0]
    slot = draft.slots.get(node.name)
    known = (node.instance_id, slot.instance_id if slot else "")
    kept = min(instances, key=lambda one: (one.id != known[0], one.id != known[1], one.generation, one.id))
    for other in instances:
        if other is not kept:
            pools.end_stray(
                draft, other, f"{node.name} has {len(instances)} instances; {kept.id} is the one that is kept"
            )
    return kept


def _vanished(draft: Draft, slot: Slot) -> bool | None:
    """Whether the instance of a slot is gone: True, False, or None while nobody can be sure. Counts the strikes."""
    if slot.instance_id and slot.instance_id in draft.gone:
        return True
    times = draft.policy.times
    if draft.now - slot.since < times.listing_lag and slot.state in ("launched", "intended"):
        return False
    if not slot.missing_since:
        draft.change(slot, missing_since=draft.now, strikes=1)
        return None
    if slot.strikes < STRIKES:
        slot = draft.change(slot, strikes=slot.strikes + 1)
    if slot.strikes >= STRIKES and draft.now - slot.missing_since >= times.unbacked_after:
        return True
    return None


# --- coming -----


def _coming(draft: Draft, node: Node) -> None:
    draft.coming[node.name] = node
    instance = standing(draft, node)
    slot = draft.slots.get(node.name)
    if slot is None:
        if instance:
            slot = draft.adopt(node, instance, "launched")
            draft.note(node.name, f"{instance.id} already carries the name of {node.name}: it is taken over")
            _present(draft, node, slot, instance)
        return
    if slot.state in ("dropping", "ending"):
        return
    if instance is None:
        _absent(draft, slot)
    elif instance.id == slot.instance_id:
        if slot.state != "failed":
            _present(draft, node, slot, instance)
    elif slot.state in ("intended", "held", "failed") or slot.instance_id in draft.gone or _vanished(draft, slot):
        slot = draft.adopt(node, instance, "launched")
        draft.note(node.name, f"the launch of {node.name} had come through: {instance.id} is taken over")
        _present(draft, node, slot, instance)


def _absent(draft: Draft, slot: Slot) -> None:
    if slot.state not in ACCEPTED or not _vanished(draft, slot):
        return
    slot = draft.slots[slot.node]
    early = slot.state == "launched"
    words = "the cloud accepted the launch and ended the instance before it ran" if early else "the instance is gone"
    kind = Fault.CAPACITY if early else Fault.LOST
    draft.change(
        slot, state="failed", fault=kind.value, message=words, tries=slot.tries + 1, missing_since=0.0, strikes=0
    )


def _present(draft: Draft, node: Node, slot: Slot, instance: Instance) -> None:
    if slot.missing_since:
        slot = draft.change(slot, missing_since=0.0, strikes=0)
    if instance.state in ("STOPPING", "STOPPED"):
        draft.change(slot, state="ending", fault=Fault.LOST.value, message="it was stopped", tries=slot.tries + 1)
        why = f"somebody stopped {instance.id} while {node.name} was coming up; stopped instances cost money"
        draft.terminate(node.name, node.pool, instance.id, why, unless_wanted=False)
        return
    if instance.state == "RUNNING":
        slot = _running(draft, node, slot, instance)
    why = _overdue(draft, slot, instance)
    if why:
        _boot_failure(draft, node, slot, instance, why)


def _running(draft: Draft, node: Node, slot: Slot, instance: Instance) -> Slot:
    if slot.state == "up":
        # it was in service, and powers up again without our having seen it leave
        return draft.change(slot, state="running")
    if slot.state == "launched":
        if draft.policy.pools[node.pool].baked:
            return draft.change(slot, state="running")
        why = f"{instance.id} runs and is to be made a node"
        draft.actions.append(Join(node.name, node.pool, instance.id, why))
        return draft.change(slot, state="joining", joined_at=draft.now)
    if instance.id in draft.observation.unasked:
        why = f"the configuration of {instance.id} could not be asked for: once more"
        draft.actions.append(Join(node.name, node.pool, instance.id, why))
        return draft.change(slot, state="joining", joined_at=draft.now)
    # what it is doing is said by who does it
    state = "joining" if instance.id in draft.observation.joining else "running"
    return draft.change(slot, state=state) if state != slot.state and draft.now > slot.since else slot


def _overdue(draft: Draft, slot: Slot, instance: Instance) -> str:
    """Why an instance is no longer waited for; empty if it is."""
    times, waited = draft.policy.times, draft.now - slot.since
    failed = draft.observation.join_failed.get(instance.id)
    if failed is not None:
        return f"it could not be configured: {failed}"
    if slot.state == "launched" and waited > times.launch_deadline:
        return f"it was {instance.state} for {count(int(waited), 'second')} and did not start"
    if slot.state == "joining" and waited > times.launch_deadline:
        return f"it was not configured within {count(int(waited), 'second')}"
    if slot.state == "running" and waited > times.join_deadline:
        return f"no slurmd registered from it within {count(int(waited), 'second')}"
    return ""


def _boot_failure(draft: Draft, node: Node, slot: Slot, instance: Instance, why: str) -> None:
    draft.actions.append(SaveConsole(instance.id, node.name, f"{node.name} did not come into service: {why}"))
    draft.change(slot, state="ending", fault=Fault.BOOT.value, message=why, tries=slot.tries + 1)
    draft.terminate(node.name, node.pool, instance.id, f"{why}; it is replaced", unless_wanted=False)
    pools.count_boot_failure(draft, node.pool, f"{node.name}: {why}")


# --- in service -----


def _up(draft: Draft, node: Node) -> None:
    instance = standing(draft, node)
    slot = draft.slots.get(node.name)
    if instance is None:
        _unbacked(draft, node, slot)
        return
    if slot is None or slot.instance_id != instance.id:
        slot = draft.adopt(node, instance, "up")
    if slot.state != "up":
        if slot.state in ACCEPTED:
            pools.came_into_service(draft, node.pool)
        slot = draft.change(slot, state="up", fault="", message="", ended_at=0.0, tries=0)
    if slot.missing_since:
        slot = draft.change(slot, missing_since=0.0, strikes=0)
    if instance.state == "STOPPED":
        lose(draft, node, f"its instance {instance.id} was stopped")
        return
    if _silent_for_too_long(draft, node, slot):
        words = f"slurmd does not answer for {count(int(draft.policy.times.silent_grace), 'second')}"
        lose(draft, node, words)
        return
    _drains(draft, node, instance)


def _unbacked(draft: Draft, node: Node, slot: Slot | None) -> None:
    if node.drained and a_persons(node.reason):
        draft.note(node.name, f"{node.name} has no instance, but a person drained it ({node.reason}): it is left alone")
        return
    if slot is None:
        slot = Slot(node.name, node.pool, 0, "", "up", draft.now, draft.now)
        draft.slots[node.name] = slot
    if _vanished(draft, slot):
        lose(draft, node, f"its instance {slot.instance_id or ''} is gone".replace("  ", " "))
    else:
        draft.note(node.name, f"the cloud's listing lacks the instance of {node.name}: watched before anything is done")


def lose(draft: Draft, node: Node, what: str) -> None:
    """Take a node whose instance is lost out of service and give it up; its jobs are requeued by Slurm."""
    for job in draft.holders.get(node.name, ()):
        if not job.requeue:
            draft.actions.append(Tell(job.id, f"{OURS} {node.name}: {what}. {NOT_REQUEUED}"))
    draft.mark_down(node.name, f"{OURS} {what}")
    draft.power_down(node.name, f"{OURS} {node.name}: {what}; Slurm runs its jobs again elsewhere")
    slot = draft.slots.get(node.name)
    if slot:
        draft.change(slot, state="ending", fault=Fault.LOST.value, message=what)


NOT_REQUEUED = (
    "The job was submitted with --no-requeue (or is interactive), so Slurm ends it instead of running it again"
)


def _silent_for_too_long(draft: Draft, node: Node, slot: Slot) -> bool:
    if not node.silent:
        if slot.silent_since:
            draft.change(slot, silent_since=0.0)
        return False
    if not slot.silent_since:
        draft.change(slot, silent_since=draft.now)
        return False
    return draft.now - slot.silent_since > draft.policy.times.silent_grace


def _drains(draft: Draft, node: Node, instance: Instance) -> None:
    if node.drained:
        if not ours(node.reason):
            draft.note(node.name, f"{node.name} was drained by a person or a check ({node.reason}): it is left alone")
        elif not node.busy:
            draft.power_down(node.name, f"{node.reason}; the node is idle now and is given back")
        return
    ahead = instance.maintenance_at
    if ahead is not None and ahead - draft.now <= draft.policy.times.drain_ahead:
        why = f"{OURS} the cloud will reboot the host for maintenance at {clock(ahead)}"
        draft.actions.append(Drain((node.name,), why))


# --- leaving, and away -----


def _leaving(draft: Draft, node: Node) -> None:
    _end(draft, node, f"Slurm powers {node.name} down")


def _off(draft: Draft, node: Node) -> None:
    if wanted(node.flags):
        draft.note(node.name, f"{node.name} is wanted again: it is waited for what Slurm does next")
        return
    slot = draft.slots.get(node.name)
    instances = draft.live.get(node.name)
    if instances and (slot is None or slot.state in ACCEPTED):
        draft.change(slot or draft.adopt(node, instances[0], "ending"), state="ending", fault="")
        return
    if instances and slot and slot.state == "ending" and not slot.ended_at and not slot.fault:
        if draft.now - slot.since < SETTLE or draft.swept >= MAX_ORPHANS_PER_LOOK:
            return
        draft.swept += 1
    _end(draft, node, f"Slurm has powered {node.name} down")


def _end(draft: Draft, node: Node, why: str) -> None:
    """See to it that nothing is left under a name that Slurm has given up."""
    slot = draft.slots.get(node.name)
    instances = draft.live.get(node.name, ())
    if slot and slot.state != "ending":
        if slot.state == "failed" and slot.fault != Fault.TRANSIENT and not instances:
            del draft.slots[node.name]
            return
        slot = draft.change(slot, state="ending")
    if wanted(node.flags):
        draft.note(node.name, f"{node.name} still has a job: its instance is left until that is over")
        return
    if slot is None and instances:
        slot = draft.adopt(node, instances[0], "ending")
    for instance in instances:
        if slot and instance.id == slot.instance_id:
            draft.terminate(node.name, node.pool, instance.id, why)
        elif slot and slot.state == "ending" and not slot.instance_id:
            slot = draft.change(slot, instance_id=instance.id)
            draft.terminate(node.name, node.pool, instance.id, why)
        else:
            pools.end_stray(draft, instance, why, unless_wanted=True)
    if slot and not instances:
        _let_go(draft, slot, why)


def _let_go(draft: Draft, slot: Slot, why: str) -> None:
    """Forget a slot when it is sure that nothing is behind it."""
    if draft.in_flight(slot):
        return
    fresh = draft.now - slot.since < draft.policy.times.listing_lag
    if slot.instance_id and slot.instance_id not in draft.gone and fresh:
        # accepted a moment ago and not listed yet: it is ended by its id
        draft.terminate(slot.node, slot.pool, slot.instance_id, why)
    elif slot.instance_id or not slot.token or not fresh:
        del draft.slots[slot.node]


# --- down -----


def _lost(draft: Draft, node: Node) -> None:
    if a_persons(node.reason):
        draft.note(node.name, f"{node.name} was taken down by a person ({node.reason}): it is left alone")
        return
    instance = standing(draft, node)
    slot = draft.slots.get(node.name)
    if instance is not None and instance.state not in ("STOPPING", "STOPPED") and not ours(node.reason):
        if slot is None or slot.instance_id != instance.id:
            slot = draft.adopt(node, instance, "up")
        if not _silent_for_too_long(draft, node, slot):
            draft.note(node.name, f"{node.name} is down, its instance {instance.id} runs: it may come back by itself")
            return
    draft.power_down(node.name, f"{OURS} {node.name} is down ({node.reason or 'Slurm lost it'}) and is given up")
    if slot:
        draft.change(slot, state="ending")


def _dead(draft: Draft, node: Node) -> None:
    cooling = draft.cool_downs.get(node.pool)
    slot = draft.slots.get(node.name)
    # Slurm 22.05 keeps an old reason: a node that did not come up in time carries what somebody said of it long ago
    awaited = slot is not None and slot.state in ("launched", "joining", "running") and "POWERED_DOWN" in node.flags
    if (a_persons(node.reason) and not awaited) or (cooling and cooling.until > draft.now and ours(node.reason)):
        if node.name in draft.slots or node.name in draft.live:
            _off(draft, node)
        return
    if slot and slot.state in ("launched", "joining", "running"):
        why = "it did not register before Slurm's ResumeTimeout"
        if slot.instance_id:
            draft.actions.append(SaveConsole(slot.instance_id, node.name, f"{node.name}: {why}"))
        draft.change(slot, state="ending", fault=Fault.BOOT.value, message=why)
        pools.count_boot_failure(draft, node.pool, f"{node.name}: {why}")
    if draft.healed >= MAX_HEALED_PER_LOOK or draft.now - draft.healed_at.get(node.name, -HEALS_IN) < HEALS_IN:
        return
    draft.healed += 1
    draft.healed_at[node.name] = draft.now
    reason = node.reason or "it did not come into service in time"
    draft.power_down(node.name, f"{OURS} {node.pool}: nodes that Slurm gave up are made usable again ({reason})")


_RULES: dict[Phase, Callable[[Draft, Node], None]] = {
    Phase.COMING: _coming,
    Phase.UP: _up,
    Phase.LEAVING: _leaving,
    Phase.OFF: _off,
    Phase.LOST: _lost,
    Phase.DEAD: _dead,
}
