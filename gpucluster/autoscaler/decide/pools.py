"""A pool as a whole: its cool-down after a fault, the probe that ends it, and instances that belong to no node."""

from __future__ import annotations

from dataclasses import replace

from gpucluster.autoscaler.decide.phases import Phase, phase
from gpucluster.autoscaler.decide.plan_builder import ASK_AGAIN, PlanBuilder
from gpucluster.autoscaler.decide.types import STARTED, ClaimState, CloudInstance, CoolDown, Fault, NodeClaim, Terminate
from gpucluster.autoscaler.decide.words import describe_fault, timestamp
from gpucluster.autoscaler.policy import MAX_BOOT_FAILURES, MAX_ORPHANS_PER_PASS
from gpucluster.node_agent.rules.reasons import PREFIX
from gpucluster.slurm.states import power_requested
from gpucluster.text import count

#: What an operator runs who has fixed the cause.
TRY_NOW = "gpucluster autoscaler resume"
# States of a claim that prove that the pool gives nodes again, by what was wrong with it. An accepted launch proves
# nothing about capacity, because the host may still be missing. It proves that no limit is reached. Only a registered
# slurmd proves that nodes boot.
_PROOFS = {Fault.LIMIT: STARTED | {ClaimState.LAUNCHED}, Fault.BOOT: frozenset({ClaimState.UP})}


def cool_down(builder: PlanBuilder, pool: str, kind: Fault, message: str) -> CoolDown:
    """Let a pool cool down; each failure in a row makes it longer. During a cool-down nothing is added."""
    times, known = builder.policy.times, builder.cool_downs.get(pool)
    if known and known.until > builder.now:
        return known
    failures = known.failures + 1 if known else 1
    if kind in (Fault.LIMIT, Fault.CONFIGURATION):
        length = times.limit_cool_down
    elif kind is Fault.BOOT:
        length = times.cool_down_limit
    else:
        length = min(times.cool_down * 2.0 ** min(failures - 1, 20), times.cool_down_limit)
    made = CoolDown(pool, builder.now + length, kind, message, failures, since=builder.now)
    builder.cool_downs[pool] = made
    return made


def closed(builder: PlanBuilder, pool: str) -> CoolDown | None:
    """The cool-down that a pool is in now, if it is in one."""
    known = builder.cool_downs.get(pool)
    return known if known and known.until > builder.now else None


def count_boot_failure(builder: PlanBuilder, claim: NodeClaim, why: str) -> None:
    """Count one more node that did not register; the third in a row lets the pool cool down.

    One that was asked for before an interruption is not evidence about its pool, unless its own checks have failed.
    """
    seen, pool = builder.observation, claim.pool
    if claim.asked_at < seen.looking_since and claim.instance_id not in seen.unfit:
        return
    failures = builder.boot_failures.get(pool, 0) + 1
    builder.boot_failures[pool] = failures
    last = f"{claim.node}: {why}"
    # That the scheduler gave a node up does not show the cause, and the nodes before it may have reported one.
    if why != builder.words.too_late:
        builder.boot_causes[pool] = last
    elif pool in builder.boot_causes:
        last = f"{last}. Before it, {builder.boot_causes[pool]}"
    if failures >= MAX_BOOT_FAILURES:
        words = f"{count(failures, 'node')} in a row did not come into service; {last}"
        cool_down(builder, pool, Fault.BOOT, words)


def came_into_service(builder: PlanBuilder, pool: str) -> None:
    """A node of the pool registered: nodes boot again."""
    _forget_failures(builder, pool)
    known = builder.cool_downs.get(pool)
    if known and known.fault is Fault.BOOT:
        del builder.cool_downs[pool]


def _forget_failures(builder: PlanBuilder, pool: str) -> None:
    builder.boot_failures.pop(pool, None)
    builder.boot_causes.pop(pool, None)


def end_cool_downs(builder: PlanBuilder) -> None:
    """End those that began before an operator let the autoscaler continue."""
    for pool, known in list(builder.cool_downs.items()):
        if known.since < builder.memory.resumed_at:
            del builder.cool_downs[pool]
            _forget_failures(builder, pool)
            builder.note(pool, f"pool {pool} may give nodes again: an operator has ended its cool-down")


def update_cool_downs(builder: PlanBuilder) -> None:
    """End cool-downs that are over, and keep Slurm from choosing nodes of pools that cool down."""
    for pool, known in list(builder.cool_downs.items()):
        if pool not in builder.policy.pools:
            del builder.cool_downs[pool]
        elif known.until > builder.now:
            _close(builder, known)
        else:
            _probe(builder, known)


def _close(builder: PlanBuilder, known: CoolDown) -> None:
    words = f"{describe_fault(known.fault, known.message)}; tried again at {timestamp(known.until)}"
    builder.note(known.pool, f"pool {known.pool} cools down: {words}, or after {TRY_NOW}")
    for name, node in builder.nodes.items():
        idle = node.pool == known.pool and phase(node.flags) is Phase.POWERED_DOWN and name not in builder.claims
        if idle and not power_requested(node.flags) and not node.drained:
            builder.mark_down(name, f"{PREFIX} {words}")


def _probe(builder: PlanBuilder, known: CoolDown) -> None:
    probes = [claim for claim in builder.claims.values() if claim.pool == known.pool and claim.asked_at >= known.until]
    if any(claim.state in _PROOFS.get(known.fault, STARTED) for claim in probes):
        del builder.cool_downs[known.pool]
        builder.note(known.pool, f"pool {known.pool} gives nodes again")
    elif builder.now - known.until > builder.policy.times.cool_down_limit and not probes:
        del builder.cool_downs[known.pool]
    elif known.probing and not probes:
        builder.cool_downs[known.pool] = replace(known, probing=False)


# --- instances without a node -----


def end_stray(builder: PlanBuilder, instance: CloudInstance, why: str, *, unless_wanted: bool = False) -> None:
    """Terminate an instance that carries the name of a node that has another; at most once per ASK_AGAIN."""
    last_request = builder.orphans_seen.get(instance.id, 0.0)
    if builder.now - last_request < ASK_AGAIN:
        return
    builder.orphans_seen[instance.id] = builder.now
    builder.actions.append(Terminate(instance.id, instance.node, instance.pool, why, unless_wanted=unless_wanted))


def end_orphans(builder: PlanBuilder) -> None:
    """Terminate instances under names that Slurm has not known for `orphan_grace` seconds."""
    grace, ended = builder.policy.times.orphan_grace, 0
    for name in sorted(builder.live.keys() - builder.nodes.keys()):
        for instance in builder.live[name]:
            first = builder.orphans_seen.setdefault(instance.id, builder.now)
            if builder.now - max(first, instance.created_at) < grace or ended >= MAX_ORPHANS_PER_PASS:
                due = timestamp(max(first, instance.created_at) + grace)
                builder.note(
                    instance.id, f"{builder.words.name} knows no node {name}: {instance.id} is terminated after {due}"
                )
                continue
            ended += 1
            why = f"{builder.words.name} has known no node {name} for {count(int(grace), 'second')}"
            builder.actions.append(Terminate(instance.id, name, instance.pool, why, unless_wanted=False))
            builder.orphans_seen[instance.id] = builder.now - grace + ASK_AGAIN
