"""Kubernetes in place of Slurm's power saving: which pending pods get which elastic nodes, which nodes are idle.

Slurm gives jobs to nodes that are powered down, and reports it; Kubernetes only reports that a pod fits nowhere. This
module makes the missing decision from one observation, and shows its result as nodes and jobs with Slurm's flags, so
that everything behind it (gangs, launches, cool-downs, limits, `explain`) is the same code for both schedulers.

A gang is the pods that start together. It gets nodes for all of its pods, of one pool, or none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucluster.autoscaler.decide.types import Job, Node
from gpucluster.slurm.states import JobState, NodeState

# Seconds that the scheduler of Kubernetes may take until pods are on nodes that are in service: the device plugin
# reports a moment after kubelet how many GPUs there are.
SETTLE = 120.0
# Seconds for which a node is shown as powering down after it was given up: no pass misses it.
POWERING_DOWN_SHOWS = 15.0
# Seconds for which other names are preferred to that of a node that was given up: its instance may still terminate.
REST = 3600.0
# Seconds without another pod until a gang that does not state its size is whole.
GATHERING = 5.0
# Why a job waits, in Slurm's words.
_RESOURCES, _HELD, _BEGIN_TIME, _NONE = "Resources", "JobHeldAdmin", "BeginTime", "None"
# Slurm knows no such reasons: that of the condition in Kubernetes, and one of ours.
_GATED, _UNBOUND = "SchedulingGated", "UnboundClaim"
_NUMBER = re.compile(r"-?[0-9]{1,18}")


# --- what Kubernetes reports -----


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of nodes that keeps pods away: NoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    """What a pod tolerates. An empty key with `exists` tolerates everything; an empty effect means every effect."""

    key: str = ""
    value: str = ""
    exists: bool = False
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether a pod with this toleration may run although the node has the taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.exists:
            return not self.key or self.key == taint.key
        return self.key == taint.key and self.value == taint.value


@dataclass(frozen=True, slots=True)
class NodeRequirement:
    """What node affinity asks of one label, with the operators of Kubernetes: In, NotIn, Exists, DoesNotExist, Gt, Lt.

    Any other operator is never met by a node that does not exist yet.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def met(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels meets it."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        limit = self.values[0] if self.values else ""
        if self.operator not in ("Gt", "Lt") or not (_NUMBER.fullmatch(value or "") and _NUMBER.fullmatch(limit)):
            return False
        return int(value or 0) > int(limit) if self.operator == "Gt" else int(value or 0) < int(limit)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that has not ended.

    Args:
        id: "namespace/name". `user`: whose namespace it is, or the namespace.
        gang: of the pods that start together; its own id for one that starts alone. `gang_size`: how many these are.
        node: where it runs; empty while it waits.
        unschedulable: the scheduler found no node for it.
        gated: the scheduler does not look at it yet: Kueue or another program has to admit it first.
        unbound: a claim of it is not bound, or not there: no node changes that.
        needs: by resource: "cpu" in cores, "memory" in bytes, others such as "nvidia.com/gpu" in units.
        selector: labels that its node must have. `affinity`: lists of requirements, of which its node meets one.
        daemon: it runs on each node anyway (of a DaemonSet, or static); it does not keep a node.
        leaving: it was deleted and has not ended: it keeps its node, and needs no other.
        evictable: what controls it makes another when it is lost.
        held: it gets no node until an operator releases it. `not_before`: until when it gets none; 0 for no such time.
        called: other names by which users know it, as `namespace/name`: those of what made it.
    """

    id: str
    gang: str
    gang_size: int
    node: str
    unschedulable: bool
    created_at: float
    needs: Mapping[str, float]
    priority: int = 0
    user: str = ""
    selector: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[tuple[NodeRequirement, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    daemon: bool = False
    leaving: bool = False
    evictable: bool = True
    held: bool = False
    not_before: float = 0.0
    gated: bool = False
    unbound: bool = False
    called: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Member:
    """An elastic node that has joined the cluster.

    Args:
        ready: its kubelet answers. `down`: it was taken out of service.
        cordoned: it takes no new pods, by a cordon or for its failed checks.
        instance_id: its OCID; empty if it is not known. `address`: as kubelet reports it.
        reason, reason_user: why it is cordoned or down, if that is recorded.
        ours: gpucluster decided that.
    """

    name: str
    ready: bool
    cordoned: bool = False
    down: bool = False
    instance_id: str = ""
    reason: str = ""
    reason_user: str = ""
    ours: bool = False
    address: str = ""


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """What a new node of a pool will be. `names` in the order in which they are used; `max_nodes`: how many at once.

    After `idle_seconds` without pods a node is given up.
    """

    pool: str
    names: tuple[str, ...]
    max_nodes: int
    capacity: Mapping[str, float]
    idle_seconds: float
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()

    def takes(self, pod: Pod) -> bool:
        """Whether an empty node of the pool could run the pod."""
        return (
            all(self.labels.get(key) == value for key, value in pod.selector.items())
            and (not pod.affinity or any(all(one.met(self.labels) for one in term) for term in pod.affinity if term))
            and all(any(one.covers(taint) for one in pod.tolerations) for taint in self.taints)
            and all(self.capacity.get(name, 0.0) >= amount for name, amount in pod.needs.items())
        )


# --- what is remembered -----


@dataclass(frozen=True, slots=True)
class Placement:
    """What was decided before. The daemon stores it; a lost one costs a decision that is made again, never a node.

    Args:
        given: by gang, the nodes that were chosen for it.
        ready_since: by gang, since when all of them have been in service.
        idle_since: by node in service, since when it has had no pod of its own.
        released: by node, when it was given up.
        closed: by node that does not exist, why it is not to be used.
        stuck: by gang, how often its nodes came and did not help.
    """

    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ready_since: Mapping[str, float] = field(default_factory=dict)
    idle_since: Mapping[str, float] = field(default_factory=dict)
    released: Mapping[str, float] = field(default_factory=dict)
    closed: Mapping[str, str] = field(default_factory=dict)
    stuck: Mapping[str, int] = field(default_factory=dict)

    def without_nodes(self, names: Iterable[str], now: float) -> Placement:
        """These nodes are given up, and so is every gang that has one of them."""
        lost = frozenset(names)
        assignments = {gang: nodes for gang, nodes in self.given.items() if not lost & set(nodes)}
        return replace(
            self,
            given=assignments,
            ready_since={gang: since for gang, since in self.ready_since.items() if gang in assignments},
            idle_since={name: since for name, since in self.idle_since.items() if name not in lost},
            released={**self.released, **dict.fromkeys(lost, now)},
            closed={name: why for name, why in self.closed.items() if name not in lost},
        )

    def with_closed(self, names: Iterable[str], why: str) -> Placement:
        """These nodes, which do not exist, are not to be used until they are given up once more."""
        return replace(self, closed={**self.closed, **dict.fromkeys(names, why)})

    def without_gang(self, gang: str) -> Placement:
        """This gang gets other nodes, or none."""
        assignments = {other: nodes for other, nodes in self.given.items() if other != gang}
        return replace(
            self,
            given=assignments,
            ready_since={name: at for name, at in self.ready_since.items() if name in assignments},
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """The result: nodes and jobs as Slurm would show them, and what is remembered.

    Args:
        idle: nodes that have been idle for long enough: they are to be cordoned, and then given up.
        back: nodes that were given up and are members still, or again.
        unfit: by gang, why no node of any pool can run its pods, however long it waits.
        stuck: gangs whose nodes are in service and whose pods are not on them: others would not help either.
    """

    nodes: Mapping[str, Node]
    jobs: Mapping[str, Job]
    placement: Placement
    idle: tuple[str, ...]
    back: tuple[str, ...]
    unfit: Mapping[str, str]
    stuck: tuple[str, ...]


# --- the decision -----


def place(
    pods: Sequence[Pod], members: Mapping[str, Member], pools: Sequence[NodeTemplate], before: Placement, now: float
) -> Placed:
    """Give nodes to the gangs that wait, highest priority first, then the oldest."""
    gangs = _gangs(pods)
    # A node that takes no pods any more does not count for those that wait for it.
    closed = {name for name, member in members.items() if member.cordoned or member.down}
    assignments = {
        gang: names
        for gang, names in before.given.items()
        if any(not pod.node for pod in gangs.get(gang, ())) and not closed & set(names)
    }
    ready_since = {
        gang: before.ready_since.get(gang, now)
        for gang, names in assignments.items()
        if all(name in members and members[name].ready for name in names)
    }
    stuck = tuple(sorted(gang for gang, since in ready_since.items() if now - since > SETTLE))
    for gang in stuck:
        del assignments[gang], ready_since[gang]
    busy = {pod.node for pod in pods if pod.node and not pod.daemon}
    idle_since = _idle_since(members, before, busy, assignments, now)
    room = _Room(pools, members, before, assignments, idle_since, now)
    unfit: dict[str, str] = {}
    for gang, of in sorted(gangs.items(), key=_rank):
        if gang in assignments or gang in stuck or not _may_get_nodes(of, now):
            continue
        chosen = room.take([pod for pod in of if not pod.node])
        if isinstance(chosen, str):
            if chosen:
                unfit[gang] = chosen
        else:
            assignments[gang] = chosen
    assigned_nodes = {name for names in assignments.values() for name in names}
    idle = tuple(
        name
        for pool in pools
        for name in pool.names
        if name in idle_since
        and now - idle_since[name] >= pool.idle_seconds
        and (members[name].ours or not members[name].cordoned)
    )
    placement = Placement(
        assignments,
        ready_since,
        idle_since,
        {
            name: at
            for name, at in before.released.items()
            if name not in assigned_nodes and (name in members or now - at < REST)
        },
        {name: why for name, why in before.closed.items() if name not in members},
        {gang: times for gang, times in before.stuck.items() if any(not pod.node for pod in gangs.get(gang, ()))}
        | {gang: before.stuck.get(gang, 0) + 1 for gang in stuck},
    )
    nodes = {
        name: _node(name, template.pool, members.get(name), placement, busy, assigned_nodes, now)
        for template in pools
        for name in template.names
    }
    jobs = {gang: _job(gang, of, assignments.get(gang, ()), room, now) for gang, of in gangs.items()}
    back = tuple(sorted(name for name in placement.released if name in members))
    return Placed(nodes, jobs, placement, idle, back, unfit, stuck)


def _idle_since(
    members: Mapping[str, Member],
    before: Placement,
    busy: set[str],
    assignments: Mapping[str, tuple[str, ...]],
    now: float,
) -> dict[str, float]:
    kept = busy | {name for names in assignments.values() for name in names}
    return {
        name: before.idle_since.get(name, now)
        for name, member in members.items()
        if member.ready and name not in kept and name not in before.released
    }


def _may_get_nodes(pods: Sequence[Pod], now: float) -> bool:
    """Whether a gang is whole, and the scheduler has no node for any of its pods that wait."""
    waiting = [pod for pod in pods if not pod.node]
    whole = len(waiting) < len(pods) or len(pods) >= max(pod.gang_size for pod in pods)
    if len(pods) > 1 and max(pod.gang_size for pod in pods) <= 1:
        whole = now - max(pod.created_at for pod in pods) >= GATHERING
    return (
        bool(waiting)
        and whole
        and all(pod.unschedulable and not _waits_for_others(pod) and pod.not_before <= now for pod in waiting)
    )


def _waits_for_others(pod: Pod) -> bool:
    """Whether something else has to happen first, and no node helps."""
    return pod.gated or pod.held or pod.unbound


def _gangs(pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    gangs: dict[str, list[Pod]] = {}
    for pod in pods:
        if not (pod.daemon or pod.leaving):
            gangs.setdefault(pod.gang, []).append(pod)
    return gangs


def _rank(item: tuple[str, list[Pod]]) -> tuple[int, float, str]:
    gang, pods = item
    return (-max(pod.priority for pod in pods), min(pod.created_at for pod in pods), gang)


class _Room:
    """The names that are free, and how many more nodes each pool may have, while gangs take theirs."""

    def __init__(
        self,
        pools: Sequence[NodeTemplate],
        members: Mapping[str, Member],
        before: Placement,
        assignments: Mapping[str, tuple[str, ...]],
        idle_since: Mapping[str, float],
        now: float,
    ) -> None:
        ending = {name for name in before.released if _powers_down(name, members, before, now)}
        used = (set(members) - ending) | {name for names in assignments.values() for name in names}
        taken = used | ending | set(before.closed)
        self._pools = pools
        self._free = {
            pool.pool: sorted(
                (name for name in pool.names if name not in taken), key=lambda name: before.released.get(name, 0.0)
            )
            for pool in pools
        }
        self._left = {pool.pool: pool.max_nodes - sum(name in used for name in pool.names) for pool in pools}
        # The scheduler has had no time to use these.
        fresh = {
            name
            for name, since in idle_since.items()
            if now - since <= SETTLE and not members[name].cordoned and not members[name].down
        }
        self._fresh = {pool.pool: sum(name in fresh for name in pool.names) for pool in pools}

    def candidates(self, pods: Sequence[Pod]) -> Iterator[NodeTemplate]:
        """The pools that can run all of the pods."""
        return (pool for pool in self._pools if all(pool.takes(pod) for pod in pods))

    def take(self, pods: Sequence[Pod]) -> tuple[str, ...] | str:
        """Names of new nodes for all of the pods; or why there are none: empty if it only has to wait."""
        needed = {pool.pool: _nodes_for(pods, pool.capacity) for pool in self.candidates(pods)}
        if not needed:
            return "no elastic pool has nodes with the labels, tolerated taints and resources that its pods ask for"
        most = {pool.pool: min(pool.max_nodes, len(pool.names)) for pool in self._pools}
        if all(number > most[pool] for pool, number in needed.items()):
            pool = min(needed, key=lambda name: needed[name])
            return f"its pods need {needed[pool]} new nodes, and pool {pool} may have {most[pool]}"
        for pool, number in needed.items():
            if number <= self._fresh[pool]:
                self._fresh[pool] -= number
                return ""
        for pool, number in needed.items():
            free = self._free[pool]
            if number <= min(len(free), self._left[pool]):
                self._free[pool], self._left[pool] = free[number:], self._left[pool] - number
                return tuple(free[:number])
        return ""


def _powers_down(name: str, members: Mapping[str, Member], placement: Placement, now: float) -> bool:
    """Whether a node that was given up is not over yet."""
    return name in members or now - placement.released[name] < POWERING_DOWN_SHOWS


def _nodes_for(pods: Sequence[Pod], capacity: Mapping[str, float]) -> int:
    """How many empty nodes the pods need, the largest first, each on the first node with room for it."""
    nodes: list[dict[str, float]] = []
    for pod in sorted(pods, key=lambda each: sorted(each.needs.items(), reverse=True), reverse=True):
        for room in nodes:
            if all(room.get(name, 0.0) >= amount for name, amount in pod.needs.items()):
                break
        else:
            room = dict(capacity)
            nodes.append(room)
        for name, amount in pod.needs.items():
            room[name] = room.get(name, 0.0) - amount
    return len(nodes)


# --- as Slurm would show it -----


def _node(
    name: str,
    pool: str,
    member: Member | None,
    placement: Placement,
    busy: set[str],
    assigned_nodes: set[str],
    now: float,
) -> Node:
    if name in placement.released and (member or now - placement.released[name] < POWERING_DOWN_SHOWS):
        return Node(name, pool, frozenset({NodeState.CLOUD, NodeState.IDLE, NodeState.POWERING_DOWN}))
    if member is None and name in placement.closed and name not in assigned_nodes:
        return Node(
            name,
            pool,
            frozenset({NodeState.CLOUD, NodeState.DOWN, NodeState.POWERED_DOWN}),
            placement.closed[name],
        )
    flags = {NodeState.CLOUD, NodeState.ALLOCATED if name in busy or name in assigned_nodes else NodeState.IDLE}
    if member is None:
        flags.add(NodeState.POWERING_UP if name in assigned_nodes else NodeState.POWERED_DOWN)
        return Node(name, pool, frozenset(flags))
    if member.down:
        flags.add(NodeState.DOWN)
    elif not member.ready:
        flags.add(NodeState.POWERING_UP if name in assigned_nodes and name not in busy else NodeState.NOT_RESPONDING)
    if member.cordoned:
        flags.add(NodeState.DRAIN)
    facts = (member.reason, member.reason_user, member.instance_id, member.address)
    return Node(name, pool, frozenset(flags), *facts)


def _job(gang: str, pods: Sequence[Pod], nodes_of_gang: Sequence[str], room: _Room, now: float) -> Job:
    waiting = [pod for pod in pods if not pod.node]
    until = max((pod.not_before for pod in waiting), default=0.0)
    state = JobState.CONFIGURING if nodes_of_gang else JobState.PENDING if waiting else JobState.RUNNING
    reason = _NONE
    if state is JobState.PENDING:
        reasons = (
            (_HELD, any(pod.held for pod in waiting)),
            (_GATED, any(pod.gated for pod in waiting)),
            (_UNBOUND, any(pod.unbound for pod in waiting)),
            (_BEGIN_TIME, until > now),
        )
        reason = next((name for name, holds in reasons if holds), _RESOURCES)
    nodes = tuple(sorted({*nodes_of_gang, *(pod.node for pod in pods if pod.node)}))
    first = min(pods, key=lambda pod: pod.created_at)
    return Job(
        id=gang,
        gang=gang,
        state=state,
        reason=reason,
        partitions=tuple(pool.pool for pool in room.candidates(waiting or pods)),
        nodes=nodes,
        node_count=len(nodes) or len(waiting),
        priority=max(pod.priority for pod in pods),
        eligible_at=max(until, first.created_at),
        requeue=all(pod.evictable for pod in pods),
        user=first.user,
        called=frozenset(name for pod in pods for name in (pod.id, *pod.called)),
    )
