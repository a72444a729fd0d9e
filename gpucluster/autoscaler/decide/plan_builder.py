"""One observation with indexes for the rules, and the plan that the rules build from it.

A PlanBuilder lives for one call of `plan.decide` and is the only mutable object there. Rules read the observation and
write claims, gangs, actions and notes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

from gpucluster.autoscaler.decide.phases import Phase, phase
from gpucluster.autoscaler.decide.types import (
    RELEASED,
    Action,
    Annotate,
    ClaimState,
    CloudInstance,
    CoolDown,
    Delay,
    DrainNodes,
    Fault,
    GangHistory,
    Hold,
    Job,
    Join,
    Launch,
    MarkDown,
    Memory,
    Node,
    NodeClaim,
    Note,
    Observation,
    PowerDown,
    SaveConsole,
    ScalingPlan,
    Terminate,
)
from gpucluster.autoscaler.decide.words import SCHEDULERS
from gpucluster.autoscaler.policy import Policy
from gpucluster.oci.bad_host import bad_host
from gpucluster.oci.states import LifecycleState
from gpucluster.slurm.states import JobState

# The order in which the actions of one plan are carried out: a job is annotated before it loses its nodes; nodes of a
# cooling pool are marked down before Slurm chooses other nodes; a job gets its new start time after it was requeued.
_ORDER: tuple[type, ...] = (
    Annotate,
    SaveConsole,
    MarkDown,
    PowerDown,
    Delay,
    Hold,
    DrainNodes,
    Join,
    Terminate,
    Launch,
)
_RANK = {kind: rank for rank, kind in enumerate(_ORDER)}
# Seconds until a termination is requested again: the cloud's listing shows it late.
ASK_AGAIN = 30.0
HOUR = 3600.0


class PlanBuilder:
    """The observation, and the plan so far.

    Args:
        observation, memory, policy, now: as in `plan.decide`.
    """

    def __init__(self, observation: Observation, memory: Memory, policy: Policy, now: float) -> None:
        self.observation = observation
        self.memory = memory
        self.policy = policy
        self.now = now
        self.nodes = observation.nodes or {}
        self.jobs = observation.jobs or {}
        self.claims: dict[str, NodeClaim] = dict(memory.claims)
        self.gangs: dict[str, GangHistory] = dict(memory.gangs)
        self.cool_downs: dict[str, CoolDown] = dict(memory.cool_downs)
        self.boot_failures: dict[str, int] = dict(memory.boot_failures)
        self.boot_causes: dict[str, str] = dict(memory.boot_causes)
        self.generations: dict[str, int] = dict(memory.generations)
        self.swept = 0  # instances terminated in this pass only because their node was found powered down
        self.words = SCHEDULERS[policy.scheduler]
        self.healed = 0
        self.orphans_seen: dict[str, float] = dict(memory.orphans_seen)
        self.healed_at: dict[str, float] = dict(memory.healed_at)
        self.node_count = memory.node_count
        self.launched_at: list[float] = list(memory.launched_at)
        self.actions: list[Action] = []
        self.notes: list[Note] = []
        self.powering_up: dict[str, Node] = {}
        self.gangs_powering_up: set[str] = set()  # gangs for which nodes power up
        self.dropped: dict[str, str] = {}  # nodes given up in this pass, and for which gang
        self._again: set[str] = set()  # tokens of launches that this pass sends again
        self._give_up: defaultdict[str, list[str]] = defaultdict(list)
        self._power_down_idle: defaultdict[str, list[str]] = defaultdict(list)
        self._mark_down: defaultdict[str, list[str]] = defaultdict(list)
        self.live: dict[str, list[CloudInstance]] = {}
        self.gone: set[str] = set()  # ids that the cloud lists as terminating or terminated
        self.terminating: set[str] = set()  # nodes whose instance is still terminating
        self.highest: dict[str, int] = {}  # by node, the highest generation that the cloud lists
        self._index(observation.instances or ())

    def _index(self, instances: Iterable[CloudInstance]) -> None:
        for instance in instances:
            name = instance.node
            if instance.generation > self.highest.get(name, 0):
                self.highest[name] = instance.generation
            if instance.live:
                self.live.setdefault(name, []).append(instance)
                continue
            self.gone.add(instance.id)
            if instance.state == LifecycleState.TERMINATING:
                self.terminating.add(name)

    # --- reading -----

    @cached_property
    def holders(self) -> dict[str, list[Job]]:
        """By node, the jobs that were given it and still need it."""
        holders: dict[str, list[Job]] = {}
        for job in self.jobs.values():
            if job.nodes and job.holding and job.state != JobState.COMPLETING:
                for name in job.nodes:
                    holders.setdefault(name, []).append(job)
        return holders

    @cached_property
    def components(self) -> dict[str, list[Job]]:
        """By the leader's id, the jobs of each heterogeneous job that was given nodes."""
        components: dict[str, list[Job]] = {}
        for job in self.jobs.values():
            if job.gang != job.id and job.holding:
                components.setdefault(job.gang, []).append(job)
        for gang, jobs in components.items():
            leader = self.jobs.get(gang)
            if leader is not None and leader.holding:
                jobs.append(leader)
        return components

    @cached_property
    def tally(self) -> Counter[str]:
        """By pool, how many instances it has or is about to have. Those that are terminating count while they cost
        money."""
        tally: Counter[str] = Counter()
        for name, instances in self.live.items():
            tally[instances[0].pool or self.policy.pool_of(name)] += len(instances)
        for name, claim in self.claims.items():
            if name not in self.live and self._takes_a_place(claim):
                tally[claim.pool] += 1
        return tally

    def _takes_a_place(self, claim: NodeClaim) -> bool:
        """Whether a claim without a listed instance has one that is not listed yet, or gets one without admission."""
        if claim.state not in RELEASED or self.in_flight(claim):
            return True
        unsure = claim.instance_id and claim.instance_id not in self.gone
        if unsure and self.now - claim.since < self.policy.times.listing_lag:
            return True
        # Its gang is admitted: the instance that terminates is replaced, and no other node may take its place.
        gangs = (self.gangs.get(gang) for gang in claim.jobs or (f"node/{claim.node}",))
        replaced = claim.state == ClaimState.ENDING and claim.node in self.powering_up
        return replaced and any(gang is not None and gang.admitted_at > 0 for gang in gangs)

    def phase_of(self, name: str) -> Phase | None:
        """The phase of a node; None if Slurm does not know the node."""
        node = self.nodes.get(name)
        return phase(node.flags) if node else None

    def in_flight(self, claim: NodeClaim) -> bool:
        """Whether the executor has queued or sent its launch, and has no answer yet."""
        return claim.token in self.observation.in_flight

    # --- writing -----

    def change(self, claim: NodeClaim, **changes: Any) -> NodeClaim:
        """Write a claim with changes; a new state begins now."""
        if changes.get("state", claim.state) != claim.state:
            changes.setdefault("since", self.now)
        self.claims[claim.node] = changed = replace(claim, **changes)
        return changed

    def adopt(self, node: Node, instance: CloudInstance, state: ClaimState, jobs: tuple[str, ...] = ()) -> NodeClaim:
        """Write a claim for an instance that the ledger does not know, or knows under an older generation."""
        known = self.claims.get(node.name)
        self.claims[node.name] = claim = NodeClaim(
            node=node.name,
            pool=node.pool,
            generation=instance.generation,
            token=self.memory.token(node.name, instance.generation),
            state=state,
            since=self.now,
            asked_at=known.asked_at if known else self.now,
            jobs=known.jobs if known else jobs,
            instance_id=instance.id,
            tries=known.tries if known else 0,
            bad_host=known.bad_host if known and known.instance_id == instance.id else "",
        )
        return claim

    def note_bad_host(self, node: str, reason: str) -> None:
        """Write into the claim of a node that is given up what shows that its physical host is bad."""
        claim = self.claims.get(node)
        found = bad_host(reason, self.policy.hardware_checks)
        if claim and found and claim.bad_host != found:
            self.change(claim, bad_host=found)

    def reserve(self, node: Node, state: ClaimState) -> None:
        """Write a claim for a node that has no launch of ours, so that the next pass knows its state."""
        number, jobs = self.highest.get(node.name, 0), self.gangs_of(node.name)
        self.claims[node.name] = NodeClaim(node.name, node.pool, number, "", state, self.now, self.now, jobs)

    def launch(self, node: Node, jobs: tuple[str, ...], why: str) -> None:
        """Claim the next generation of a node, and launch it."""
        known = self.claims.get(node.name)
        before = (self.highest.get(node.name, 0), self.generations.get(node.name, 0), known.generation if known else 0)
        self.generations[node.name] = generation = max(before) + 1
        token = self.memory.token(node.name, generation)
        self.claims[node.name] = NodeClaim(
            node=node.name,
            pool=node.pool,
            generation=generation,
            token=token,
            state=ClaimState.INTENDED,
            since=self.now,
            asked_at=self.now,
            jobs=jobs,
            tries=known.tries if known and known.jobs == jobs else 0,
        )
        self.launched_at.append(self.now)
        self.actions.append(Launch(node.name, node.pool, generation, token, why))

    def gangs_of(self, name: str) -> tuple[str, ...]:
        """The gangs that were given a node."""
        return tuple(sorted({job.gang for job in self.holders.get(name, ())}))

    def drop(self, claim: NodeClaim) -> None:
        """Note in the claim that its node is being given up. This cancels a launch that is still queued."""
        if claim.state == ClaimState.FAILED and claim.fault is not Fault.TRANSIENT and claim.node not in self.live:
            self.change(claim, state=ClaimState.DROPPING, token="", instance_id="")
        elif claim.state not in RELEASED:
            self.change(claim, state=ClaimState.DROPPING)

    def launch_again(self, claim: NodeClaim, why: str) -> None:
        """Send the same launch once more: its token makes sure that there is one instance. Gangs may share the node."""
        if claim.token in self._again:
            return
        self._again.add(claim.token)
        self.actions.append(Launch(claim.node, claim.pool, claim.generation, claim.token, why))

    def terminate(self, name: str, pool: str, instance_id: str, why: str, *, unless_wanted: bool = True) -> bool:
        """Terminate an instance, unless that was requested less than ASK_AGAIN ago. Returns whether it is requested."""
        claim = self.claims.get(name)
        mine = claim is not None and claim.instance_id == instance_id
        if claim and mine and claim.ended_at and self.now - claim.ended_at < ASK_AGAIN:
            return False
        if claim and mine:
            self.claims[name] = replace(claim, ended_at=self.now)
        shown = claim.bad_host if claim and mine else ""
        self.actions.append(Terminate(instance_id, name, pool, why, unless_wanted, bad_host=shown))
        return True

    def power_down(self, name: str, why: str) -> None:
        """Give a node up; nodes with the same reason share one action."""
        self._give_up[why].append(name)

    def power_down_idle(self, name: str, why: str) -> None:
        """Power a node down unless it has got a job by now; nodes with the same reason share one action."""
        self._power_down_idle[why].append(name)

    def mark_down(self, name: str, why: str) -> None:
        """Take a node out of service; nodes with the same reason share one action."""
        self._mark_down[why].append(name)

    def note(self, subject: str, text: str) -> None:
        """Explain what is done or not done about a subject, and why."""
        self.notes.append(Note(subject, text))

    def plan(self) -> ScalingPlan:
        """The plan. Its memory is the same object as before if nothing has changed."""
        actions = [
            *self.actions,
            *(MarkDown(tuple(nodes), why) for why, nodes in self._mark_down.items()),
            *(PowerDown(tuple(nodes), why) for why, nodes in self._give_up.items()),
            *(PowerDown(tuple(nodes), why, force=False) for why, nodes in self._power_down_idle.items()),
        ]
        if len(actions) > 1:
            actions.sort(key=lambda action: _RANK[type(action)])
        return ScalingPlan(tuple(actions), self._memory(), tuple(self.notes))

    def _memory(self) -> Memory:
        if self.launched_at and self.launched_at[0] <= self.now - HOUR:
            self.launched_at = [at for at in self.launched_at if at > self.now - HOUR]
        memory = self.memory
        values: dict[str, Any] = {
            "claims": self.claims,
            "gangs": self.gangs,
            "cool_downs": self.cool_downs,
            "boot_failures": self.boot_failures,
            "boot_causes": self.boot_causes,
            "generations": self.generations,
            "orphans_seen": self.orphans_seen,
            "healed_at": self.healed_at,
            "node_count": self.node_count,
            "launched_at": tuple(self.launched_at),
        }
        changed = {name: value for name, value in values.items() if value != getattr(memory, name)}
        return replace(memory, **changed) if changed else memory
