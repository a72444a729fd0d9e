"""Checks of Slurm, of its pools and nodes, and of the autoscaler: by facts from the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from gpucluster.advisories import evaluate
from gpucluster.controller.rules.slurm_nodes import SINFO_IN_USE, is_busy, sinfo_use
from gpucluster.node_agent.checks.model import CheckOutcome, Measurements, Scope, Status
from gpucluster.node_agent.rules.rdma_place import Place, leaf_switch, root_switch, unplaced_switch
from gpucluster.node_agent.rules.reasons import drained_by_rollout
from gpucluster.oci.names import elastic_prefix, number_of
from gpucluster.slurm.hostlists import expand
from gpucluster.slurm.states import (
    SINFO_BUSY,
    SINFO_CLOSED,
    SINFO_DRAINED,
    SINFO_RESUMABLE,
    NodeHealth,
    node_health,
    sinfo_word,
)
from gpucluster.text import count
from gpucluster.verdict.expectation import Expectation, cluster_check
from gpucluster.verdict.hosts import APPLY

# What srun writes before it starts a step.
_ALLOCATED = "has been allocated resources"
# How long a query of the controller may take.
_QUERY_SECONDS = 20.0
_JOB_SECONDS = 60.0
# HTTP's status for a request that proves no user.
_UNAUTHORIZED = 401
# Of the REST API's certificate: apply renews that of the cluster's own CA earlier.
_CERTIFICATE_DAYS = 14

Row = Mapping[str, Any]
_NOT_TRIED: Row = {"ran": False, "nodes": (), "user": "", "error": ""}


@cluster_check(
    "nodes are ready in Slurm", "sinfo", scope=Scope.NODE, timeout_s=_QUERY_SECONDS,
    subjects=lambda expected: expected.nodes if expected.scheduler == "slurm" else (),
    remedy="See the reason: gpucluster ssh -- scontrol show node NODE",
)  # fmt: skip
def _node_state(seen: Measurements, expected: Expectation, node: str) -> CheckOutcome:
    pool = expected.pool_of(node)
    partition = expected.partitions.get(pool, pool)
    rows = [row for row in seen["sinfo"] if row["node"] == node and row["partition"].rstrip("*") == partition]
    if not rows:
        return CheckOutcome(Status.FAIL, "is unknown to Slurm")
    (row,) = rows
    evidence = {"state": row["state"], "reason": row["reason"]}
    health = node_health(row["state"])
    if health is NodeHealth.GOOD:
        return CheckOutcome(Status.PASS, row["state"], evidence)
    if health is NodeHealth.UNKNOWN:
        return CheckOutcome(Status.WARN, f"is {_state(row)}, which is not known here", evidence)
    if _is_rolled(row):
        return CheckOutcome(
            Status.WARN, f"is {_state(row)}, which is not complete: gpucluster rollout goes on", evidence
        )
    return CheckOutcome(Status.FAIL, "; ".join([f"is {_state(row)}", *_to_resume([row])]), evidence)


def _state(row: Row) -> str:
    return f"{row['state']} ({row['reason']})" if row["reason"] else str(row["state"])


def _is_rolled(row: Row) -> bool:
    """Whether a rollout that was interrupted has left the node drained. One that does not answer is a fault: Slurm adds
    a star to its state."""
    return row["state"] in SINFO_DRAINED and drained_by_rollout(row["reason"])


def _to_resume(rows: Sequence[Row]) -> list[str]:
    """The command for the nodes that are drained, or that a health check or an administrator set down."""
    waiting = [row["node"] for row in rows if row["state"] in SINFO_RESUMABLE]
    command = f"gpucluster ssh -- sudo scontrol update nodename={','.join(waiting)} state=resume"
    return [f"when the reason is gone, run: {command}"] if waiting else []


def _pools(expected: Expectation) -> Sequence[str]:
    return tuple(expected.pools) if expected.scheduler == "slurm" else ()


def _no_user(expected: Expectation, _pool: str) -> str:
    return "" if expected.people else "there is no user who could run one"


@cluster_check(
    "a job runs in pool {subject}", "srun", "sinfo", "jobs_waiting", scope=Scope.POOL, timeout_s=_JOB_SECONDS,
    applies=_no_user,
    subjects=lambda expected: [pool for pool in _pools(expected) if expected.pools[pool]],
    remedy="See why: gpucluster ssh -- sinfo -R, and /var/log/slurm/slurmd.log on the pool's nodes",
)  # fmt: skip
def _job(seen: Measurements, expected: Expectation, pool: str) -> CheckOutcome:
    """A job on two nodes, or on the only one, started by srun as users do: with the cluster's own `MpiDefault`."""
    nodes = expected.pools[pool]
    number = min(2, len(nodes))
    run = next((run for run in seen["srun"] if run["partition"] == pool), _NOT_TRIED)
    nodes_of_job, error = sorted(set(run["nodes"])), run["error"]
    evidence = {"nodes": nodes_of_job, "user": run["user"], "error": error}
    if run["ran"]:
        if error or len(nodes_of_job) != number:
            return CheckOutcome(Status.FAIL, error or f"it ran on {', '.join(nodes_of_job) or 'no node'}", evidence)
        return CheckOutcome(Status.PASS, f"on {' and '.join(nodes_of_job)} as {run['user']}", evidence)
    states = [row["state"] for row in seen["sinfo"] if row["node"] in nodes]
    if reason := _not_measured(seen, expected, pool, states, error):
        return CheckOutcome(Status.SKIP, reason, evidence)
    if _ALLOCATED in error:
        # As where slurmd does not have the MPI plugin that srun has chosen; srun prints nothing about it.
        log = "see /var/log/slurm/slurmd.log on the pool's nodes"
        return CheckOutcome(
            Status.FAIL, f"nodes were allocated, and srun's step did not begin in time: {log}", evidence
        )
    return CheckOutcome(Status.UNKNOWN, error or "no job was tried", evidence)


def _not_measured(seen: Measurements, expected: Expectation, pool: str, states: Sequence[str], error: str) -> str:
    """Why the job did not run in a pool that is in order; "" if it is not."""
    nodes = expected.pools[pool]
    number = min(2, len(nodes))
    rolled = [row["node"] for row in seen["sinfo"] if row["node"] in nodes and _is_rolled(row)]
    if rolled and len(nodes) - len(rolled) < number:
        return f"not measured, a rollout of an image has drained {', '.join(rolled)}"
    if number == 1 and states and sinfo_use(states[0]) in SINFO_BUSY:
        return f"{nodes[0]} runs other jobs"
    if is_busy(error) and (reason := _in_use(seen, expected, pool, states)):
        return f"not measured, the pool is in use: {reason}"
    return ""


def _in_use(seen: Measurements, expected: Expectation, pool: str, states: Sequence[str]) -> str:
    """Why jobs of users keep a job of two nodes waiting, in a pool that could run it; "" if they do not."""
    number, partition = min(2, len(states)), expected.partitions.get(pool, pool)
    words = [sinfo_word(state) for state in states]
    could = sum(word not in SINFO_CLOSED for word in words)
    free = sum(word not in SINFO_CLOSED | SINFO_BUSY for word in words)
    waiting = sum(each == partition for each in seen["jobs_waiting"])
    if could < number or (free >= number and not waiting):
        return ""
    return f"{count(waiting, 'job waits', 'jobs wait')}, {free} of {count(len(states), 'node')} free"


@cluster_check(
    "container steps run in pool {subject}", "sinfo", "container_steps", scope=Scope.POOL, timeout_s=_JOB_SECONDS,
    applies=_no_user,
    subjects=lambda expected: _pools(expected) if expected.containers else (),
    remedy=f"To install what is missing on permanent nodes, run: {APPLY.removeprefix('Run: ')}",
)  # fmt: skip
def _container_steps(seen: Measurements, expected: Expectation, pool: str) -> CheckOutcome:
    """Every free node, elastic nodes included, has run a step and seen the marker in the container."""
    nodes = expected.pools[pool]
    states = {row["node"]: row["state"] for row in seen["sinfo"]}
    good = (node for node, state in states.items() if node_health(state) is NodeHealth.GOOD)
    up = [node for node in good if number_of(elastic_prefix(pool), node)]
    elastic = up if expected.with_elastic else []
    if not nodes and not elastic:
        return CheckOutcome(Status.SKIP, "its nodes are launched when jobs need them")
    steps: Mapping[str, Any] = next((tried for tried in seen["container_steps"] if tried["pool"] == pool), {})
    if steps and steps["missed"]:
        return _missed(steps, elastic)
    ran: Sequence[str] = steps["seen"] if steps else ()
    every = [*nodes, *elastic]
    untried = [f"{node} ({states.get(node, 'not known to Slurm')})" for node in every if node not in ran]
    tried = f"on {len(ran)} of {len(every)} nodes" if ran else "no node is free"
    message = f"{tried}; not tried: {', '.join(untried)}" if untried else tried
    # It is not a fault that jobs of users have every node that takes jobs.
    words = [sinfo_word(states[node]) for node in every if node_health(states.get(node, "")) is NodeHealth.GOOD]
    in_use = bool(words) and all(word in SINFO_IN_USE for word in words)
    status = Status.PASS if ran else Status.SKIP if in_use or not nodes else Status.UNKNOWN
    return CheckOutcome(status, message, {"seen": list(ran)})


def _missed(steps: Mapping[str, Any], elastic: Sequence[str]) -> CheckOutcome:
    missed: Mapping[str, str] = steps["missed"]
    evidence = {"seen": list(steps["seen"]), "missed": dict(missed)}
    if all("Exec format error" in error for error in missed.values()):
        words = "its nodes have another architecture than the controller, whose shell would run in the container"
        return CheckOutcome(Status.SKIP, words, evidence)
    closed = {row["node"]: row for row in steps.get("closed", ())}
    failures = [f"{node}: {error}" for node, error in missed.items()]
    failures += [f"{node} is {_state(row)}" for node, row in closed.items()]
    failures += _to_resume([closed[node] for node in missed if node in closed and node not in elastic])
    if replaced := ",".join(node for node in missed if node in elastic):
        failures.append(f"to replace elastic nodes, run: scontrol update nodename={replaced} state=power_down_asap")
    return CheckOutcome(Status.FAIL, "; ".join(failures), evidence)


@cluster_check(
    "accounting answers", "accounting", timeout_s=_QUERY_SECONDS,
    subjects=lambda expected: ("",) if expected.accounting else (),
    remedy="See `journalctl -u slurmdbd` on the controller",
)  # fmt: skip
def _accounting(seen: Measurements, _expected: Expectation, _subject: str) -> CheckOutcome:
    if seen["accounting"] is not True:
        return CheckOutcome(Status.FAIL, "slurmdbd does not know the jobs of this check")
    return CheckOutcome(Status.PASS, "slurmdbd")


@cluster_check(
    "the REST API refuses requests without a token", "rest", timeout_s=_QUERY_SECONDS,
    subjects=lambda expected: ("",) if expected.rest and expected.whole else (),
    remedy="See: gpucluster ssh -- journalctl -u gpucluster-rest -u slurmrestd. Then: gpucluster apply",
)  # fmt: skip
def _rest(seen: Measurements, expected: Expectation, _subject: str) -> CheckOutcome:
    """It answers by TLS, with the certificate that it was given, which does not end soon."""
    answer: Row = seen["rest"]
    if "error" in answer:
        return CheckOutcome(Status.FAIL, f"it does not answer by TLS: {answer['error']}", answer)
    if answer["status"] != _UNAUTHORIZED:
        return CheckOutcome(Status.FAIL, f"it answers {answer['status']} to a request without a token", answer)
    days = (datetime.fromtimestamp(answer["ends"], UTC).date() - expected.today).days
    if days < _CERTIFICATE_DAYS:
        ends = f"its certificate ends in {count(days, 'day')}"
        return CheckOutcome(Status.WARN, f"{ends}: apply brings the next one", answer)
    return CheckOutcome(Status.PASS, f"its certificate is valid for {count(days, 'day')}", answer)


@cluster_check(
    "Slurm has no known vulnerability", "slurm_version", timeout_s=_QUERY_SECONDS,
    subjects=lambda expected: ("",) if expected.whole and expected.slurm_version else (),
    remedy="Set the fixed version in cluster.yml, then: gpucluster slurm upgrade",
)  # fmt: skip
def _slurm_advisories(seen: Measurements, expected: Expectation, _subject: str) -> CheckOutcome:
    version = str(seen["slurm_version"])
    warnings = evaluate.warnings("slurm", version, expected.today)
    if warnings:
        return CheckOutcome(Status.WARN, "; ".join(warnings), {"version": version})
    return CheckOutcome(Status.PASS, f"none is known of Slurm {version}", {"version": version})


@cluster_check(
    "the autoscaler is healthy", "autoscaler", timeout_s=_QUERY_SECONDS,
    subjects=lambda expected: ("",) if expected.autoscaler else (),
    remedy="See: gpucluster autoscaler status",
)  # fmt: skip
def _autoscaler(seen: Measurements, _expected: Expectation, _subject: str) -> CheckOutcome:
    status: Mapping[str, Any] = seen["autoscaler"]
    if status.get("healthy") is not True:
        failures = [str(problem) for problem in status.get("problems") or ()]
        has_answer = "healthy" in status or "error" in status
        message = "; ".join(failures) or str(status.get("error") or "it gives no reason")
        return CheckOutcome(Status.FAIL if has_answer else Status.UNKNOWN, message, status)
    paused = status.get("paused")
    return CheckOutcome(Status.PASS, f"paused: {paused}" if paused else f"pools {', '.join(status.get('pools') or ())}")


@cluster_check(
    "nodes are below the switch of their place", "rdma_place", "switches", scope=Scope.NODE, timeout_s=_QUERY_SECONDS,
    subjects=lambda expected: expected.rdma_places,
    remedy=f"{APPLY}. Places that contradict each other are not used: docs/how-to/topology.md",
)  # fmt: skip
def _topology(seen: Measurements, expected: Expectation, node: str) -> CheckOutcome:
    """Slurm's leaf switch of a node is the local block that its host reports."""
    pool, row = expected.pool_of(node), seen["rdma_place"]
    where = Place(row["island"], row["network_block"], row["local_block"]) if row["known"] else None
    switch = next((each["switch"] for each in seen["switches"] if node in _expanded(each["nodes"])), "")
    desired = leaf_switch(pool, where) if where else ""
    unplaced = switch in ("", root_switch(pool), unplaced_switch(pool))
    evidence = {"switch": switch, "desired": desired}
    if switch == desired or (unplaced and where is None):
        return CheckOutcome(Status.PASS, switch if where else "no place is reported", evidence)
    if where is None:
        return CheckOutcome(Status.WARN, f"is below {switch}, and its host reports no place", evidence)
    if unplaced:
        return CheckOutcome(Status.WARN, f"is not below {desired}, which its host reports", evidence)
    return CheckOutcome(Status.FAIL, f"is below {switch}, and its host reports {desired}", evidence)


@lru_cache(maxsize=4096)
def _expanded(nodes: str) -> frozenset[str]:
    return frozenset(expand(nodes))


CHECKS = (
    _node_state,
    _topology,
    _job,
    _container_steps,
    _accounting,
    _rest,
    _slurm_advisories,
    _autoscaler,
)
