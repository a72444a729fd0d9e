"""Putting a gang off: words on its jobs, its nodes back, and a later start."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from gpucluster.autoscaler.decide import admission, pools
from gpucluster.autoscaler.decide.grouping import Team
from gpucluster.autoscaler.decide.nodes import NOT_REQUEUED
from gpucluster.autoscaler.decide.phases import OURS
from gpucluster.autoscaler.decide.plan_builder import Draft
from gpucluster.autoscaler.decide.words import clock, fault
from gpucluster.autoscaler.decide.world import Delay, Fault, Gang, Hold, Job, Node, PowerDown, Slot, Tell
from gpucluster.autoscaler.policy import MAX_ATTEMPTS

# In this time after a job was put off its start time is put right if it did not take, so often at most.
_INSIST, _AGAIN = 60.0, 5.0


def refuse(draft: Draft, team: Team, refusal: admission.Refusal) -> None:
    """Put off a gang that may not pass the gates now."""
    known = draft.gangs.get(team.id) or Gang(team.id)
    if refusal.never and refusal.here and _fits_elsewhere(draft, team):
        refusal = replace(refusal, never=False)  # Slurm chose badly, and may choose better
    if any(not job.requeue for job in team.jobs) and not refusal.never:
        # nothing was launched, so waiting where it is costs nothing; giving up its nodes would end it
        words = f"{OURS} {refusal.why}. The job keeps its place and starts when that is over"
        if known.message != words and draft.now - known.seen_at > _INSIST:
            draft.actions.extend(Tell(job.id, words) for job in team.jobs)
            draft.gangs[team.id] = replace(known, message=words, seen_at=draft.now)
        draft.note(team.id, words)
        return
    guess = draft.now + _wait(draft, team, min(known.refusals, 3))
    until = max(refusal.until, draft.now) + 1 if refusal.until else guess
    without = frozenset(node.pool for node in team.nodes)
    if not refusal.never and _elsewhere(draft, team, without) and any(pools.closed(draft, name) for name in without):
        until = 0.0
    changed = replace(known, refusals=known.refusals + 1, fault="")
    _put_off(draft, team, changed, until, refusal.why, hold=refusal.never, dropping=_own_nodes(draft, team))


def roll_back(
    draft: Draft, team: Team, kind: Fault, message: str, asked: frozenset[str] = frozenset(), cause: str = ""
) -> None:
    """Give the whole gang up in one step: its job is requeued, and what was launched for it is ended.

    Args:
        message: for the job. `cause`: for the pools that failed, `asked`, which are left alone for a while.
    """
    known = draft.gangs.get(team.id) or Gang(team.id)
    attempts = known.attempts + 1
    until = draft.now + _wait(draft, team, known.attempts)
    for name in sorted(asked):
        until = max(until, pools.cool_down(draft, name, kind, cause or message).until + 1)
    elsewhere = bool(asked) and _elsewhere(draft, team, asked)
    hold = attempts >= MAX_ATTEMPTS or (kind is Fault.CONFIGURATION and not elsewhere)
    changed = replace(known, attempts=0 if hold else attempts, fault=kind.value)
    words = f"{fault(kind, message)} (try {attempts} of {MAX_ATTEMPTS})"
    dropping = [node for node in team.nodes if _alone(draft, team, node.name) or _has_failed(draft, node.name)]
    dropping += _registered(draft, team)
    _put_off(draft, team, changed, 0.0 if elsewhere else until, words, hold=hold, dropping=dropping)


def _put_off(
    draft: Draft, team: Team, gang: Gang, until: float, why: str, *, hold: bool, dropping: Sequence[Node]
) -> None:
    """Words or a hold, nodes back, and a later start. `until` 0: as soon as Slurm likes, in another pool.

    In this order: Slurm gives a later start only to a job that waits, and it waits once its nodes are given up.
    """
    if hold:
        next_try = "The job is held: release it (scontrol release) when that is put right"
    elif until:
        next_try = f"Next try at {clock(until)}"
    else:
        next_try = "Slurm tries another pool of the partition"
    words = f"{OURS} {why}. {next_try}"
    names = tuple(node.name for node in dropping)
    later = []
    for job in team.jobs:
        if not job.requeue:
            draft.actions.append(Tell(job.id, f"{OURS} {why}. {NOT_REQUEUED}"))
        elif hold:
            draft.actions.append(Hold(job.id, words))
        elif until:
            later.append(Delay(job.id, until, words))
        else:
            draft.actions.append(Tell(job.id, words))
    if names:
        draft.actions.append(PowerDown(names, words if team.jobs else f"{OURS} {why}"))
    draft.actions.extend(later)
    for name in names:
        draft.dropped[name] = team.id
        slot = draft.slots.get(name)
        if slot:
            draft.drop(slot)
        else:
            # remembered, so that nobody takes it for one that a person powered up should Slurm be slow to give it up
            node, number = draft.nodes[name], draft.highest.get(name, 0)
            draft.slots[name] = Slot(
                name, node.pool, number, "", "dropping", draft.now, draft.now, draft.gangs_of(name)
            )
    draft.gangs[team.id] = replace(
        gang,
        not_before=until,
        message=words,
        seen_at=draft.now,
        refused_at=draft.now,
        admitted_at=0.0,
        first_failure=0.0,
        held=hold,
    )
    draft.note(team.id, words)


def _alone(draft: Draft, team: Team, name: str) -> bool:
    return all(job.gang == team.id for job in draft.holders.get(name, ()))


def _has_failed(draft: Draft, name: str) -> bool:
    slot = draft.slots.get(name)
    return slot is not None and slot.state in ("failed", "ending")


def _own_nodes(draft: Draft, team: Team) -> list[Node]:
    """What is given up with a gang that was refused: its own nodes, or all where every one is shared."""
    own = [node for node in team.nodes if _alone(draft, team, node.name)]
    return own or [node for node in team.nodes if node.name not in draft.slots] or list(team.nodes)


def _registered(draft: Draft, team: Team) -> list[Node]:
    """Nodes that were launched for this gang and are in service already: they would wait for it and cost money."""
    names = {name: None for job in team.jobs for name in job.nodes}
    return [
        draft.nodes[name]
        for name in names
        if (slot := draft.slots.get(name))
        and slot.jobs == (team.id,)
        and slot.state == "up"
        and name in draft.nodes
        and name not in draft.coming
        and _alone(draft, team, name)
    ]


def _fits_elsewhere(draft: Draft, team: Team) -> bool:
    return bool(team.jobs) and all(admission.fits_elsewhere(draft, job.partitions, job.node_count) for job in team.jobs)


def _elsewhere(draft: Draft, team: Team, without: frozenset[str]) -> bool:
    return bool(team.jobs) and all(
        admission.elsewhere(draft, job.partitions, job.node_count, without) for job in team.jobs
    )


def _wait(draft: Draft, team: Team, before: int) -> float:
    """How long a gang is put off after so many times before: doubled each time, up to the limit.

    Up to a quarter is added, always the same for the same gang and time, so that those that failed together don't come
    back together.
    """
    times = draft.policy.times
    part = hashlib.sha256(f"{team.id}/{before}".encode()).digest()[0] / 1024
    return min(times.backoff * 2.0 ** min(before, 20), times.backoff_limit) * (1 + part)


# --- afterwards -----


def tend(draft: Draft) -> None:
    """Forget gangs that are over; put right a start time or a hold that did not take because the job still ended."""
    for gang in list(draft.gangs.values()):
        if gang.id.startswith("node/"):
            if gang.id.removeprefix("node/") not in draft.coming:
                del draft.gangs[gang.id]
            continue
        if gang.id in draft.coming_for:
            continue  # an interactive job is RUNNING before its nodes are there
        leader = draft.jobs.get(gang.id)
        if leader is None or leader.state == "RUNNING":
            if leader or draft.now - gang.seen_at > _INSIST:
                del draft.gangs[gang.id]
        elif leader.pending:
            if gang.admitted_at:
                draft.gangs[gang.id] = replace(gang, admitted_at=0.0, first_failure=0.0)
            elif draft.now - gang.refused_at < _INSIST and draft.now - gang.seen_at >= _AGAIN:
                _put_right(draft, gang, leader)


def _put_right(draft: Draft, gang: Gang, leader: Job) -> None:
    if gang.held and not leader.reason.startswith("JobHeld"):
        draft.actions.append(Hold(leader.id, gang.message))
    elif not gang.held and gang.not_before > draft.now and 0 < leader.eligible_at < gang.not_before - _AGAIN:
        draft.actions.append(Delay(leader.id, gang.not_before, gang.message))
    else:
        return
    draft.gangs[gang.id] = replace(gang, seen_at=draft.now)
