"""A pool as a whole: when it is left alone for a while and tried again, and instances that belong to no node."""

from __future__ import annotations

from gpucluster.autoscaler.decide.phases import OURS, Phase, phase, wanted
from gpucluster.autoscaler.decide.plan_builder import ASK_AGAIN, Draft
from gpucluster.autoscaler.decide.words import clock, count, fault
from gpucluster.autoscaler.decide.world import CoolDown, Fault, Instance, Terminate
from gpucluster.autoscaler.policy import MAX_BOOT_FAILURES, MAX_ORPHANS_PER_LOOK

# States of a slot that show that the pool gives nodes again, by what was wrong with it. A host that is promised may
# still not be there; a limit speaks at once; a boot that fails fails late.
_PROOF = frozenset({"running", "joining", "up"})
_PROOFS = {Fault.LIMIT.value: _PROOF | {"launched"}, Fault.BOOT.value: frozenset({"up"})}


def cool_down(draft: Draft, pool: str, kind: Fault, message: str) -> CoolDown:
    """Leave a pool alone for a while; each failure in a row makes it longer. Within one cool-down nothing is added."""
    times, known = draft.policy.times, draft.cool_downs.get(pool)
    if known and known.until > draft.now:
        return known
    failures = known.failures + 1 if known else 1
    if kind in (Fault.LIMIT, Fault.CONFIGURATION):
        length = times.limit_cool_down
    elif kind is Fault.BOOT:
        length = times.cool_down_limit
    else:
        length = min(times.cool_down * 2.0 ** min(failures - 1, 20), times.cool_down_limit)
    made = CoolDown(pool, draft.now + length, kind.value, message, failures)
    draft.cool_downs[pool] = made
    return made


def closed(draft: Draft, pool: str) -> CoolDown | None:
    """The cool-down that a pool is in, if it is in one now."""
    known = draft.cool_downs.get(pool)
    return known if known and known.until > draft.now else None


def count_boot_failure(draft: Draft, pool: str, message: str) -> None:
    """One more node that never registered; the third in a row protects the pool."""
    failures = draft.boot_failures.get(pool, 0) + 1
    draft.boot_failures[pool] = failures
    if failures >= MAX_BOOT_FAILURES:
        cool_down(draft, pool, Fault.BOOT, f"{count(failures, 'node')} in a row did not come into service; {message}")


def came_into_service(draft: Draft, pool: str) -> None:
    """A node of the pool registered: whatever was wrong with booting is over."""
    draft.boot_failures.pop(pool, None)
    known = draft.cool_downs.get(pool)
    if known and known.fault == Fault.BOOT:
        del draft.cool_downs[pool]


def tend(draft: Draft) -> None:
    """End cool-downs that are over, and keep Slurm from choosing nodes of pools that are in one."""
    for pool, known in list(draft.cool_downs.items()):
        if pool not in draft.policy.pools:
            del draft.cool_downs[pool]
        elif known.until > draft.now:
            _close(draft, known)
        else:
            _probe(draft, known)


def _close(draft: Draft, known: CoolDown) -> None:
    words = f"{fault(known.fault, known.message)}; asked again at {clock(known.until)}"
    draft.note(known.pool, f"pool {known.pool} is left alone: {words}")
    for name, node in draft.nodes.items():
        idle = node.pool == known.pool and phase(node.flags) is Phase.OFF and name not in draft.slots
        if idle and not wanted(node.flags) and not node.drained:
            draft.mark_down(name, f"{OURS} {words}")


def _probe(draft: Draft, known: CoolDown) -> None:
    tried = [slot for slot in draft.slots.values() if slot.pool == known.pool and slot.asked_at >= known.until]
    if any(slot.state in _PROOFS.get(known.fault, _PROOF) for slot in tried):
        del draft.cool_downs[known.pool]
        draft.note(known.pool, f"pool {known.pool} gives nodes again")
    elif draft.now - known.until > draft.policy.times.cool_down_limit and not tried:
        del draft.cool_downs[known.pool]
    elif known.probing and not tried:
        draft.cool_downs[known.pool] = CoolDown(known.pool, known.until, known.fault, known.message, known.failures)


# --- instances of no node -----


def end_stray(draft: Draft, instance: Instance, why: str, *, unless_wanted: bool = False) -> None:
    """Have an instance ended that is not the one of its node; not again before the cloud can have shown it."""
    asked = draft.orphans_seen.get(instance.id, 0.0)
    if draft.now - asked < ASK_AGAIN:
        return
    draft.orphans_seen[instance.id] = draft.now
    draft.actions.append(Terminate(instance.id, instance.node, instance.pool, why, unless_wanted=unless_wanted))


def orphans(draft: Draft) -> None:
    """End instances under names that Slurm does not know, once they have been seen so for long enough."""
    grace, ended = draft.policy.times.orphan_grace, 0
    for name in sorted(draft.live.keys() - draft.nodes.keys()):
        for instance in draft.live[name]:
            first = draft.orphans_seen.setdefault(instance.id, draft.now)
            if draft.now - max(first, instance.created_at) < grace or ended >= MAX_ORPHANS_PER_LOOK:
                due = clock(max(first, instance.created_at) + grace)
                draft.note(instance.id, f"Slurm knows no node {name}: {instance.id} is ended after {due}")
                continue
            ended += 1
            why = f"Slurm has known no node {name} for {count(int(grace), 'second')}"
            draft.actions.append(Terminate(instance.id, name, instance.pool, why, unless_wanted=False))
            draft.orphans_seen[instance.id] = draft.now - grace + ASK_AGAIN
