"""Which node that we drained is rebooted, and which is left to be replaced. Pure.

The steps of a node whose reason states that a reboot comes first, as far as the journal has them:

1.  While a job has it, nothing. A check that no reboot fixes, or a slurmd that answers no more: it is given up.
2.  It is rebooted, once. Per pool and `policy.WINDOW` as many as checks may drain.
3.  All that led to its drain passes after the boot: `policy` undrains it. Something fails, it does not come back, or
it has not passed within `WITHIN`: it is given up.

To give up is to state another reason, `check failed:`. An elastic node is replaced then, a permanent one stays drained.
The second drain of a machine within `policy.AGAIN` has no reboot: so none is rebooted twice within these days. A reset
of a GPU is not a step of its own: docs/adr/0101-reboot-before-replacement.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from gpucluster.controller.health.policy import (
    KILL_TASK,
    WINDOW,
    Action,
    Decision,
    Episode,
    Evidence,
    JournalRecord,
    Moment,
    PolicySettings,
    RecordKind,
    SchedulerNode,
    breakers,
    by_node,
    episodes,
)
from gpucluster.node_agent.rules import reasons

#: Seconds from the request for a reboot until all checks have passed. Slurm waits half of that for the boot.
WITHIN = 3600.0


def decide(
    now: Moment,
    evidence: Sequence[Evidence],
    nodes: Mapping[str, SchedulerNode],
    journal: Sequence[JournalRecord],
    settings: PolicySettings,
) -> list[Decision]:
    """The next step of each node that waits for a reboot, or for what follows from it. The journal is settled."""
    left = _left(now, nodes, journal, settings)
    results_of = by_node(evidence)
    decisions = []
    for name, episode in sorted(episodes(journal).items()):
        node = nodes.get(name)
        if node is None or episode.drain is None:
            continue
        if not (node.ours or node.lost) or not reasons.reboot_first(node.reason):
            continue
        for decision in _step(now, node, episode, results_of.get(name, []), left, settings):
            if decision.action is Action.REBOOT and not decision.repeats:
                left[node.pool] -= 1
            decisions.append(decision)
    return decisions


def _left(
    now: Moment, nodes: Mapping[str, SchedulerNode], journal: Sequence[JournalRecord], settings: PolicySettings
) -> dict[str, int]:
    """How many nodes of each pool may still be rebooted within this hour."""
    left = {pool: breaker.limit for pool, breaker in breakers(now, nodes, journal, settings).items()}
    for record in journal:
        if record.kind is RecordKind.REBOOT and record.pool in left and now.since(record.at) < WINDOW:
            left[record.pool] -= 1
    return left


def _step(
    now: Moment,
    node: SchedulerNode,
    episode: Episode,
    results: Sequence[Evidence],
    left: Mapping[str, int],
    settings: PolicySettings,
) -> Iterator[Decision]:
    failed, given_up = [each for each in results if each.accuses], episode.given_up
    if given_up is not None:
        # The journal has it, and Slurm has not: we were interrupted between the two.
        yield Decision(node.name, Action.GIVE_UP, given_up.reason, given_up.checks, repeats=True)
    elif not settings.reboots:
        yield _give_up(node, episode, failed, "checks.repair is none", settings)
    elif episode.reboot is None:
        yield from _before(node, episode, results, failed, left, settings)
    else:
        yield from _after(now, node, episode, results, settings)


def _before(
    node: SchedulerNode,
    episode: Episode,
    results: Sequence[Evidence],
    failed: Sequence[Evidence],
    left: Mapping[str, int],
    settings: PolicySettings,
) -> Iterator[Decision]:
    beyond = [each.check for each in failed if not each.reboot]
    boot = next((each.boot for each in results if each.boot), "")
    if beyond:
        yield _give_up(node, episode, failed, f"no reboot fixes {', '.join(sorted(beyond))}", settings)
    elif node.busy or node.rebooting:
        return
    elif node.silent:
        if not any(each.current for each in results):
            yield _give_up(node, episode, failed, "it can't be rebooted: its slurmd does not answer", settings)
    elif not boot:
        return  # Whether it has booted could not be seen.
    elif left.get(node.pool, 0) < 1:
        words = f"it waits for its reboot: enough nodes of pool {node.pool} were rebooted within an hour"
        yield Decision(node.name, Action.NONE, words, _checks(episode), holds="breaker")
    elif settings.shadow:
        yield Decision(node.name, Action.SHADOW, f"would be rebooted: {node.reason}", _checks(episode), repeats=True)
    else:
        yield Decision(node.name, Action.REBOOT, node.reason, _checks(episode), boot=boot)


def _after(
    now: Moment, node: SchedulerNode, episode: Episode, results: Sequence[Evidence], settings: PolicySettings
) -> Iterator[Decision]:
    reboot = episode.reboot
    if reboot is None:
        return
    later = episode.since_reboot(results, now)
    failed = [each for each in later if each.accuses]
    if reasons.reboot_timed_out(node.reason):
        yield _give_up(node, episode, failed, "it did not come back from a reboot", settings)
    elif failed:
        yield _give_up(node, episode, failed, "still so after a reboot", settings)
    elif now.since(reboot.at) > WITHIN:
        what = "its checks have not passed since a reboot" if later else "it has sent no report since a reboot"
        yield _give_up(node, episode, failed, what, settings)
    elif not (episode.asked or later or node.rebooting or node.busy or settings.shadow):
        # Likewise.
        yield Decision(node.name, Action.REBOOT, reboot.reason, reboot.checks, repeats=True, boot=reboot.boot)


def _give_up(
    node: SchedulerNode, episode: Episode, failed: Collection[Evidence], outcome: str, settings: PolicySettings
) -> Decision:
    seen = [(each.check, each.message) for each in sorted(failed, key=lambda each: each.check)]
    reason = reasons.of_checks(seen, again=False, outcome=outcome) if seen else _former(node.reason, outcome)
    if settings.shadow:
        return Decision(node.name, Action.SHADOW, f"would be given up: {reason}", _checks(episode), repeats=True)
    return Decision(node.name, Action.GIVE_UP, reason, _checks(episode))


def _former(reason: str, outcome: str) -> str:
    """The reason that the node has, without what slurmctld has added."""
    seen = reason[len(reasons.REBOOT_FIRST) :].partition(" : ")[0].strip()
    check, _, message = seen.partition(": ")
    return reasons.of_checks([(check or KILL_TASK, message)], again=False, outcome=outcome)


def _checks(episode: Episode) -> tuple[str, ...]:
    return episode.drain.checks if episode.drain is not None else ()
