"""One look being thought through: what was seen, made easy to ask, and the plan that grows out of it.

A Draft lives for one call of `plan.decide` and is the only thing there that changes. Rules read the look and write
slots, gangs, actions and notes; none of them asks a clock or a service.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

from gpucluster.autoscaler.decide.phases import Phase, phase
from gpucluster.autoscaler.decide.world import (
    Action,
    CoolDown,
    Delay,
    Drain,
    Fault,
    Gang,
    Hold,
    Instance,
    Job,
    Join,
    Launch,
    MarkDown,
    Memory,
    Node,
    Note,
    Observation,
    Plan,
    PowerDown,
    SaveConsole,
    Slot,
    Tell,
    Terminate,
)
from gpucluster.autoscaler.policy import Policy

# The order in which the actions of one plan are carried out: words before a job loses its nodes, nodes of a pool that
# is not to be asked marked before Slurm looks for others, a job's new start time after it was requeued.
_ORDER: tuple[type, ...] = (Tell, SaveConsole, MarkDown, PowerDown, Delay, Hold, Drain, Join, Terminate, Launch)
_RANK = {kind: rank for rank, kind in enumerate(_ORDER)}
# A termination that was asked for is not asked for again at once: the cloud takes its time to show it.
ASK_AGAIN = 30.0
HOUR = 3600.0


class Draft:
    """The look, and the plan so far. See the module."""

    def __init__(self, observation: Observation, memory: Memory, policy: Policy, now: float) -> None:
        self.observation = observation
        self.memory = memory
        self.policy = policy
        self.now = now
        self.nodes = observation.nodes or {}
        self.jobs = observation.jobs or {}
        self.slots: dict[str, Slot] = dict(memory.slots)
        self.gangs: dict[str, Gang] = dict(memory.gangs)
        self.cool_downs: dict[str, CoolDown] = dict(memory.cool_downs)
        self.boot_failures: dict[str, int] = dict(memory.boot_failures)
        self.generations: dict[str, int] = dict(memory.generations)
        self.swept = 0  # instances ended in this look on no word of Slurm's but their node's rest
        self.healed = 0
        self.orphans_seen: dict[str, float] = dict(memory.orphans_seen)
        self.healed_at: dict[str, float] = dict(memory.healed_at)
        self.node_count = memory.node_count
        self.launched_at: list[float] = list(memory.launched_at)
        self.actions: list[Action] = []
        self.notes: list[Note] = []
        self.coming: dict[str, Node] = {}
        self.coming_for: set[str] = set()  # the gangs that nodes power up for
        self.dropped: dict[str, str] = {}  # nodes given up in this look, and by which gang
        self._give_up: defaultdict[str, list[str]] = defaultdict(list)
        self._mark_down: defaultdict[str, list[str]] = defaultdict(list)
        self.live: dict[str, list[Instance]] = {}
        self.gone: set[str] = set()  # ids that the cloud lists as ending or ended
        self.terminating: set[str] = set()  # names whose instance still ends
        self.highest: dict[str, int] = {}  # generation, by name
        self._index(observation.instances or ())

    def _index(self, instances: Iterable[Instance]) -> None:
        for instance in instances:
            name = instance.node
            if instance.generation > self.highest.get(name, 0):
                self.highest[name] = instance.generation
            if instance.live:
                self.live.setdefault(name, []).append(instance)
                continue
            self.gone.add(instance.id)
            if instance.state == "TERMINATING":
                self.terminating.add(name)

    # --- asking -----

    @cached_property
    def holders(self) -> dict[str, list[Job]]:
        """The jobs that were given each node and still want it."""
        holders: dict[str, list[Job]] = {}
        for job in self.jobs.values():
            if job.nodes and job.holding and job.state != "COMPLETING":
                for name in job.nodes:
                    holders.setdefault(name, []).append(job)
        return holders

    @cached_property
    def components(self) -> dict[str, list[Job]]:
        """The jobs of each heterogeneous job that was given nodes, by the leader's id."""
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
        """How many instances each pool has or is about to have; those that end count while they cost."""
        tally: Counter[str] = Counter()
        for name, instances in self.live.items():
            tally[instances[0].pool or self.policy.pool_of(name)] += len(instances)
        for name, slot in self.slots.items():
            if name not in self.live and self._takes_a_place(slot):
                tally[slot.pool] += 1
        return tally

    def _takes_a_place(self, slot: Slot) -> bool:
        """Whether a slot without a listed instance has one that is not seen yet, or gets one without a gate."""
        if slot.state not in ("ending", "dropping") or self.in_flight(slot):
            return True
        unsure = slot.instance_id and slot.instance_id not in self.gone
        if unsure and self.now - slot.since < self.policy.times.listing_lag:
            return True
        # its gang has passed the gates: the instance that ends is replaced, and nobody else may have its place
        gangs = (self.gangs.get(gang) for gang in slot.jobs or (f"node/{slot.node}",))
        replaced = slot.state == "ending" and slot.node in self.coming
        return replaced and any(gang is not None and gang.admitted_at > 0 for gang in gangs)

    def phase_of(self, name: str) -> Phase | None:
        """Where a node stands; None if Slurm does not know it."""
        node = self.nodes.get(name)
        return phase(node.flags) if node else None

    def in_flight(self, slot: Slot) -> bool:
        """Whether the executor has its launch, and no answer yet."""
        return slot.token in self.observation.in_flight

    # --- writing -----

    def change(self, slot: Slot, **changes: Any) -> Slot:
        """Remember a slot with changes; a new state begins now."""
        if changes.get("state", slot.state) != slot.state:
            changes.setdefault("since", self.now)
        self.slots[slot.node] = changed = replace(slot, **changes)
        return changed

    def adopt(self, node: Node, instance: Instance, state: str, jobs: tuple[str, ...] = ()) -> Slot:
        """Remember an instance that the ledger does not know, or knows under an older number."""
        known = self.slots.get(node.name)
        self.slots[node.name] = slot = Slot(
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
        )
        return slot

    def launch(self, node: Node, jobs: tuple[str, ...], why: str) -> None:
        """Intend the next generation of a node, and ask for it."""
        known = self.slots.get(node.name)
        before = (self.highest.get(node.name, 0), self.generations.get(node.name, 0), known.generation if known else 0)
        self.generations[node.name] = generation = max(before) + 1
        token = self.memory.token(node.name, generation)
        self.slots[node.name] = Slot(
            node=node.name,
            pool=node.pool,
            generation=generation,
            token=token,
            state="intended",
            since=self.now,
            asked_at=self.now,
            jobs=jobs,
            tries=known.tries if known and known.jobs == jobs else 0,
        )
        self.launched_at.append(self.now)
        self.actions.append(Launch(node.name, node.pool, generation, token, why))

    def gangs_of(self, name: str) -> tuple[str, ...]:
        """The gangs that a node was given to."""
        return tuple(sorted({job.gang for job in self.holders.get(name, ())}))

    def drop(self, slot: Slot) -> None:
        """Remember that a node is being given up; a launch that is still queued is thereby cancelled."""
        if slot.state == "failed" and slot.fault != Fault.TRANSIENT and slot.node not in self.live:
            self.change(slot, state="dropping", token="", instance_id="")
        elif slot.state not in ("dropping", "ending"):
            self.change(slot, state="dropping")

    def ask_again(self, slot: Slot, why: str) -> None:
        """The same launch once more: its token makes sure that there is one instance."""
        self.actions.append(Launch(slot.node, slot.pool, slot.generation, slot.token, why))

    def terminate(self, name: str, pool: str, instance_id: str, why: str, *, unless_wanted: bool = True) -> bool:
        """Have an instance ended, unless that was asked a moment ago."""
        slot = self.slots.get(name)
        mine = slot is not None and slot.instance_id == instance_id
        if slot and mine and slot.ended_at and self.now - slot.ended_at < ASK_AGAIN:
            return False
        if slot and mine:
            self.slots[name] = replace(slot, ended_at=self.now)
        self.actions.append(Terminate(instance_id, name, pool, why, unless_wanted=unless_wanted))
        return True

    def power_down(self, name: str, why: str) -> None:
        """Give a node up; nodes with the same reason go together."""
        self._give_up[why].append(name)

    def mark_down(self, name: str, why: str) -> None:
        """Take a node out of service; nodes with the same reason go together."""
        self._mark_down[why].append(name)

    def note(self, subject: str, text: str) -> None:
        """Say what is done or not done about a subject, and why."""
        self.notes.append(Note(subject, text))

    def plan(self) -> Plan:
        """The plan; the very same memory if nothing is new in it."""
        actions = [
            *self.actions,
            *(MarkDown(tuple(nodes), why) for why, nodes in self._mark_down.items()),
            *(PowerDown(tuple(nodes), why) for why, nodes in self._give_up.items()),
        ]
        if len(actions) > 1:
            actions.sort(key=lambda action: _RANK[type(action)])
        return Plan(tuple(actions), self._memory(), tuple(self.notes))

    def _memory(self) -> Memory:
        if self.launched_at and self.launched_at[0] <= self.now - HOUR:
            self.launched_at = [at for at in self.launched_at if at > self.now - HOUR]
        memory = self.memory
        values: dict[str, Any] = {
            "slots": self.slots,
            "gangs": self.gangs,
            "cool_downs": self.cool_downs,
            "boot_failures": self.boot_failures,
            "generations": self.generations,
            "orphans_seen": self.orphans_seen,
            "healed_at": self.healed_at,
            "node_count": self.node_count,
            "launched_at": tuple(self.launched_at),
        }
        changed = {name: value for name, value in values.items() if value != getattr(memory, name)}
        return replace(memory, **changed) if changed else memory
