"""Groups the nodes that power up into gangs: the nodes of one job, and nodes that belong to no job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpucluster.autoscaler.decide.plan_builder import PlanBuilder
from gpucluster.autoscaler.decide.types import ACCEPTED, ClaimState, Job, Node, NodeClaim
from gpucluster.node_agent.rules.reasons import PREFIX

# Seconds until Slurm shows that nodes were given up.
POWER_DOWN_SHOWS = 15.0
# Reasons of Slurm for which a waiting job takes nodes as soon as there are some.
_READY = frozenset({"", "None", "Priority", "Resources", "MaxPoweredUpNodes"})
# ... and of a job that waits for nodes that are just being given up (24.11).
_READY_SOON = ("ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED or reserved")


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang of this pass: its jobs, and those of its nodes that power up. For a node that an administrator powered up
    it has no jobs."""

    id: str
    jobs: tuple[Job, ...]
    nodes: tuple[Node, ...]

    @property
    def rank(self) -> tuple[bool, int, bool, int, str]:
        """The sort key: highest priority first, then the older job."""
        priority = max((job.priority for job in self.jobs), default=0)
        return (not self.jobs, -priority, not self.id.isdigit(), int(self.id) if self.id.isdigit() else 0, self.id)

    @property
    def restarts(self) -> int:
        """How often its jobs were requeued; after a requeue a job has other nodes."""
        return sum(job.restarts for job in self.jobs)

    @property
    def called(self) -> str:
        """The gang's name in a sentence."""
        return f"job {self.id}" if self.jobs else "a node that was powered up by hand"


def group(builder: PlanBuilder) -> list[Gang]:
    """The gangs of all nodes that power up, highest priority first. Decides also on nodes that a job left behind."""
    jobs: dict[str, dict[str, Job]] = {}
    nodes: dict[str, dict[str, Node]] = {}
    strays: list[Node] = []
    for name, node in builder.powering_up.items():
        holders = builder.holders.get(name)
        if not holders:
            strays.append(node)
            continue
        for job in holders:
            jobs.setdefault(job.gang, {})[job.id] = job
            nodes.setdefault(job.gang, {})[name] = node
        _note_gangs(builder, name, holders)
    for gang in jobs.keys() & builder.components.keys():
        jobs[gang].update({job.id: job for job in builder.components[gang]})
    gangs = [Gang(gang, tuple(jobs[gang].values()), tuple(nodes[gang].values())) for gang in jobs]
    return sorted(gangs + _strays(builder, strays), key=lambda gang: gang.rank)


def _note_gangs(builder: PlanBuilder, name: str, holders: Sequence[Job]) -> None:
    """Write the gangs of a node into its claim; other gangs begin with no failed tries."""
    claim = builder.claims.get(name)
    gangs = tuple(sorted({job.gang for job in holders}))
    if claim and claim.jobs != gangs:
        builder.change(claim, jobs=gangs, tries=0)


def _strays(builder: PlanBuilder, nodes: list[Node]) -> list[Gang]:
    """Nodes that power up without a job: an administrator powered them up, or their job is gone."""
    if not nodes:
        return []
    announced = {name for intent in builder.observation.intents for of in intent.jobs.values() for name in of}
    demand = _demand(builder)
    alone = []
    for node in nodes:
        claim = builder.claims.get(node.name)
        left_behind = (claim is not None and bool(claim.jobs)) or (claim is None and node.name in announced)
        if node.busy:
            builder.note(node.name, f"{node.name} has a job that just starts or ends: nothing is done until that shows")
        elif claim and claim.state == ClaimState.DROPPING:
            _insist_on_power_down(builder, claim)
        elif left_behind:
            _left_behind(builder, node, claim, demand)
        else:
            alone.append(Gang(f"node/{node.name}", (), (node,)))
    return alone


def _demand(builder: PlanBuilder) -> Counter[str]:
    """By partition, how many nodes the jobs ask for that could start now."""
    soon = builder.now + builder.policy.times.backoff
    demand: Counter[str] = Counter()
    for job in builder.jobs.values():
        ready = (
            job.reason in _READY
            or job.reason.startswith(_READY_SOON)
            or (job.reason == "BeginTime" and 0 < job.eligible_at <= soon)
        )
        if job.pending and ready and job.eligible_at <= soon:
            for partition in job.partitions:
                demand[partition] += job.node_count
    return demand


def _left_behind(builder: PlanBuilder, node: Node, claim: NodeClaim | None, demand: Counter[str]) -> None:
    """Keep a node without a job for a waiting job, or give it up."""
    partition = builder.policy.pools[node.pool].partition
    if claim and claim.state in ACCEPTED and demand[partition] > 0:
        demand[partition] -= 1
        text = f"the job that {node.name} was for is gone; it is kept for a job that waits in {partition}"
        builder.note(node.name, text)
        return
    why = f"{PREFIX} the job that powered it up is gone and no waiting job of partition {partition} can use it"
    builder.power_down(node.name, why)
    if claim:
        builder.drop(claim)


def _insist_on_power_down(builder: PlanBuilder, claim: NodeClaim) -> None:
    if builder.now - claim.since >= POWER_DOWN_SHOWS:
        builder.power_down(claim.node, f"{PREFIX} it was given up and still powers up")
        builder.claims[claim.node] = replace(claim, since=builder.now)
