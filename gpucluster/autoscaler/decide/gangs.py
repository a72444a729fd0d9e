"""Jobs that start together get their nodes together, or none of them.

A gang is the jobs that start together, with those of their nodes that Slurm powers up. A gang is admitted as a whole
or not at all; then its missing instances are launched. A launch that fails is tried again for a short time. After that
the whole gang is rolled back: its jobs are annotated, its nodes given up, and its jobs get a later start. A node that
powers up without a job is a gang of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gpucluster.autoscaler.decide import admission, pools, rollback
from gpucluster.autoscaler.decide.grouping import POWER_DOWN_SHOWS, Gang, group
from gpucluster.autoscaler.decide.phases import Phase
from gpucluster.autoscaler.decide.plan_builder import PlanBuilder
from gpucluster.autoscaler.decide.types import (
    RELEASED,
    STARTED,
    UNANSWERED,
    ClaimState,
    Fault,
    GangHistory,
    Node,
    NodeClaim,
)
from gpucluster.autoscaler.decide.words import describe_fault
from gpucluster.slurm.states import power_requested
from gpucluster.text import count, some

# An instance that was replaced so often for one gang is not replaced again.
_MAX_TRIES = 3


def reconcile(builder: PlanBuilder) -> None:
    """Decide on every node that powers up."""
    if builder.powering_up:
        for gang in group(builder):
            builder.gangs_powering_up.add(gang.id)
            _decide(builder, gang)
    rollback.follow_up(builder)


def _decide(builder: PlanBuilder, gang: Gang) -> None:
    known = builder.gangs.get(gang.id)
    if known and known.refused_at and builder.now - known.refused_at < POWER_DOWN_SHOWS and not known.admitted_at:
        builder.note(gang.id, f"{gang.called} has to wait: its nodes are being given up")
        return
    by = next((builder.dropped[node.name] for node in gang.nodes if node.name in builder.dropped), None)
    if by is not None:
        rollback.give_way(builder, gang, by)
        return
    failed = [
        claim for node in gang.nodes if (claim := builder.claims.get(node.name)) and claim.state == ClaimState.FAILED
    ]
    if failed and _give_up(builder, gang, failed):
        return
    if _pool_does_not_boot(builder, gang):
        return
    _launch_missing(builder, gang, failed)


def _give_up(builder: PlanBuilder, gang: Gang, failed: list[NodeClaim]) -> bool:
    """Roll the gang back if another try of what failed is useless."""
    for kind in (Fault.CONFIGURATION, Fault.LIMIT):
        cause = next((claim for claim in failed if claim.fault is kind), None)
        if cause:
            rollback.roll_back(builder, gang, kind, cause.message, _pools_of(failed))
            return True
    known = builder.gangs.get(gang.id) or GangHistory(gang.id, seen_at=builder.now)
    first = known.first_failure
    if not first:
        first = builder.now
        builder.gangs[gang.id] = replace(known, first_failure=first, seen_at=builder.now)
    worst = max(failed, key=lambda claim: claim.tries)
    spent = any(claim.fault in (Fault.LOST, Fault.TRANSIENT) and claim.tries >= _MAX_TRIES for claim in failed)
    late = builder.now - first >= builder.policy.times.gang_retry_window
    if not spent and not (late and any(claim.fault is not Fault.LOST for claim in failed)):
        return False
    kind = worst.fault or Fault.CAPACITY
    nodes = some([claim.node for claim in failed])
    words = f"{len(failed)} of {count(len(gang.nodes), 'node')}, {nodes}: {worst.message}"
    pools = _pools_of(failed) if kind is not Fault.LOST else frozenset()
    rollback.roll_back(builder, gang, kind, words, pools, worst.message)
    return True


def _pool_does_not_boot(builder: PlanBuilder, gang: Gang) -> bool:
    """Roll the gang back if it waits for a replacement in a pool whose nodes do not boot."""
    for node in gang.nodes:
        claim, closed = builder.claims.get(node.name), pools.closed(builder, node.pool)
        replaced = claim is not None and claim.state == ClaimState.ENDING and claim.fault is Fault.BOOT
        if replaced and closed and closed.fault is Fault.BOOT:
            rollback.roll_back(builder, gang, Fault.BOOT, closed.message, frozenset({node.pool}))
            return True
    return False


def _launch_missing(builder: PlanBuilder, gang: Gang, failed: list[NodeClaim]) -> None:
    missing = [node for node in gang.nodes if _replaceable(builder, gang, node)]
    if not missing and not failed:
        _clear_first_failure(builder, gang)
        _resend(builder, gang)
        return
    known = builder.gangs.get(gang.id)
    if not (known and known.admitted_at and known.restarts == gang.restarts):
        absent = _not_yet_powered(builder, gang)
        if absent:
            builder.note(gang.id, f"{gang.called} waits until {builder.words.name} powers up {some(absent)} as well")
            return
        lacking = [node for node in gang.nodes if _lacks(builder, node)]
        denial = admission.check(builder, Counter(node.pool for node in lacking), {job.account for job in gang.jobs})
        if denial:
            rollback.deny(builder, gang, denial)
            return
        _admit(builder, gang, lacking)
    for node in missing:
        why = f"{builder.words.name} powers {node.name} up for {gang.called}"
        builder.launch(node, builder.gangs_of(node.name), why)
    _retry(builder, gang, failed)
    _resend(builder, gang)


def _not_yet_powered(builder: PlanBuilder, gang: Gang) -> list[str]:
    return [
        name
        for job in gang.jobs
        for name in job.nodes
        if (node := builder.nodes.get(name))
        and builder.phase_of(name) is Phase.POWERED_DOWN
        and power_requested(node.flags)
    ]


def _lacks(builder: PlanBuilder, node: Node) -> bool:
    """Whether a node will need a new instance, now or when the old one has ended."""
    claim = builder.claims.get(node.name)
    return claim is None or (claim.state in RELEASED and node.name not in builder.live)


def _replaceable(builder: PlanBuilder, gang: Gang, node: Node) -> bool:
    """Whether a node that powers up lacks an instance, and its name is free for a new one."""
    claim = builder.claims.get(node.name)
    if claim is None:
        if node.name in builder.terminating:
            text = f"the old instance of {node.name} is still terminating: the new one is launched after that"
            builder.note(node.name, text)
            return False
        return True
    if claim.state not in RELEASED:
        return False
    for instance in builder.live.get(node.name, ()):
        if claim.state == ClaimState.DROPPING:
            # Slurm gave it to another job before it could be given up.
            builder.change(claim, state=ClaimState.LAUNCHED, instance_id=instance.id)
            return False
        why = f"{instance.id} is from before {node.name} was powered up again; it is replaced"
        builder.terminate(node.name, node.pool, instance.id, why, unless_wanted=False)
        return False
    return _name_is_free(builder, claim)


def _name_is_free(builder: PlanBuilder, claim: NodeClaim) -> bool:
    unsure = claim.instance_id and claim.instance_id not in builder.gone
    if claim.node in builder.terminating or builder.in_flight(claim):
        return False
    return not (unsure and builder.now - claim.since < builder.policy.times.listing_lag)


def _admit(builder: PlanBuilder, gang: Gang, missing: list[Node]) -> None:
    known = builder.gangs.get(gang.id) or GangHistory(gang.id)
    builder.gangs[gang.id] = replace(
        known,
        admitted_at=builder.now,
        seen_at=builder.now,
        refusals=0,
        held=False,
        first_failure=0.0,
        restarts=gang.restarts,
    )
    for node in missing:
        if node.name not in builder.claims and node.name in builder.terminating:
            # Its old instance is still terminating: a claim reserves the place of the new one.
            builder.reserve(node, ClaimState.ENDING)
    for name, number in Counter(node.pool for node in missing).items():
        builder.tally[name] += number
        cooling = builder.cool_downs.get(name)
        if cooling:
            builder.cool_downs[name] = replace(cooling, probing=True)
    names = some([node.name for node in missing])
    builder.note(gang.id, f"{gang.called} gets {count(len(missing), 'new node')}: {names}")


def _retry(builder: PlanBuilder, gang: Gang, failed: list[NodeClaim]) -> None:
    """Launch again what failed, a moment after it failed."""
    pause = builder.policy.times.retry_pause
    for claim in failed:
        if claim.fault is not Fault.LOST and builder.now - claim.since < pause:
            continue
        if claim.node in builder.live or claim.node in builder.terminating:
            continue
        if builder.claims.get(claim.node) is claim:
            node = builder.powering_up[claim.node]
            why = f"try {claim.tries + 1} for {gang.called} after {describe_fault(claim.fault, claim.message)}"
            builder.launch(node, claim.jobs, why)


def _resend(builder: PlanBuilder, gang: Gang) -> None:
    """Send launches whose result is unknown again, with the same token."""
    times = builder.policy.times
    for node in gang.nodes:
        claim = builder.claims.get(node.name)
        if claim is None or claim.state not in UNANSWERED or builder.in_flight(claim) or claim.asked_at == builder.now:
            continue
        if builder.now - claim.asked_at > times.launch_deadline:
            builder.change(claim, state=ClaimState.FAILED, fault=Fault.TRANSIENT, tries=_MAX_TRIES)
        elif "InvalidatedRetryToken" in claim.message:
            why = f"the token of the launch for {gang.called} is used up; nothing is listed"
            builder.launch(node, claim.jobs, why)
        elif not claim.fault or builder.now - claim.since >= times.retry_pause:
            since = builder.now if claim.fault else claim.since
            claim = builder.change(claim, state=ClaimState.INTENDED, since=since, fault=None)
            why = f"the result of the launch for {gang.called} is unknown: the same launch is sent again"
            builder.launch_again(claim, why)


def _clear_first_failure(builder: PlanBuilder, gang: Gang) -> None:
    """Nothing is missing: an old failure does not count against a later one."""
    known = builder.gangs.get(gang.id)
    if (
        known
        and known.first_failure
        and all((claim := builder.claims.get(node.name)) is not None and claim.state in STARTED for node in gang.nodes)
    ):
        builder.gangs[gang.id] = replace(known, first_failure=0.0)


def _pools_of(claims: Sequence[NodeClaim]) -> frozenset[str]:
    return frozenset(claim.pool for claim in claims)
