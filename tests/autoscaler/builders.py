"""Builders of observations, with a settable clock. Tests state what Slurm and the cloud report; there is no double."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gpucluster.autoscaler.decide.plan import decide
from gpucluster.autoscaler.decide.types import (
    Action,
    CloudInstance,
    Fault,
    GangHistory,
    Intent,
    Job,
    Launch,
    Memory,
    Node,
    NodeClaim,
    Observation,
    Outcome,
    ScalingPlan,
)
from gpucluster.autoscaler.policy import Authentication, Policy, PolicyLimits, PoolPolicy, Times

NOON = 1_790_000_000.0

OFF = "IDLE+CLOUD+POWERED_DOWN"
COMING = "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP"
WARMING = "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP"
IDLE = "IDLE+CLOUD"
BUSY = "ALLOCATED+CLOUD"
LEAVING = "IDLE+CLOUD+POWERING_DOWN"
DEAD = "DOWN+CLOUD+POWERED_DOWN"
# Powered down, and Slurm waits for its slurmd all the same: it gives the node no job.
WAITED_FOR = "IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING"
LOST = "DOWN+CLOUD+NOT_RESPONDING"

_Kind = TypeVar("_Kind", bound=Action)


def pool(name: str = "gpu", **changes: Any) -> PoolPolicy:
    values: dict[str, Any] = {
        "name": name,
        "partition": "gpu",
        "prefix": f"{name}-e",
        "names": 40,
        "max_nodes": 20,
        "shape": "BM.GPU4.8",
        "availability_domain": "AD-1",
        "instance_configuration_id": f"configuration-{name}",
        "baked": True,
    }
    return PoolPolicy(**{**values, **changes})


def policy(
    *pools: PoolPolicy, limits: PolicyLimits | None = None, prices: dict[str, float] | None = None, **times: float
) -> Policy:
    return Policy(
        cluster="lab",
        compartment_id="compartment",
        region="region",
        authentication=Authentication("instance_principal"),
        pools={each.name: each for each in pools or (pool(),)},
        limits=limits or PolicyLimits(),
        prices=prices or {},
        times=replace(Times(), **times),
    )


def flags(words: str) -> frozenset[str]:
    return frozenset(words.split("+"))


def job(number: int | str, nodes: Sequence[str] = (), **changes: Any) -> Job:
    values: dict[str, Any] = {
        "id": str(number),
        "gang": str(number),
        "state": "CONFIGURING" if nodes else "PENDING",
        "reason": "None" if nodes else "Resources",
        "partitions": ("gpu",),
        "nodes": tuple(nodes),
        "node_count": len(nodes) or 1,
    }
    return Job(**{**values, **changes})


@dataclass
class World:
    """What Slurm and the cloud report, a clock, and the memory. `reconcile` runs one pass."""

    policy: Policy = field(default_factory=policy)
    now: float = NOON
    memory: Memory = field(default_factory=lambda: Memory("ledger"))
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    instances: dict[str, CloudInstance] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    intents: list[Intent] = field(default_factory=list)
    in_flight: set[str] = field(default_factory=set)
    joining: set[str] = field(default_factory=set)
    join_failed: dict[str, str] = field(default_factory=dict)
    plan: ScalingPlan = field(default_factory=lambda: ScalingPlan((), Memory("ledger")))

    def __post_init__(self) -> None:
        for each in self.policy.pools.values():
            for number in range(1, each.names + 1):
                self.node(f"{each.prefix}{number}", OFF)

    # --- setting the state -----

    def node(self, name: str, words: str, reason: str = "", **changes: Any) -> None:
        self.nodes[name] = Node(name, self.policy.pool_of(name), flags(words), reason, **changes)

    def are(self, names: Iterable[str], words: str, reason: str = "") -> None:
        for name in names:
            self.node(name, words, reason)

    def starts(self, number: int | str, names: Sequence[str], **changes: Any) -> Job:
        """Slurm gives a job nodes that were powered down."""
        self.are(names, COMING)
        started = job(number, names, **changes)
        self.jobs[started.id] = started
        return started

    def waits(self, number: int | str, **changes: Any) -> Job:
        waiting = job(number, (), **changes)
        self.jobs[waiting.id] = waiting
        return waiting

    def instance(self, name: str, state: str = "RUNNING", generation: int = 1, **changes: Any) -> CloudInstance:
        values: dict[str, Any] = {
            "id": f"ocid.{name}.{generation}",
            "node": name,
            "pool": self.policy.pool_of(name),
            "generation": generation,
            "state": state,
            "created_at": self.now,
        }
        made = CloudInstance(**{**values, **changes})
        self.instances[made.id] = made
        return made

    def becomes(self, name: str, state: str) -> None:
        """All instances of a name change their state."""
        for one in list(self.instances.values()):
            if one.node == name:
                self.instances[one.id] = replace(one, state=state)

    # --- passes -----

    def observation(self, **changes: Any) -> Observation:
        values: dict[str, Any] = {
            "nodes": dict(self.nodes),
            "jobs": dict(self.jobs),
            "instances": tuple(self.instances.values()),
            "outcomes": tuple(self.outcomes),
            "intents": tuple(self.intents),
            "in_flight": frozenset(self.in_flight),
            "joining": frozenset(self.joining),
            "join_failed": dict(self.join_failed),
        }
        return Observation(**{**values, **changes})

    def reconcile(self, after: float = 0.0, **changes: Any) -> ScalingPlan:
        """Let time pass, run one pass, and keep the memory of its plan. Launches of the plan are then in flight."""
        self.now += after
        self.plan = decide(self.observation(**changes), self.memory, self.policy, self.now)
        self.memory = self.plan.memory
        self.outcomes.clear()
        self.intents.clear()
        self.join_failed.clear()
        self.in_flight |= {launch.token for launch in self.the(Launch)}
        return self.plan

    def the(self, kind: type[_Kind]) -> list[_Kind]:
        """The actions of one kind in the last plan."""
        return [action for action in self.plan.actions if isinstance(action, kind)]

    def launched(self) -> list[str]:
        return [launch.node for launch in self.the(Launch)]

    def said(self) -> str:
        return "\n".join(note.text for note in self.plan.notes)

    def claim(self, name: str) -> NodeClaim:
        return self.memory.claims[name]

    def gang(self, number: int | str) -> GangHistory:
        return self.memory.gangs[str(number)]

    # --- answers of the cloud to the launches in flight -----

    def accepts(self, *names: str, state: str = "PROVISIONING") -> None:
        for name in names:
            claim = self.claim(name)
            made = self.instance(name, state, claim.generation)
            self.outcomes.append(Outcome(claim.token, name, made.id))
            self.in_flight.discard(claim.token)

    def refuses(
        self, *names: str, fault: Fault = Fault.CAPACITY, message: str = "500 InternalError: Out of host capacity"
    ) -> None:
        for name in names:
            claim = self.claim(name)
            self.outcomes.append(Outcome(claim.token, name, "", fault, message))
            self.in_flight.discard(claim.token)

    def runs(self, *names: str, words: str = BUSY) -> None:
        """The instances of nodes run, and their slurmd has registered."""
        for name in names:
            self.becomes(name, "RUNNING")
            self.node(name, words)

    def serve(self, *names: str, words: str = BUSY, jobs: Sequence[str] = ()) -> None:
        """Nodes that have been in service for long."""
        for name in names:
            self.instance(name)
            self.node(name, words)
        self.reconcile()
        self.now += 1000


def names(first: int, last: int, prefix: str = "gpu-e") -> list[str]:
    return [f"{prefix}{number}" for number in range(first, last + 1)]
