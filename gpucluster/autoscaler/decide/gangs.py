"""Jobs that start together get their nodes together, or none.

A gang is what Slurm gave nodes and is powering up: the components of one job. Its way: it passes the gates whole, or
not at all; its missing instances are launched; what fails is tried again for a short while, and then the whole gang is
rolled back, with words on the job and a later start. Nodes that power up for no job are gangs of one without a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gpucluster.autoscaler.decide import admission, pools, rollback
from gpucluster.autoscaler.decide.grouping import TOLD, Team, teams
from gpucluster.autoscaler.decide.phases import Phase, wanted
from gpucluster.autoscaler.decide.plan_builder import Draft
from gpucluster.autoscaler.decide.words import count, fault, some
from gpucluster.autoscaler.decide.world import Fault, Gang, Node, Slot

# An instance that was replaced so often for one gang is not replaced again.
_MAX_TRIES = 3


def look(draft: Draft) -> None:
    """Decide on every node that powers up."""
    if draft.coming:
        for team in teams(draft):
            draft.coming_for.add(team.id)
            _decide(draft, team)
    rollback.tend(draft)


def _decide(draft: Draft, team: Team) -> None:
    known = draft.gangs.get(team.id)
    if known and known.refused_at and draft.now - known.refused_at < TOLD and not known.admitted_at:
        draft.note(team.id, f"{team.called} was told to wait: its nodes are being given back")
        return
    by = next((draft.dropped[node.name] for node in team.nodes if node.name in draft.dropped), None)
    if by is not None:
        rollback.roll_back(
            draft, team, Fault.CAPACITY, f"it shares nodes with job {by}, which could not be started", frozenset()
        )
        return
    failed = [slot for node in team.nodes if (slot := draft.slots.get(node.name)) and slot.state == "failed"]
    if failed and _give_up(draft, team, failed):
        return
    if _protected(draft, team):
        return
    _launch_missing(draft, team, failed)


def _give_up(draft: Draft, team: Team, failed: list[Slot]) -> bool:
    """Roll the gang back if what failed is beyond trying again."""
    for kind in (Fault.CONFIGURATION, Fault.LIMIT):
        one = next((slot for slot in failed if slot.fault == kind), None)
        if one:
            rollback.roll_back(draft, team, kind, one.message, _pools_of(failed))
            return True
    known = draft.gangs.get(team.id) or Gang(team.id, seen_at=draft.now)
    first = known.first_failure
    if not first:
        first = draft.now
        draft.gangs[team.id] = replace(known, first_failure=first, seen_at=draft.now)
    worst = max(failed, key=lambda slot: slot.tries)
    spent = any(slot.fault in (Fault.LOST, Fault.TRANSIENT) and slot.tries >= _MAX_TRIES for slot in failed)
    late = draft.now - first >= draft.policy.times.gang_retry_window
    if not spent and not (late and any(slot.fault != Fault.LOST for slot in failed)):
        return False
    kind = Fault(worst.fault) if worst.fault else Fault.CAPACITY
    words = (
        f"{len(failed)} of {count(len(team.nodes), 'node')}, {some([slot.node for slot in failed])}: {worst.message}"
    )
    rollback.roll_back(
        draft, team, kind, words, _pools_of(failed) if kind is not Fault.LOST else frozenset(), worst.message
    )
    return True


def _protected(draft: Draft, team: Team) -> bool:
    """Roll the gang back if it waits for a replacement in a pool whose nodes do not boot."""
    for node in team.nodes:
        slot, closed = draft.slots.get(node.name), pools.closed(draft, node.pool)
        if slot and slot.state == "ending" and slot.fault == Fault.BOOT and closed and closed.fault == Fault.BOOT:
            rollback.roll_back(draft, team, Fault.BOOT, closed.message, frozenset({node.pool}))
            return True
    return False


def _launch_missing(draft: Draft, team: Team, failed: list[Slot]) -> None:
    missing = [node for node in team.nodes if _replaceable(draft, team, node)]
    if not missing and not failed:
        _calm(draft, team)
        _resend(draft, team)
        return
    known = draft.gangs.get(team.id)
    if not (known and known.admitted_at and known.restarts == team.restarts):
        absent = _not_yet_powered(draft, team)
        if absent:
            draft.note(team.id, f"{team.called} waits until Slurm powers up {some(absent)} as well")
            return
        lacking = [node for node in team.nodes if _lacks(draft, node)]
        refusal = admission.refusal(draft, Counter(node.pool for node in lacking))
        if refusal:
            rollback.refuse(draft, team, refusal)
            return
        _admit(draft, team, lacking)
    for node in missing:
        draft.launch(node, draft.gangs_of(node.name), f"Slurm powers {node.name} up for {team.called}")
    _retry(draft, team, failed)
    _resend(draft, team)


def _not_yet_powered(draft: Draft, team: Team) -> list[str]:
    return [
        name
        for job in team.jobs
        for name in job.nodes
        if (node := draft.nodes.get(name)) and draft.phase_of(name) is Phase.OFF and wanted(node.flags)
    ]


def _lacks(draft: Draft, node: Node) -> bool:
    """Whether a node will need a new instance, now or when the old one has ended."""
    slot = draft.slots.get(node.name)
    return slot is None or (slot.state in ("ending", "dropping") and node.name not in draft.live)


def _replaceable(draft: Draft, team: Team, node: Node) -> bool:
    """Whether a node that powers up lacks an instance, and its name is free for a new one."""
    slot = draft.slots.get(node.name)
    if slot is None:
        if node.name in draft.terminating:
            draft.note(node.name, f"the old instance of {node.name} still ends: the new one is launched after that")
            return False
        return True
    if slot.state not in ("ending", "dropping"):
        return False
    for instance in draft.live.get(node.name, ()):
        if slot.state == "dropping":
            # Slurm gave it to another job before it could be given up
            draft.change(slot, state="launched", instance_id=instance.id)
            return False
        why = f"{instance.id} is from before {node.name} was powered up again; it is replaced"
        draft.terminate(node.name, node.pool, instance.id, why, unless_wanted=False)
        return False
    return _name_is_free(draft, slot)


def _name_is_free(draft: Draft, slot: Slot) -> bool:
    unsure = slot.instance_id and slot.instance_id not in draft.gone
    if slot.node in draft.terminating or draft.in_flight(slot):
        return False
    return not (unsure and draft.now - slot.since < draft.policy.times.listing_lag)


def _admit(draft: Draft, team: Team, missing: list[Node]) -> None:
    known = draft.gangs.get(team.id) or Gang(team.id)
    draft.gangs[team.id] = replace(
        known,
        admitted_at=draft.now,
        seen_at=draft.now,
        refusals=0,
        held=False,
        first_failure=0.0,
        restarts=team.restarts,
    )
    for node in missing:
        if node.name not in draft.slots and node.name in draft.terminating:
            # its old instance still ends: the place of the new one is kept
            number, jobs = draft.highest.get(node.name, 0), draft.gangs_of(node.name)
            draft.slots[node.name] = Slot(node.name, node.pool, number, "", "ending", draft.now, draft.now, jobs)
    for name, number in Counter(node.pool for node in missing).items():
        draft.tally[name] += number
        cooling = draft.cool_downs.get(name)
        if cooling:
            draft.cool_downs[name] = replace(cooling, probing=True)
    draft.note(
        team.id, f"{team.called} gets {count(len(missing), 'new node')}: {some([node.name for node in missing])}"
    )


def _retry(draft: Draft, team: Team, failed: list[Slot]) -> None:
    """Ask again for what failed, a moment after it did."""
    pause = draft.policy.times.retry_pause
    for slot in failed:
        if slot.fault != Fault.LOST and draft.now - slot.since < pause:
            continue
        if slot.node in draft.live or slot.node in draft.terminating:
            continue
        if draft.slots.get(slot.node) is slot:
            node = draft.coming[slot.node]
            why = f"try {slot.tries + 1} for {team.called} after {fault(slot.fault, slot.message)}"
            draft.launch(node, slot.jobs, why)


def _resend(draft: Draft, team: Team) -> None:
    """Ask again, with the same token, for launches of which nobody knows what became of them."""
    times = draft.policy.times
    for node in team.nodes:
        slot = draft.slots.get(node.name)
        if (
            slot is None
            or slot.state not in ("intended", "held")
            or draft.in_flight(slot)
            or slot.asked_at == draft.now
        ):
            continue
        if draft.now - slot.asked_at > times.launch_deadline:
            draft.change(slot, state="failed", fault=Fault.TRANSIENT.value, tries=_MAX_TRIES)
        elif "InvalidatedRetryToken" in slot.message:
            draft.launch(node, slot.jobs, f"the token of the launch for {team.called} is used up; nothing is listed")
        elif not slot.fault or draft.now - slot.since >= times.retry_pause:
            slot = draft.change(slot, state="intended", since=draft.now if slot.fault else slot.since, fault="")
            draft.ask_again(slot, f"nobody knows what became of the launch for {team.called}: the same one again")


def _calm(draft: Draft, team: Team) -> None:
    """Everything that was missing is there or asked for: an old failure does not count against a later one."""
    known = draft.gangs.get(team.id)
    if (
        known
        and known.first_failure
        and all(
            (slot := draft.slots.get(node.name)) is not None and slot.state in ("running", "joining", "up")
            for node in team.nodes
        )
    ):
        draft.gangs[team.id] = replace(known, first_failure=0.0)


def _pools_of(slots: Sequence[Slot]) -> frozenset[str]:
    return frozenset(slot.pool for slot in slots)
