"""One node at a time: what Slurm reports about it against what the cloud has under its name.

Each phase has its rule. A node that is in service with its instance, or powered down without one, needs no rule. The
claims of nodes that power up are updated here; `gangs` decides on them, because those of one job belong together.
"""

from __future__ import annotations

from collections.abc import Callable

from gpucluster.autoscaler.decide import pools
from gpucluster.autoscaler.decide.phases import Phase, phase
from gpucluster.autoscaler.decide.plan_builder import PlanBuilder
from gpucluster.autoscaler.decide.types import (
    ACCEPTED,
    AWAITED,
    RELEASED,
    UNANSWERED,
    Annotate,
    ClaimState,
    CloudInstance,
    DrainNodes,
    Fault,
    Join,
    Node,
    NodeClaim,
    SaveConsole,
)
from gpucluster.autoscaler.decide.words import timestamp
from gpucluster.autoscaler.policy import MAX_ORPHANS_PER_PASS, STRIKES
from gpucluster.node_agent.rules.reasons import (
    FAILED_CHECKS,
    PREFIX,
    from_administrator,
    from_gpucluster,
    kill_task_failed,
    reboot_first,
    reboot_timed_out,
)
from gpucluster.oci.states import STOPPED, LifecycleState
from gpucluster.slurm.states import IMPAIRED, NodeState, power_requested
from gpucluster.text import count

# A pass may find a node powered down that no pass saw powering down. After so many seconds, if it is not back in
# service, its instance is terminated.
SETTLE = 30.0
# Slurm holds its lock for as long as it powers nodes down: 3 s for ten thousand of them (measured with 22.05).
MAX_HEALED_PER_PASS = 500
# Seconds until Slurm shows that a node was healed; the command is not repeated in this time.
HEALS_IN = 15.0
# In these states of a claim no pass has observed its instance.
_NEVER_SEEN = UNANSWERED | {ClaimState.FAILED}


def reconcile(builder: PlanBuilder) -> None:
    """Apply to each node the rule of its phase, unless the node is in its final state."""
    claims, live, pools_known = builder.claims, builder.live, builder.policy.pools
    for name, node in builder.nodes.items():
        now_in = phase(node.flags)
        if now_in is Phase.POWERED_DOWN:
            if name not in claims and name not in live and not node.silent:
                continue
        elif now_in is Phase.IN_SERVICE and _settled(claims.get(name), live.get(name), node):
            continue
        if node.pool not in pools_known:
            builder.note(name, f"node {name} belongs to no pool of this cluster: it is not changed")
            continue
        _RULES[now_in](builder, node)


def _settled(claim: NodeClaim | None, instances: list[CloudInstance] | None, node: Node) -> bool:
    return (
        claim is not None
        and instances is not None
        and claim.state == ClaimState.UP
        and len(instances) == 1
        and instances[0].id == claim.instance_id
        and instances[0].state == LifecycleState.RUNNING
        and instances[0].maintenance_at is None
        and not claim.missing_since
        and not claim.silent_since
        and not node.flags & IMPAIRED
    )


# --- which instance belongs to a name -----


def instance_of(builder: PlanBuilder, node: Node) -> CloudInstance | None:
    """The live instance of a node. Where there are several, the others are terminated.

    The instance that slurmd registered from is kept, else that of the claim, else the oldest.
    """
    instances = builder.live.get(node.name)
    if not instances:
        return None
    if len(instances) == 1:
        return instances[0]
    claim = builder.claims.get(node.name)
    known = (node.instance_id, claim.instance_id if claim else "")
    kept = min(
        instances,
        key=lambda instance: (instance.id != known[0], instance.id != known[1], instance.generation, instance.id),
    )
    for other in instances:
        if other is not kept:
            pools.end_stray(builder, other, f"{node.name} has {len(instances)} instances; {kept.id} is kept")
    return kept


def _vanished(builder: PlanBuilder, claim: NodeClaim) -> bool | None:
    """Whether the instance of a claim is gone: True, False, or None while that is not sure. Counts the strikes."""
    if claim.instance_id and claim.instance_id in builder.gone:
        return True
    times = builder.policy.times
    if builder.now - claim.since < times.listing_lag and claim.state in (ClaimState.LAUNCHED, ClaimState.INTENDED):
        return False
    if not claim.missing_since:
        builder.change(claim, missing_since=builder.now, strikes=1)
        return None
    if claim.strikes < STRIKES:
        claim = builder.change(claim, strikes=claim.strikes + 1)
    if claim.strikes >= STRIKES and builder.now - claim.missing_since >= times.unbacked_after:
        return True
    return None


# --- powering up -----


def _power_up(builder: PlanBuilder, node: Node) -> None:
    builder.powering_up[node.name] = node
    instance = instance_of(builder, node)
    claim = builder.claims.get(node.name)
    if claim is None:
        if instance:
            claim = builder.adopt(node, instance, ClaimState.LAUNCHED)
            builder.note(node.name, f"{instance.id} already carries the name of {node.name}: it is adopted")
            _present(builder, node, claim, instance)
        return
    if claim.state in RELEASED:
        return
    if instance is None:
        _absent(builder, claim)
    elif instance.id == claim.instance_id:
        if claim.state != ClaimState.FAILED:
            _present(builder, node, claim, instance)
    elif claim.state in _NEVER_SEEN or claim.instance_id in builder.gone or _vanished(builder, claim):
        claim = builder.adopt(node, instance, ClaimState.LAUNCHED)
        builder.note(node.name, f"the launch of {node.name} had succeeded: {instance.id} is adopted")
        _present(builder, node, claim, instance)


def _absent(builder: PlanBuilder, claim: NodeClaim) -> None:
    if claim.state not in ACCEPTED or not _vanished(builder, claim):
        return
    claim = builder.claims[claim.node]
    early = claim.state == ClaimState.LAUNCHED
    words = "the cloud accepted the launch and ended the instance before it ran" if early else "the instance is gone"
    kind = Fault.CAPACITY if early else Fault.LOST
    builder.change(
        claim,
        state=ClaimState.FAILED,
        fault=kind,
        message=words,
        tries=claim.tries + 1,
        missing_since=0.0,
        strikes=0,
    )


def _present(builder: PlanBuilder, node: Node, claim: NodeClaim, instance: CloudInstance) -> None:
    if claim.missing_since:
        claim = builder.change(claim, missing_since=0.0, strikes=0)
    if instance.state in STOPPED:
        builder.change(
            claim, state=ClaimState.ENDING, fault=Fault.LOST, message="it was stopped", tries=claim.tries + 1
        )
        why = f"{instance.id} was stopped while {node.name} powered up; stopped instances cost money"
        builder.terminate(node.name, node.pool, instance.id, why, unless_wanted=False)
        return
    if instance.state == LifecycleState.RUNNING:
        claim = _running(builder, node, claim, instance)
    why = _overdue(builder, claim, instance)
    if why:
        _boot_failure(builder, node, claim, instance, why)


def _running(builder: PlanBuilder, node: Node, claim: NodeClaim, instance: CloudInstance) -> NodeClaim:
    if claim.state == ClaimState.UP:
        # It was in service, and powers up again; no pass observed it powering down.
        return builder.change(claim, state=ClaimState.RUNNING)
    if claim.state == ClaimState.LAUNCHED:
        if builder.policy.pools[node.pool].baked:
            return builder.change(claim, state=ClaimState.RUNNING)
        why = f"{instance.id} runs and is to be configured"
        builder.actions.append(Join(node.name, node.pool, instance.id, why))
        return builder.change(claim, state=ClaimState.JOINING, joined_at=builder.now)
    if instance.id in builder.observation.unasked:
        why = f"the configuration of {instance.id} could not be requested: it is requested again"
        builder.actions.append(Join(node.name, node.pool, instance.id, why))
        return builder.change(claim, state=ClaimState.JOINING, joined_at=builder.now)
    # The join service knows whether it is still being configured.
    state = ClaimState.JOINING if instance.id in builder.observation.joining else ClaimState.RUNNING
    return builder.change(claim, state=state) if state != claim.state and builder.now > claim.since else claim


def _overdue(builder: PlanBuilder, claim: NodeClaim, instance: CloudInstance) -> str:
    """Why waiting for an instance ends; empty if it continues."""
    times = builder.policy.times
    # A node has its whole time once the autoscaler is there to configure it.
    waited = builder.now - max(claim.since, builder.observation.looking_since)
    # First: the configuration of a node that may not start fails as well.
    checks = _failed_checks(builder, instance)
    if checks is not None:
        return f"its checks at boot failed: {checks}"
    failed = builder.observation.join_failed.get(instance.id)
    if failed is not None:
        return f"it could not be configured: {failed}"
    if claim.state == ClaimState.LAUNCHED and waited > times.launch_deadline:
        return f"it was {instance.state} for {count(int(waited), 'second')} and did not start"
    if claim.state == ClaimState.JOINING and waited > times.launch_deadline:
        return f"it was not configured within {count(int(waited), 'second')}"
    if claim.state == ClaimState.RUNNING and waited > times.join_deadline:
        return f"no {builder.words.daemon} registered from it within {count(int(waited), 'second')}"
    return ""


def _failed_checks(builder: PlanBuilder, instance: CloudInstance) -> str | None:
    """The checks that an instance failed at its boot, and what was seen; None if it failed none."""
    unfit = builder.observation.unfit.get(instance.id)
    if unfit is not None:
        return unfit.removeprefix(FAILED_CHECKS).strip()
    # With Kubernetes the checks are a part of the configuration, because the node has no object before it joins.
    _, checks, seen = builder.observation.join_failed.get(instance.id, "").partition(FAILED_CHECKS)
    return seen.strip() if checks else None


def _boot_failure(builder: PlanBuilder, node: Node, claim: NodeClaim, instance: CloudInstance, why: str) -> None:
    builder.actions.append(SaveConsole(instance.id, node.name, f"{node.name} did not come into service: {why}"))
    builder.change(claim, state=ClaimState.ENDING, fault=Fault.BOOT, message=why, tries=claim.tries + 1)
    builder.note_bad_host(node.name, _failed_checks(builder, instance) or "")
    builder.terminate(node.name, node.pool, instance.id, f"{why}; it is replaced", unless_wanted=False)
    pools.count_boot_failure(builder, claim, why)


# --- in service -----


def _in_service(builder: PlanBuilder, node: Node) -> None:
    instance = instance_of(builder, node)
    claim = builder.claims.get(node.name)
    if instance is None:
        _unbacked(builder, node, claim)
        return
    if claim is None or claim.instance_id != instance.id:
        claim = builder.adopt(node, instance, ClaimState.UP)
    if claim.state != ClaimState.UP:
        if claim.state in ACCEPTED:
            pools.came_into_service(builder, node.pool)
        claim = builder.change(claim, state=ClaimState.UP, fault=None, message="", ended_at=0.0, tries=0)
    if claim.missing_since:
        claim = builder.change(claim, missing_since=0.0, strikes=0)
    if instance.state == LifecycleState.STOPPED:
        give_up_lost(builder, node, f"its instance {instance.id} was stopped")
        return
    if _silent_for_too_long(builder, node, claim):
        words = f"{builder.words.daemon} does not answer for {count(int(builder.policy.times.silent_grace), 'second')}"
        give_up_lost(builder, node, words)
        return
    _drain_or_give_up(builder, node, instance)


def _unbacked(builder: PlanBuilder, node: Node, claim: NodeClaim | None) -> None:
    if node.drained and from_administrator(node.reason, node.reason_user):
        builder.note(
            node.name,
            f"{node.name} has no instance, but an administrator drained it ({node.reason}): it is not changed",
        )
        return
    if claim is None:
        claim = NodeClaim(node.name, node.pool, 0, "", ClaimState.UP, builder.now, builder.now)
        builder.claims[node.name] = claim
    if _vanished(builder, claim):
        own = builder.policy.pools[node.pool]
        kind = "preemptible instance" if own.preemptible else "instance"
        give_up_lost(builder, node, f"its {kind} {claim.instance_id or ''} is gone".replace("  ", " "))
    else:
        builder.note(
            node.name, f"the cloud's listing lacks the instance of {node.name}: nothing is done until that is confirmed"
        )


def give_up_lost(builder: PlanBuilder, node: Node, what: str) -> None:
    """Take a node whose instance is lost out of service and give it up; Slurm requeues its jobs."""
    for job in builder.holders.get(node.name, ()):
        if not job.requeue:
            builder.actions.append(Annotate(job.id, f"{PREFIX} {node.name}: {what}. {builder.words.not_requeued}"))
    builder.mark_down(node.name, f"{PREFIX} {what}")
    builder.power_down(node.name, f"{PREFIX} {node.name}: {what}; {builder.words.name} runs its jobs again elsewhere")
    claim = builder.claims.get(node.name)
    if claim:
        builder.change(claim, state=ClaimState.ENDING, fault=Fault.LOST, message=what)


def _silent_for_too_long(builder: PlanBuilder, node: Node, claim: NodeClaim) -> bool:
    if not node.silent:
        if claim.silent_since:
            builder.change(claim, silent_since=0.0)
        return False
    if not claim.silent_since:
        builder.change(claim, silent_since=builder.now)
        return False
    return builder.now - claim.silent_since > builder.policy.times.silent_grace


def _drain_or_give_up(builder: PlanBuilder, node: Node, instance: CloudInstance) -> None:
    if node.drained:
        if from_administrator(node.reason, node.reason_user) or not node.reason:
            builder.note(
                node.name,
                f"{node.name} was drained by an administrator or a health check ({node.reason}): it is not changed",
            )
        elif _waits_for_reboot(builder, node):
            builder.note(node.name, f"{node.name} is rebooted before it is replaced ({node.reason})")
        elif not node.busy:
            ours = node.reason.startswith(PREFIX)
            why = node.reason if ours else f"{PREFIX} drained by {builder.words.name}: {node.reason}"
            builder.note_bad_host(node.name, node.reason)
            builder.power_down(node.name, f"{why}; the node is idle now and is given up")
        return
    ahead = instance.maintenance_at
    if ahead is not None and ahead - builder.now <= builder.policy.times.drain_ahead:
        why = f"{PREFIX} the cloud will reboot the host for maintenance at {timestamp(ahead)}"
        builder.actions.append(DrainNodes((node.name,), why))


def _waits_for_reboot(builder: PlanBuilder, node: Node) -> bool:
    """Whether the health service reboots a drained node first, and states later whether that has fixed it."""
    return builder.policy.reboots and (reboot_first(node.reason) or kill_task_failed(node.reason))


# --- powering down, and powered down -----


def _power_down(builder: PlanBuilder, node: Node) -> None:
    _end(builder, node, f"{builder.words.name} powers {node.name} down")


def _powered_down(builder: PlanBuilder, node: Node) -> None:
    if power_requested(node.flags):
        builder.note(node.name, f"{node.name} is wanted again: {builder.words.name} powers it up next")
        return
    claim = builder.claims.get(node.name)
    instances = builder.live.get(node.name)
    if claim is None and not instances:
        _never_scheduled(builder, node)
        return
    if instances and (claim is None or claim.state in ACCEPTED):
        builder.change(
            claim or builder.adopt(node, instances[0], ClaimState.ENDING), state=ClaimState.ENDING, fault=None
        )
        return
    if instances and claim and claim.state == ClaimState.ENDING and not claim.ended_at and not claim.fault:
        if builder.now - claim.since < SETTLE or builder.swept >= MAX_ORPHANS_PER_PASS:
            return
        builder.swept += 1
    _end(builder, node, f"{builder.words.name} has powered {node.name} down")


def _never_scheduled(builder: PlanBuilder, node: Node) -> None:
    """Make a node usable again that is powered down and for which Slurm waits all the same.

    `scontrol update state=resume` of a node that is down or drained while it is powered down leaves
    IDLE+POWERED_DOWN+NOT_RESPONDING. After the next start or reconfiguration of slurmctld such a node gets no job, so
    that no slurmd ever answers. Powering it down again clears the flag (Slurm 24.11 and 26.11, slurmctld/node_mgr.c,
    read_config.c and power_save.c). It would end a drain as well, so that a drained node is left. Until slurmctld
    starts again the node may get a job, which keeps it.
    """
    if node.silent and not node.drained and _may_heal(builder, node):
        why = f"{PREFIX} {node.pool}: powered-down nodes for which {builder.words.name} waits are made usable again"
        builder.power_down_idle(node.name, why)


def _may_heal(builder: PlanBuilder, node: Node) -> bool:
    """Whether this pass may make one more node usable; if so, it is counted."""
    if builder.healed >= MAX_HEALED_PER_PASS or builder.now - builder.healed_at.get(node.name, -HEALS_IN) < HEALS_IN:
        return False
    builder.healed += 1
    builder.healed_at[node.name] = builder.now
    return True


def _end(builder: PlanBuilder, node: Node, why: str) -> None:
    """Terminate every instance under a name that Slurm has given up, then forget the claim."""
    claim = builder.claims.get(node.name)
    instances = builder.live.get(node.name, ())
    if claim and claim.state != ClaimState.ENDING:
        if claim.state == ClaimState.FAILED and claim.fault is not Fault.TRANSIENT and not instances:
            del builder.claims[node.name]
            return
        claim = builder.change(claim, state=ClaimState.ENDING)
    if power_requested(node.flags):
        builder.note(node.name, f"{node.name} still has a job: its instance is left until that is over")
        return
    if claim is None and instances:
        claim = builder.adopt(node, instances[0], ClaimState.ENDING)
    for instance in instances:
        if claim and instance.id == claim.instance_id:
            builder.terminate(node.name, node.pool, instance.id, why)
        elif claim and claim.state == ClaimState.ENDING and not claim.instance_id:
            claim = builder.change(claim, instance_id=instance.id)
            builder.terminate(node.name, node.pool, instance.id, why)
        else:
            pools.end_stray(builder, instance, why, unless_wanted=True)
    if claim and not instances:
        _forget(builder, claim, why)


def _forget(builder: PlanBuilder, claim: NodeClaim, why: str) -> None:
    """Forget a claim when it is sure that it has no instance."""
    if builder.in_flight(claim):
        return
    fresh = builder.now - claim.since < builder.policy.times.listing_lag
    if claim.instance_id and claim.instance_id not in builder.gone and fresh:
        # Accepted a moment ago and not listed yet: terminate it by its id.
        builder.terminate(claim.node, claim.pool, claim.instance_id, why)
    elif claim.instance_id or not claim.token or not fresh:
        del builder.claims[claim.node]


# --- down -----


def _down(builder: PlanBuilder, node: Node) -> None:
    if from_administrator(node.reason, node.reason_user):
        builder.note(node.name, f"{node.name} was taken down by an administrator ({node.reason}): it is not changed")
        return
    instance = instance_of(builder, node)
    claim = builder.claims.get(node.name)
    runs = instance is not None and instance.state not in STOPPED
    if runs and _waits_for_reboot(builder, node) and not reboot_timed_out(node.reason):
        builder.note(node.name, f"{node.name} is rebooted before it is replaced ({node.reason})")
        return
    if instance is not None and runs and not from_gpucluster(node.reason):
        if claim is None or claim.instance_id != instance.id:
            claim = builder.adopt(node, instance, ClaimState.UP)
        if not _silent_for_too_long(builder, node, claim):
            builder.note(node.name, f"{node.name} is down, its instance {instance.id} runs: it may recover by itself")
            return
    lost = node.reason or f"{builder.words.name} lost it"
    builder.power_down(node.name, f"{PREFIX} {node.name} is down ({lost}) and is given up")
    if claim:
        builder.change(claim, state=ClaimState.ENDING)
        builder.note_bad_host(node.name, node.reason)


def _down_powered_off(builder: PlanBuilder, node: Node) -> None:
    cooling = builder.cool_downs.get(node.pool)
    claim = builder.claims.get(node.name)
    # Slurm 22.05 keeps an old reason: a node that did not register in time still has the reason that an administrator
    # once gave.
    awaited = claim is not None and claim.state in AWAITED and NodeState.POWERED_DOWN in node.flags
    if (from_administrator(node.reason, node.reason_user) and not awaited) or (
        cooling and cooling.until > builder.now and from_gpucluster(node.reason)
    ):
        if node.name in builder.claims or node.name in builder.live:
            _powered_down(builder, node)
        return
    if claim and claim.state in AWAITED:
        why = builder.words.too_late
        if claim.instance_id:
            builder.actions.append(SaveConsole(claim.instance_id, node.name, f"{node.name}: {why}"))
        builder.change(claim, state=ClaimState.ENDING, fault=Fault.BOOT, message=why)
        pools.count_boot_failure(builder, claim, why)
    if not _may_heal(builder, node):
        return
    reason = node.reason or "it did not come into service in time"
    why = f"{PREFIX} {node.pool}: nodes that {builder.words.name} gave up are made usable again ({reason})"
    builder.power_down(node.name, why)


_RULES: dict[Phase, Callable[[PlanBuilder, Node], None]] = {
    Phase.POWERING_UP: _power_up,
    Phase.IN_SERVICE: _in_service,
    Phase.POWERING_DOWN: _power_down,
    Phase.POWERED_DOWN: _powered_down,
    Phase.DOWN: _down,
    Phase.DOWN_POWERED_OFF: _down_powered_off,
}
