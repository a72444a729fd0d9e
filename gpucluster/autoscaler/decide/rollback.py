"""Rollback and backoff of a gang: its jobs are annotated, its nodes given up, and its jobs get a later start."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from gpucluster.autoscaler.decide import admission, pools
from gpucluster.autoscaler.decide.grouping import Gang
from gpucluster.autoscaler.decide.plan_builder import PlanBuilder
from gpucluster.autoscaler.decide.types import (
    Annotate,
    ClaimState,
    Delay,
    Fault,
    GangHistory,
    Hold,
    Job,
    Node,
    PowerDown,
)
from gpucluster.autoscaler.decide.words import describe_fault, timestamp
from gpucluster.autoscaler.policy import MAX_ATTEMPTS
from gpucluster.node_agent.rules.reasons import PREFIX
from gpucluster.slurm.states import JobState

# For so many seconds after a job was postponed, a start time or a hold that did not take effect is set again, with so
# many seconds between two tries.
_INSIST, _AGAIN = 60.0, 5.0


def deny(builder: PlanBuilder, gang: Gang, denial: admission.Denial) -> None:
    """Postpone a gang that is not admitted now."""
    known = builder.gangs.get(gang.id) or GangHistory(gang.id)
    if denial.permanent and denial.pool_too_small and _fits_elsewhere(builder, gang):
        denial = replace(denial, permanent=False)  # Slurm chose a pool that is too small, and may choose a larger one
    if any(not job.requeue for job in gang.jobs) and not denial.permanent:
        # Nothing was launched, so waiting on its nodes costs nothing; giving up its nodes would end the job.
        words = f"{PREFIX} {denial.why}. The job keeps its nodes and starts when that is over"
        if known.message != words and builder.now - known.seen_at > _INSIST:
            builder.actions.extend(Annotate(job.id, words) for job in gang.jobs)
            builder.gangs[gang.id] = replace(known, message=words, seen_at=builder.now)
        builder.note(gang.id, words)
        return
    guess = builder.now + _backoff(builder, gang, min(known.refusals, 3))
    until = max(denial.until, builder.now) + 1 if denial.until else guess
    without = frozenset(node.pool for node in gang.nodes)
    if (
        not denial.permanent
        and _elsewhere(builder, gang, without)
        and any(pools.closed(builder, name) for name in without)
    ):
        until = 0.0
    changed = replace(known, refusals=known.refusals + 1)
    _postpone(builder, gang, changed, until, denial.why, hold=denial.permanent, dropping=_own_nodes(builder, gang))


def give_way(builder: PlanBuilder, gang: Gang, other: str) -> None:
    """Postpone a gang whose nodes another one has given up. It has failed at nothing: it counts as no try."""
    first, known = builder.gangs.get(other), builder.gangs.get(gang.id) or GangHistory(gang.id)
    until = builder.now + _backoff(builder, gang, min(known.refusals, 3))
    until = max(until, first.not_before if first else 0.0)
    changed = replace(known, refusals=known.refusals + 1)
    why = f"it shares nodes with job {other}, which has to wait"
    _postpone(builder, gang, changed, until, why, hold=False, dropping=_to_drop(builder, gang))


def end_delays(builder: PlanBuilder) -> None:
    """Let jobs start at once that were postponed before an operator let the autoscaler continue."""
    for gang in list(builder.gangs.values()):
        if gang.not_before <= builder.now or gang.refused_at >= builder.memory.resumed_at:
            continue
        builder.gangs[gang.id] = replace(gang, not_before=0.0, refusals=0)
        builder.actions.extend(
            Delay(job.id, builder.now + 1, f"{PREFIX} an operator has let the autoscaler continue")
            for job in builder.jobs.values()
            if job.gang == gang.id and job.pending
        )


def roll_back(
    builder: PlanBuilder,
    gang: Gang,
    kind: Fault,
    message: str,
    failed_pools: frozenset[str] = frozenset(),
    cause: str = "",
) -> None:
    """Give the whole gang up in one step: Slurm requeues its jobs, and what was launched for it is terminated.

    Args:
        failed_pools: the pools that failed; they cool down.
        message: for the job. `cause`: for the cool-downs; by default the message.
    """
    known = builder.gangs.get(gang.id) or GangHistory(gang.id)
    attempts = known.attempts + 1
    until = builder.now + _backoff(builder, gang, known.attempts)
    for name in sorted(failed_pools):
        until = max(until, pools.cool_down(builder, name, kind, cause or message).until + 1)
    elsewhere = bool(failed_pools) and _elsewhere(builder, gang, failed_pools)
    hold = attempts >= MAX_ATTEMPTS or (kind is Fault.CONFIGURATION and not elsewhere)
    changed = replace(known, attempts=0 if hold else attempts)
    words = f"{describe_fault(kind, message)} (try {attempts} of {MAX_ATTEMPTS})"
    dropping = _to_drop(builder, gang)
    _postpone(builder, gang, changed, 0.0 if elsewhere else until, words, hold=hold, dropping=dropping)


def _to_drop(builder: PlanBuilder, gang: Gang) -> list[Node]:
    """The nodes that go with a gang: those that no other needs, and those that have failed."""
    own = [node for node in gang.nodes if _not_shared(builder, gang, node.name) or _has_failed(builder, node.name)]
    return own + _registered(builder, gang)


def _postpone(
    builder: PlanBuilder,
    gang: Gang,
    history: GangHistory,
    until: float,
    why: str,
    *,
    hold: bool,
    dropping: Sequence[Node],
) -> None:
    """Annotate or hold the jobs, give the nodes up, then set the later start.

    The order matters: Slurm gives a later start only to a pending job. A job is pending once its nodes are given up.

    Args:
        until: the later start; 0 lets Slurm start the job at once in another pool.
    """
    if hold:
        next_try = f"The job is held: release it ({builder.words.release}) when the cause is fixed"
    elif until:
        next_try = f"Next try at {timestamp(until)}"
    else:
        next_try = f"{builder.words.name} tries another pool"
    words = f"{PREFIX} {why}. {next_try}"
    names = tuple(node.name for node in dropping)
    later = []
    for job in gang.jobs:
        if not job.requeue:
            builder.actions.append(Annotate(job.id, f"{PREFIX} {why}. {builder.words.not_requeued}"))
        elif hold:
            builder.actions.append(Hold(job.id, words))
        elif until:
            later.append(Delay(job.id, until, words))
        else:
            builder.actions.append(Annotate(job.id, words))
    if names:
        builder.actions.append(PowerDown(names, words if gang.jobs else f"{PREFIX} {why}"))
    builder.actions.extend(later)
    for name in names:
        builder.dropped[name] = gang.id
        claim = builder.claims.get(name)
        if claim:
            builder.drop(claim)
        else:
            # Slurm may be slow to give the node up: the claim shows that no administrator powered it up.
            builder.reserve(builder.nodes[name], ClaimState.DROPPING)
    builder.gangs[gang.id] = replace(
        history,
        not_before=until,
        message=words,
        seen_at=builder.now,
        refused_at=builder.now,
        admitted_at=0.0,
        first_failure=0.0,
        held=hold,
    )
    builder.note(gang.id, words)


def _not_shared(builder: PlanBuilder, gang: Gang, name: str) -> bool:
    return all(job.gang == gang.id for job in builder.holders.get(name, ()))


def _has_failed(builder: PlanBuilder, name: str) -> bool:
    claim = builder.claims.get(name)
    return claim is not None and claim.state in (ClaimState.FAILED, ClaimState.ENDING)


def _own_nodes(builder: PlanBuilder, gang: Gang) -> list[Node]:
    """The nodes that are given up with a gang that is not admitted: its own, or all if each of them is shared."""
    own = [node for node in gang.nodes if _not_shared(builder, gang, node.name)]
    return own or [node for node in gang.nodes if node.name not in builder.claims] or list(gang.nodes)


def _registered(builder: PlanBuilder, gang: Gang) -> list[Node]:
    """Nodes that were launched for this gang and are in service: without it they would idle and cost money."""
    names = {name: None for job in gang.jobs for name in job.nodes}
    return [
        builder.nodes[name]
        for name in names
        if (claim := builder.claims.get(name))
        and claim.jobs == (gang.id,)
        and claim.state == ClaimState.UP
        and name in builder.nodes
        and name not in builder.powering_up
        and _not_shared(builder, gang, name)
    ]


def _fits_elsewhere(builder: PlanBuilder, gang: Gang) -> bool:
    return bool(gang.jobs) and all(
        admission.fits_elsewhere(builder, job.partitions, job.node_count) for job in gang.jobs
    )


def _elsewhere(builder: PlanBuilder, gang: Gang, without: frozenset[str]) -> bool:
    return bool(gang.jobs) and all(
        admission.elsewhere(builder, job.partitions, job.node_count, without) for job in gang.jobs
    )


def _backoff(builder: PlanBuilder, gang: Gang, before: int) -> float:
    """Seconds until the next try after `before` tries: doubled each time, up to the limit.

    Up to a quarter is added, always the same for the same gang and number, so that gangs that failed together are not
    tried again at the same time.
    """
    times = builder.policy.times
    part = hashlib.sha256(f"{gang.id}/{before}".encode()).digest()[0] / 1024
    return min(times.backoff * 2.0 ** min(before, 20), times.backoff_limit) * (1 + part)


# --- afterwards -----


def follow_up(builder: PlanBuilder) -> None:
    """Forget gangs that are over. Repeat a start time or a hold that Slurm refused because the job was still ending."""
    for history in list(builder.gangs.values()):
        if history.id.startswith("node/"):
            if history.id.removeprefix("node/") not in builder.powering_up:
                del builder.gangs[history.id]
            continue
        if history.id in builder.gangs_powering_up:
            continue  # an interactive job is RUNNING before its nodes are up
        leader = builder.jobs.get(history.id)
        if leader is None or leader.state == JobState.RUNNING:
            if leader or builder.now - history.seen_at > _INSIST:
                del builder.gangs[history.id]
        elif leader.pending:
            if history.admitted_at:
                builder.gangs[history.id] = replace(history, admitted_at=0.0, first_failure=0.0)
            elif builder.now - history.refused_at < _INSIST and builder.now - history.seen_at >= _AGAIN:
                _repeat(builder, history, leader)


def _repeat(builder: PlanBuilder, history: GangHistory, leader: Job) -> None:
    if history.held and not leader.reason.startswith("JobHeld"):
        builder.actions.append(Hold(leader.id, history.message))
    elif not history.held and history.not_before > builder.now and 0 < leader.eligible_at < history.not_before - _AGAIN:
        builder.actions.append(Delay(leader.id, history.not_before, history.message))
    else:
        return
    builder.gangs[history.id] = replace(history, seen_at=builder.now)
