"""Which nodes that power up belong together: those of one job, and those of no job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpucluster.autoscaler.decide.nodes import ACCEPTED
from gpucluster.autoscaler.decide.phases import OURS
from gpucluster.autoscaler.decide.plan_builder import Draft
from gpucluster.autoscaler.decide.world import Job, Node, Slot

# Slurm was told to give nodes up: this long it may take to show.
TOLD = 15.0
# Reasons of Slurm for which a waiting job takes nodes as soon as there are some.
_READY = frozenset({"", "None", "Priority", "Resources", "MaxPoweredUpNodes"})
# ... and what it says of one that waits for nodes that are just being given up (24.11).
_READY_SOON = ("ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED or reserved")


@dataclass(frozen=True, slots=True)
class Team:
    """A gang of this look: its jobs, and those of its nodes that power up. A node that a person powered up has none."""

    id: str
    jobs: tuple[Job, ...]
    nodes: tuple[Node, ...]

    @property
    def rank(self) -> tuple[bool, int, bool, int, str]:
        """Highest priority first, then the older job."""
        priority = max((job.priority for job in self.jobs), default=0)
        return (not self.jobs, -priority, not self.id.isdigit(), int(self.id) if self.id.isdigit() else 0, self.id)

    @property
    def restarts(self) -> int:
        """How often its jobs were requeued: another number, other nodes."""
        return sum(job.restarts for job in self.jobs)

    @property
    def called(self) -> str:
        """What it is called in a sentence."""
        return f"job {self.id}" if self.jobs else "a node that was powered up by hand"


def teams(draft: Draft) -> list[Team]:
    """The gangs of all nodes that power up, highest priority first. Nodes left behind are dealt with here."""
    jobs: dict[str, dict[str, Job]] = {}
    nodes: dict[str, dict[str, Node]] = {}
    strays: list[Node] = []
    for name, node in draft.coming.items():
        holders = draft.holders.get(name)
        if not holders:
            strays.append(node)
            continue
        for job in holders:
            jobs.setdefault(job.gang, {})[job.id] = job
            nodes.setdefault(job.gang, {})[name] = node
        _belongs(draft, name, holders)
    for gang in jobs.keys() & draft.components.keys():
        jobs[gang].update({job.id: job for job in draft.components[gang]})
    found = [Team(gang, tuple(jobs[gang].values()), tuple(nodes[gang].values())) for gang in jobs]
    return sorted(found + _strays(draft, strays), key=lambda team: team.rank)


def _belongs(draft: Draft, name: str, holders: Sequence[Job]) -> None:
    slot = draft.slots.get(name)
    gangs = tuple(sorted({job.gang for job in holders}))
    if slot and slot.jobs != gangs:
        draft.change(slot, jobs=gangs, tries=0)


def _strays(draft: Draft, nodes: list[Node]) -> list[Team]:
    """Nodes that power up for no job that is there: pre-warmed by a person, or left behind by a job that is gone."""
    if not nodes:
        return []
    announced = {name for intent in draft.observation.intents for of in intent.jobs.values() for name in of}
    demand = _demand(draft)
    alone = []
    for node in nodes:
        slot = draft.slots.get(node.name)
        left_behind = (slot is not None and bool(slot.jobs)) or (slot is None and node.name in announced)
        if node.busy:
            draft.note(node.name, f"{node.name} has a job that just starts or ends: nothing is done until that shows")
        elif slot and slot.state == "dropping":
            _insist_on_power_down(draft, slot)
        elif left_behind:
            _left_behind(draft, node, slot, demand)
        else:
            alone.append(Team(f"node/{node.name}", (), (node,)))
    return alone


def _demand(draft: Draft) -> Counter[str]:
    """How many nodes the jobs that could start now ask for, by partition."""
    soon = draft.now + draft.policy.times.backoff
    demand: Counter[str] = Counter()
    for job in draft.jobs.values():
        ready = (
            job.reason in _READY
            or job.reason.startswith(_READY_SOON)
            or (job.reason == "BeginTime" and 0 < job.eligible_at <= soon)
        )
        if job.pending and ready and job.eligible_at <= soon:
            for partition in job.partitions:
                demand[partition] += job.node_count
    return demand


def _left_behind(draft: Draft, node: Node, slot: Slot | None, demand: Counter[str]) -> None:
    partition = draft.policy.pools[node.pool].partition
    if slot and slot.state in ACCEPTED and demand[partition] > 0:
        demand[partition] -= 1
        draft.note(node.name, f"the job that {node.name} was for is gone; it is kept for one that waits in {partition}")
        return
    why = f"{OURS} the job that powered it up is gone and no waiting job of partition {partition} can use it"
    draft.power_down(node.name, why)
    if slot:
        draft.drop(slot)


def _insist_on_power_down(draft: Draft, slot: Slot) -> None:
    if draft.now - slot.since >= TOLD:
        draft.power_down(slot.node, f"{OURS} it was given up and still powers up")
        draft.slots[slot.node] = replace(slot, since=draft.now)
