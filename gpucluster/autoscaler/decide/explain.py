"""Explains why a node or a job is in its present state. It makes the plan and carries nothing out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpucluster.autoscaler.decide.phases import Phase, phase
from gpucluster.autoscaler.decide.plan import decide
from gpucluster.autoscaler.decide.pools import TRY_NOW
from gpucluster.autoscaler.decide.types import (
    Action,
    ClaimState,
    CloudInstance,
    Job,
    Memory,
    Node,
    NodeClaim,
    Observation,
)
from gpucluster.autoscaler.decide.words import SCHEDULERS, VERBS, SchedulerWords, describe_fault, timestamp
from gpucluster.autoscaler.policy import MAX_ATTEMPTS, Policy
from gpucluster.node_agent.rules.reasons import from_administrator, from_gpucluster
from gpucluster.text import count

_PHASES = {
    Phase.POWERED_DOWN: "is powered down: it costs nothing, and {name} powers it up for a job that needs it",
    Phase.POWERING_UP: "powers up: {name} waits for its {daemon}",
    Phase.IN_SERVICE: "is in service",
    Phase.POWERING_DOWN: "powers down: it takes no job until that is over",
    Phase.DOWN_POWERED_OFF: "is out of service and powered down",
    Phase.DOWN: "is down",
}
_CLAIMS = {
    ClaimState.INTENDED: "Its launch is requested, and there is no answer yet",
    ClaimState.HELD: "Its launch waits: the autoscaler is paused",
    ClaimState.LAUNCHED: "The cloud has accepted its launch",
    ClaimState.JOINING: "Its instance runs and is being configured",
    ClaimState.RUNNING: "Its instance runs; its {daemon} has not registered yet",
    ClaimState.UP: "Its {daemon} has registered",
    ClaimState.FAILED: "Its launch failed",
    ClaimState.DROPPING: "{name} is to power it down",
    ClaimState.ENDING: "Its instance is being terminated",
}
# What Slurm's reasons of a waiting job mean.
_REASONS = {
    "Resources": "it waits for nodes to become free",
    "Priority": "jobs with a higher priority are before it",
    "Dependency": "it waits for another job",
    "BeginTime": "its start time is not reached",
    "JobHeldUser": "its user held it",
    "JobHeldAdmin": "an administrator or the autoscaler held it",
    "MaxPoweredUpNodes": "the limit of powered-up nodes is reached (max_nodes)",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows",
    "UnboundClaim": "a volume claim of its pods is not bound or not there, and no node changes that. See: kubectl "
    "describe pod, kubectl get persistentvolumeclaims",
    "SchedulingGated": "its pods have scheduling gates. What has set them, such as Kueue, has to admit it first",
}
# So many jobs are explained that have one name.
_MOST = 5


def explain(subject: str, observation: Observation, memory: Memory, policy: Policy, now: float) -> tuple[str, ...]:
    """What is known about a node or a job, what would be done about it now, and why or why not.

    Args:
        subject: the name of a node; with Slurm the number of a job; with Kubernetes the name of a pod, of what made it
            (a Job, a ReplicaSet, a JobSet), or of a gang, with its namespace or without.
    """
    if policy.scheduler == "slurm":
        about = explain_job if subject[:1].isdecimal() else explain_node
        return about(subject, observation, memory, policy, now)
    if policy.pool_of(subject):
        return explain_node(subject, observation, memory, policy, now)
    ids = jobs_called(subject, observation)
    if not ids and observation.jobs is not None:
        return (
            f"There is no elastic node {subject}, and no pod, job or gang of this name that has not ended. Give the "
            "name of a node, or NAMESPACE/NAME",
        )
    lines = [line for job in ids[:_MOST] or (subject,) for line in explain_job(job, observation, memory, policy, now)]
    if len(ids) > _MOST:
        lines.append(f"There are {len(ids) - _MOST} more of this name: {', '.join(ids[_MOST:])}")
    return tuple(dict.fromkeys(lines))


def jobs_called(name: str, observation: Observation) -> tuple[str, ...]:
    """The ids of the jobs of Kubernetes that have a name, with its namespace or without; those that wait come first."""
    jobs = observation.jobs or {}
    if name in jobs:
        return (name,)
    matches = [
        job
        for job in jobs.values()
        if name in job.called or ("/" not in name and any(each.endswith(f"/{name}") for each in (job.id, *job.called)))
    ]
    return tuple(job.id for job in sorted(matches, key=lambda job: (not job.pending, job.id)))


def explain_node(name: str, observation: Observation, memory: Memory, policy: Policy, now: float) -> tuple[str, ...]:
    """What is known about a node, what would be done about it now, and why or why not."""
    plan = decide(observation, memory, policy, now)
    node = (observation.nodes or {}).get(name)
    instances = [instance for instance in observation.instances or () if instance.node == name]
    lines = [*_node(name, node, policy)]
    live = [instance for instance in instances if instance.live]
    lines += [f"Instance {instance.id} of generation {instance.generation} is {instance.state}" for instance in live]
    if node and observation.instances is not None and not live:
        lines.append("The cloud lists no instance under its name")
    claim = plan.memory.claims.get(name)
    if claim:
        lines.append(_claim(claim, SCHEDULERS[policy.scheduler]))
    lines += _cooling(plan.memory, (node.pool,) if node else (), now)
    lines += [note.text for note in plan.notes if note.subject in (name, "autoscaler")]
    lines += [
        f"Now: {VERBS[type(action)]}: {action.why}" for action in plan.actions if _about_node(action, name, instances)
    ]
    return tuple(dict.fromkeys(lines))


def explain_job(number: str, observation: Observation, memory: Memory, policy: Policy, now: float) -> tuple[str, ...]:
    """What is known about a job, what would be done about it now, and why or why not."""
    plan, words = decide(observation, memory, policy, now), SCHEDULERS[policy.scheduler]
    job = (observation.jobs or {}).get(number)
    if job is None:
        answer = "does not answer" if observation.jobs is None else f"has no unfinished job {number}"
        known = f"{words.name} {answer}"
        return (known,)
    lines = [_job(job, words)]
    gang = plan.memory.gangs.get(job.gang)
    if gang and gang.attempts:
        lines.append(f"It could not get its nodes {count(gang.attempts, 'time')}; after {MAX_ATTEMPTS} it is held")
    if gang and gang.message:
        lines.append(gang.message)
    elif job.pending:
        lines.append(words.no_node_yet)
    if job.pending:
        where = [name for name, pool in policy.pools.items() if pool.partition in job.partitions]
        lines += _cooling(plan.memory, where, now)
    lines += [note.text for note in plan.notes if note.subject in (job.id, job.gang, "autoscaler")]
    lines += [
        line
        for node in job.nodes
        if (claim := plan.memory.claims.get(node))
        for line in [f"{node}: {_claim(claim, words)}"]
    ]
    lines += [
        f"Now: {VERBS[type(action)]}: {action.why}" for action in plan.actions if getattr(action, "job", None) == job.id
    ]
    return tuple(dict.fromkeys(lines))


def _cooling(memory: Memory, names: Iterable[str], now: float) -> Iterator[str]:
    """The pools of these that give no nodes now, why, and what ends that."""
    for name in names:
        known = memory.cool_downs.get(name)
        if known and known.until > now:
            why = describe_fault(known.fault, known.message)
            yield (
                f"Pool {name} cools down until {timestamp(known.until)}: {why}. If the cause is gone, run: {TRY_NOW}"
            )


def _node(name: str, node: Node | None, policy: Policy) -> list[str]:
    words = SCHEDULERS[policy.scheduler]
    if node is None:
        pool = policy.pool_of(name)
        return [f"{words.name} lists no node {name}" + (f", though pool {pool} has that name" if pool else "")]
    state = _PHASES[phase(node.flags)].format(name=words.name, daemon=words.daemon)
    lines = [f"{name} of pool {node.pool or '(none)'} {state} ({'+'.join(sorted(node.flags))})"]
    if node.reason and from_administrator(node.reason, node.reason_user):
        who = f" ({node.reason_user})" if node.reason_user else ""
        lines.append(f"An administrator or a health check gave it the reason: {node.reason}{who}. It is not changed")
    elif node.reason:
        lines.append(
            f"{'The autoscaler' if from_gpucluster(node.reason) else words.name} gave it the reason: {node.reason}"
        )
    return lines


def _claim(claim: NodeClaim, scheduler: SchedulerWords) -> str:
    state = _CLAIMS[claim.state].format(name=scheduler.name, daemon=scheduler.daemon)
    words = f"{state} (generation {claim.generation}, since {timestamp(claim.since)})"
    return f"{words}; {describe_fault(claim.fault, claim.message)}" if claim.fault else words


def _job(job: Job, words: SchedulerWords) -> str:
    if not job.pending:
        return f"Job {job.id} is {job.state} on {count(len(job.nodes), 'node')}"
    why = _REASONS.get(job.reason, f"by {words.name}")
    return f"Job {job.id} waits for {count(job.node_count, 'node')} ({job.reason}): {why}"


def _about_node(action: Action, name: str, instances: list[CloudInstance]) -> bool:
    return (
        getattr(action, "node", None) == name
        or name in getattr(action, "nodes", ())
        or any(getattr(action, "instance_id", None) == instance.id for instance in instances)
    )
