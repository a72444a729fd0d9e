"""The next step of a rollout: from the policy, from what has happened, and from what Slurm reports of the nodes.

A node is drained, and gets the image when no job is on it. The first one is the canary: until one node has passed its
checks with the new image, no other one is drained. As many nodes are out of service at once as the capacity allows, and
never more than may still fail. A node that fails gets its old image at once: it is out of service in any case. When
too many have failed, all others get theirs, too, in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpucluster.errors import InputError
from gpucluster.rollout.record import RolloutRecord

# Percent of the nodes of a pool that stay in service, where nothing is stated.
CAPACITY = 90.0
# Nodes that may fail before the rollout is taken back.
MAX_FAILURES = 2


class JobPolicy(StrEnum):
    """What happens to the jobs on a node that is to be changed."""

    #: They end by themselves.
    WAIT = "wait"
    #: They are requeued, or cancelled if they can't be.
    REQUEUE = "requeue"


@dataclass(frozen=True)
class RolloutPolicy:
    """How a rollout goes through a pool.

    Args:
        min_capacity: percent of the pool's nodes that must be in service at any time. None: `CAPACITY`, but one node
            may always leave.
        max_failures: when this many nodes have failed, the rollout is taken back.
        batch: nodes that are changed at once, at most; 0: no limit but the others.
    """

    jobs: JobPolicy = JobPolicy.WAIT
    min_capacity: float | None = None
    max_failures: int = MAX_FAILURES
    batch: int = 0

    def required(self, nodes: int) -> int:
        """How many of the nodes of a pool must be in service."""
        kept = math.ceil(nodes * (CAPACITY if self.min_capacity is None else self.min_capacity) / 100 - 1e-9)
        return min(kept, nodes - 1) if self.min_capacity is None else kept

    def check(self, pool: str, nodes: int) -> None:
        """Refuse a policy under which no node could ever leave.

        Raises:
            InputError: with a capacity that would do.
        """
        if nodes and self.required(nodes) >= nodes:
            possible = math.floor(100 * (nodes - 1) / nodes)
            raise InputError(
                f"pool {pool} has {nodes} nodes, and {self.min_capacity:g} % of them serve only if none is changed",
                hint=f"Allow one node to leave: --min-capacity {possible}",
            )


@dataclass(frozen=True)
class RolloutNode:
    """A node of the pool as the scheduler reports it.

    Args:
        serves: it takes jobs, or has some and would take more.
        busy: a job is on it, or is cleaned up.
        ours: it takes no new jobs because a rollout has drained it.
        reserved: a reservation holds it now.
        reason: why it takes no jobs.
    """

    serves: bool
    busy: bool = False
    ours: bool = False
    reserved: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Change:
    """Give these nodes these images: no job is on them."""

    images: Mapping[str, str]


@dataclass(frozen=True)
class Prove:
    """Configure and check these nodes, which have come back; let those in that pass."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Drain:
    """Let no new job start on these nodes."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Release:
    """Let these nodes into service: they were drained, and stay as they are."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class TakeBack:
    """From now on the nodes get their old images."""

    why: str


@dataclass(frozen=True)
class Wait:
    """Nothing can be done now.

    Args:
        draining: nodes whose jobs have to end.
        why: the other reason to wait; empty if it is the jobs.
    """

    draining: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True)
class End:
    """Nothing is left to do.

    Args:
        left: the nodes that could not be changed, with the reasons.
    """

    left: Mapping[str, str]


Step = Change | Prove | Drain | Release | TakeBack | Wait | End


def decide(record: RolloutRecord, policy: RolloutPolicy, nodes: Mapping[str, RolloutNode]) -> Step:
    """The next step. Pure; the caller takes it, stores what has become of it, and asks again.

    Args:
        nodes: the permanent nodes of the pool that the scheduler knows.
    """
    if step := _with_begun(record):
        return step
    if record.silent:
        return End(dict(record.silent))
    if not record.taking_back and len(record.failed) >= policy.max_failures:
        return TakeBack("; ".join(f"{node}: {why}" for node, why in sorted(record.failed.items())))
    todo = _todo(record)
    stray = [name for name, node in nodes.items() if node.ours and name not in todo and name not in record.lost]
    if stray:
        return Release(tuple(sorted(stray)))
    return _next_nodes(record, policy, nodes, todo)


def _next_nodes(
    record: RolloutRecord, policy: RolloutPolicy, nodes: Mapping[str, RolloutNode], todo: Sequence[str]
) -> Step:
    """Which nodes are changed or drained next, or what is waited for."""
    ours = [name for name in todo if name in nodes and nodes[name].ours]
    limit = _limit(record, policy)
    empty = [name for name in ours if not nodes[name].busy]
    if empty:
        return Change({name: _next_image(record, name) for name in empty[:limit]})
    closing = [name for name in ours if nodes[name].busy]
    room = sum(node.serves for node in nodes.values()) - policy.required(len(nodes))
    free = [name for name in todo if name in nodes and nodes[name].serves and not nodes[name].reserved]
    # Idle ones first: no job has to end on them.
    free.sort(key=lambda name: (nodes[name].busy, todo.index(name)))
    chosen = free[: max(0, min(limit - len(closing), room))]
    if chosen:
        return Drain(tuple(chosen))
    if closing:
        return Wait(tuple(closing))
    return _blocked(todo, nodes, free, record, policy)


def _with_begun(record: RolloutRecord) -> Step | None:
    """What was begun is ended first: a node that has failed gets its old image, also before others are proven, because
    hosts that do not answer keep the others from being configured."""
    over = {*record.reverted, *record.lost, *record.silent}
    failed = [name for name in record.failed if name not in over and name not in record.changing]
    if failed:
        return Change({name: record.before[name] for name in sorted(failed)})
    unanswered = {name: image for name, image in record.changing.items() if name not in record.booted}
    if unanswered:
        return Change(unanswered)
    return Prove(tuple(sorted(record.changing))) if record.changing and not record.silent else None


def _todo(record: RolloutRecord) -> list[str]:
    """The nodes that get another image still."""
    over = {*record.failed, *record.reverted, *record.lost, *record.silent}
    if record.taking_back:
        return sorted(name for name in record.passed if name not in over)
    return sorted(name for name in record.rolled if name not in over and name not in record.passed)


def _next_image(record: RolloutRecord, node: str) -> str:
    return record.before[node] if record.taking_back else record.target


def _limit(record: RolloutRecord, policy: RolloutPolicy) -> int:
    """How many nodes may be on their way at once, whatever the capacity."""
    limits = [policy.batch or len(record.rolled)]
    if not record.taking_back:
        limits.append(policy.max_failures - len(record.failed) if record.passed else 1)
    return min(limits)


def _blocked(
    todo: Sequence[str],
    nodes: Mapping[str, RolloutNode],
    free: Sequence[str],
    record: RolloutRecord,
    policy: RolloutPolicy,
) -> Step:
    """No node is free to be taken: why."""
    reserved = [name for name in todo if name in nodes and nodes[name].serves and nodes[name].reserved]
    if reserved:
        return Wait((), f"a reservation holds {', '.join(reserved)}")
    if free:
        serving = sum(node.serves for node in nodes.values())
        required = policy.required(len(nodes))
        out = ", ".join(
            f"{name} ({node.reason or 'no reason'})" for name, node in sorted(nodes.items()) if not node.serves
        )
        return Wait(
            (),
            f"{serving} of {len(nodes)} nodes are in service, and {required} must be; out of service: {out or 'none'}",
        )
    left = {
        name: nodes[name].reason or "it takes no jobs" if name in nodes else "Slurm does not know it" for name in todo
    }
    return End({**left, **record.lost})
