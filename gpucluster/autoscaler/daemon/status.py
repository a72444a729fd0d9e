"""The status of the autoscaler: what the daemon writes after each pass, and what administrators and monitors read."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpucluster.autoscaler.daemon.timeline import cost_per_hour, node_state
from gpucluster.autoscaler.decide.types import CloudInstance, Memory, Node, Observation
from gpucluster.autoscaler.decide.words import SCHEDULERS
from gpucluster.autoscaler.policy import Policy
from gpucluster.oci.states import LifecycleState
from gpucluster.text import count

FILE = "status.json"
VERSION = 1
# A daemon without a pass for so many ticks, and so many seconds more, has stopped.
_TICKS, _GRACE = 3, 60.0
_MINUTE, _HOUR = 60, 3600


def iso(at: float) -> str:
    """A time in UTC, with whole seconds (ISO 8601)."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def report(
    seen: Observation,
    memory: Memory,
    policy: Policy,
    *,
    now: float,
    problems: Sequence[str],
    last_success: float | None,
) -> dict[str, Any]:
    """The status, with the times of its facts. It holds no secret.

    Args:
        seen: the last observation; a part that it lacks is from the last one that had it.
        last_success: when a pass last succeeded; None if none did yet.
    """
    instances = [instance for instance in seen.instances or () if instance.state != LifecycleState.TERMINATED]
    nodes = list((seen.nodes or {}).values())
    return {
        "version": VERSION,
        "cluster": policy.cluster,
        "looked_at": now,
        "last_success": last_success,
        "problems": list(problems),
        "paused": memory.paused,
        "pools": {name: _pool(name, policy, memory, instances, nodes, now) for name in sorted(policy.pools)},
        "gangs": [
            {
                "jobs": gang.id,
                "attempts": gang.attempts,
                "next_try": iso(gang.not_before) if gang.not_before else None,
                "message": gang.message,
            }
            for _, gang in sorted(memory.gangs.items())
            if gang.message or gang.attempts
        ],
        "cost_per_hour": cost_per_hour(instances, policy),
        "budgets": _budgets(seen, policy),
    }


def _budgets(seen: Observation, policy: Policy) -> list[dict[str, Any]]:
    """What each account has spent of its budget; None where that is not known."""
    known = policy.budgets
    if known is None:
        return []
    spent = {name: None if seen.spent is None else round(seen.spent.get(name, 0.0), 2) for name in known.amounts}
    return [
        {
            "account": name,
            "budget": amount,
            "spent": spent[name],
            "currency": known.currency,
            "held": seen.spent is None or seen.spent.get(name, 0.0) >= amount,
        }
        for name, amount in sorted(known.amounts.items())
    ]


def _pool(
    name: str, policy: Policy, memory: Memory, instances: Sequence[CloudInstance], nodes: Sequence[Node], now: float
) -> dict[str, Any]:
    pool = policy.pools[name]
    cool_down = memory.cool_downs.get(name)
    active = cool_down is not None and (cool_down.until > now or cool_down.probing)
    return {
        "max_nodes": pool.max_nodes,
        "baked": pool.baked,
        "instances": dict(sorted(Counter(instance.state for instance in instances if instance.pool == name).items())),
        "nodes": dict(sorted(Counter(node_state(node) for node in nodes if node.pool == name).items())),
        "cool_down": {"until": iso(cool_down.until), "message": cool_down.message} if cool_down and active else None,
        "boot_failure": memory.boot_causes.get(name),
    }


def write(state: Path, content: Mapping[str, Any]) -> None:
    """Write the file atomically, readable for the group (0640)."""
    descriptor, part = tempfile.mkstemp(dir=state, prefix=f".{FILE}.")
    try:
        with os.fdopen(descriptor, "w") as stream:
            os.fchmod(stream.fileno(), 0o640)
            json.dump(content, stream)
        os.replace(part, state / FILE)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def evaluate(written: Mapping[str, Any] | None, policy: Policy, *, paused: str, now: float) -> dict[str, Any]:
    """What `gpucluster-autoscaler status` prints: the daemon's own report, and whether the daemon still runs.

    Args:
        written: what `write` wrote; None if there is no file.
        paused: from the ledger, which is newer than the file.
    """
    empty: dict[str, Any] = {"pools": {}, "gangs": [], "cost_per_hour": None, "problems": []}
    content = dict(written or empty)
    problems = list(content.get("problems") or ())
    looked_at = content.pop("looked_at", None)
    last_success = content.pop("last_success", None)
    limit = _TICKS * policy.times.tick + _GRACE
    if looked_at is None:
        problems.append("the daemon has run no reconcile pass yet")
    elif now - looked_at > limit:
        problems.append(f"the daemon's last reconcile pass was {duration(now - looked_at)} ago")
    age = None if last_success is None else max(0.0, now - last_success)
    if age is not None and age > limit and not problems:
        problems.append(f"no reconcile pass has succeeded for {duration(age)}")
    return {
        "version": VERSION,
        "cluster": policy.cluster,
        "scheduler": policy.scheduler,
        "healthy": not problems,
        "problems": problems,
        "paused": paused,
        "last_success_age": age if age is None else round(age, 1),
        "pools": content["pools"],
        "gangs": content["gangs"],
        "cost_per_hour": content["cost_per_hour"],
        "budgets": content.get("budgets") or [],
    }


def duration(seconds: float) -> str:
    """A duration for messages."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.1f} h"


def text(status: Mapping[str, Any]) -> str:
    """The status for a terminal."""
    state = "paused" if status["paused"] else "healthy" if status["healthy"] else "NOT HEALTHY"
    age = status["last_success_age"]
    last = "no reconcile pass has succeeded yet" if age is None else f"last successful pass {duration(age)} ago"
    lines = [f"Autoscaler of {status['cluster']}: {state}, {last}"]
    if status["paused"]:
        lines.append(f"  paused: {status['paused']}")
    lines += [f"  problem: {problem}" for problem in status["problems"]]
    for name, pool in status["pools"].items():
        nodes = sum(number for state, number in pool["instances"].items() if state != LifecycleState.TERMINATING)
        baked = "baked image" if pool["baked"] else "configured after boot"
        lines.append(f"Pool {name}: {nodes} of at most {pool['max_nodes']} nodes ({baked})")
        lines.append(f"  instances  {_counts(pool['instances'])}")
        lines.append(f"  {SCHEDULERS[status['scheduler']].name:<10} {_counts(pool['nodes'])}")
        if pool["cool_down"]:
            lines.append(f"  cools down until {pool['cool_down']['until']}: {pool['cool_down']['message']}")
        elif pool.get("boot_failure"):
            lines.append(f"  the last new node did not come into service: {pool['boot_failure']}")
    for gang in status["gangs"]:
        next_try = f", next try {gang['next_try']}" if gang["next_try"] else ""
        lines.append(f"Job {gang['jobs']}: rolled back {count(gang['attempts'], 'time')}{next_try}: {gang['message']}")
    if status["cost_per_hour"] is not None:
        lines.append(f"Cost: {status['cost_per_hour']:.2f} an hour")
    lines += [budget_text(each) for each in status.get("budgets", ())]
    return "\n".join(lines)


def budget_text(budget: Mapping[str, Any]) -> str:
    """The line of an account with a budget."""
    spent = "an unknown sum" if budget["spent"] is None else f"{budget['spent']:.2f}"
    held = ": no new nodes for its jobs" if budget["held"] else ""
    of = f"{spent} of {budget['budget']:.2f} {budget['currency']}"
    return f"Budget of account {budget['account']}: {of} spent this month{held}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state.lower()}" for state, number in counts.items()) or "none"
