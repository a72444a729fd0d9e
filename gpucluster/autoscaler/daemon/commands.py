"""The commands for administrators and monitors: status, plan, explain, pause, resume. They change only the pause."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucluster.autoscaler.daemon import status
from gpucluster.autoscaler.decide.types import Action, Memory, Observation, SaveConsole, ScalingPlan
from gpucluster.autoscaler.decide.words import VERBS
from gpucluster.autoscaler.policy import Policy
from gpucluster.errors import EXIT_FAILED, EXIT_SUCCESS, EnvironmentFault
from gpucluster.text import count

if TYPE_CHECKING:
    from gpucluster.autoscaler.daemon.ledger import LedgerEvent

# The member `kind` of an action in the output of `plan`.
_KINDS: Mapping[type, str] = {**VERBS, SaveConsole: "save console"}


def show_status(arguments: argparse.Namespace) -> int:
    """Show whether the autoscaler is healthy; with --check, the exit code is 1 if it is not."""
    _become_daemon_user(arguments.state)
    policy = Policy.load(arguments.config)
    written: Mapping[str, Any] | None = None
    with contextlib.suppress(FileNotFoundError, ValueError):
        written = json.loads((arguments.state / status.FILE).read_text())
    content = status.evaluate(written, policy, paused=_remembered(arguments.state)[0].paused, now=time.time())
    _print(arguments, content, status.text(content))
    return EXIT_SUCCESS if content["healthy"] or not arguments.check else EXIT_FAILED


def plan(arguments: argparse.Namespace) -> int:
    """What would be done now, and why."""
    from gpucluster.autoscaler.decide.plan import decide

    _become_daemon_user(arguments.state)
    policy = Policy.load(arguments.config)
    observation, memory = _observe(arguments, policy)
    decided = decide(observation, memory, policy, time.time())
    content = {
        "version": 1,
        "cluster": policy.cluster,
        "actions": [{"kind": _kind(action), **asdict(action)} for action in decided.actions],
        "notes": [asdict(note) for note in decided.notes],
    }
    _print(arguments, content, "\n".join(_plan_lines(decided)))
    return EXIT_SUCCESS


def explain(arguments: argparse.Namespace) -> int:
    """Why a job or a node is in its state, and what happened to it before.

    A job of Slurm is a number; pods of Kubernetes that start together are NAMESPACE/NAME.
    """
    from gpucluster.autoscaler.decide import explain as explaining

    _become_daemon_user(arguments.state)
    policy = Policy.load(arguments.config)
    observation, memory = _observe(arguments, policy)
    subject = str(arguments.subject)
    lines = explaining.explain(subject, observation, memory, policy, time.time())
    # What happened is written under the name of the gang.
    known = explaining.jobs_called(subject, observation) if policy.scheduler == "kubernetes" else ()
    _, history = _remembered(arguments.state, known[0] if len(known) == 1 else subject)
    content = {
        "version": 1,
        "subject": subject,
        "now": list(lines),
        "history": [{"at": status.iso(event.at), "what": event.what, "why": event.why} for event in history],
    }
    text = [*lines, *(["Before:"] if history else [])]
    text += [f"  {status.iso(event.at)}  {event.what}{f': {event.why}' if event.why else ''}" for event in history]
    _print(arguments, content, "\n".join(text))
    return EXIT_SUCCESS


def pause(arguments: argparse.Namespace) -> int:
    """Pause the autoscaler: it launches and terminates nothing until `resume`."""
    reason = " ".join(arguments.reason) or "by hand"
    text = f"Paused ({reason}). Existing nodes stay; to continue, run: gpucluster-autoscaler resume"
    return _set_pause(arguments, reason, text)


def resume(arguments: argparse.Namespace) -> int:
    """Continue after a pause, and end the cool-downs of pools: the next jobs get nodes again."""
    return _set_pause(arguments, "", "The autoscaler continues. No pool cools down any more.")


def _set_pause(arguments: argparse.Namespace, reason: str, text: str) -> int:
    from gpucluster.autoscaler.daemon.hooks import send
    from gpucluster.autoscaler.daemon.ledger import Ledger

    _become_daemon_user(arguments.state)
    with Ledger(arguments.state, exclusive=False) as ledger:
        ledger.pause(reason)
    send(str(arguments.poke), b"pause")
    _print(arguments, {"version": 1, "paused": reason}, text)
    return EXIT_SUCCESS


# --- reading -----


def _unusable(state: Path, error: OSError) -> EnvironmentFault:
    hint = "Run it with sudo" if isinstance(error, PermissionError) else "Run gpucluster apply: it makes this folder"
    return EnvironmentFault(f"can't use the daemon's folder: {error.strerror}", where=str(state), hint=hint)


def _become_daemon_user(state: Path) -> None:
    """Root becomes the owner of the daemon's folder, so that no file in it ever belongs to another user."""
    try:
        owner = state.stat()
    except OSError as error:
        raise _unusable(state, error) from error
    if os.geteuid() == 0 and owner.st_uid != 0:
        user = pwd.getpwuid(owner.st_uid)
        os.initgroups(user.pw_name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    if not os.access(state, os.R_OK | os.X_OK):
        raise _unusable(state, PermissionError(13, "permission denied"))


def _remembered(state: Path, subject: str = "") -> tuple[Memory, tuple[LedgerEvent, ...]]:
    """The ledger's memory, and its events of a subject; empty before the daemon's first start."""
    from gpucluster.autoscaler.daemon import ledger

    if not (state / ledger.FILE).exists():
        return Memory(id=""), ()
    with ledger.Ledger(state, exclusive=False) as opened:
        return opened.load(), opened.history(subject) if subject else ()


def _observe(arguments: argparse.Namespace, policy: Policy) -> tuple[Observation, Memory]:
    """One observation with the daemon's own clients, which changes nothing."""
    from gpucluster.autoscaler.daemon import join_requests
    from gpucluster.autoscaler.daemon.budgets import BudgetReader
    from gpucluster.autoscaler.daemon.instance_record import FILE as RECORD
    from gpucluster.autoscaler.daemon.oci import OciCloud
    from gpucluster.autoscaler.daemon.schedulers import client
    from gpucluster.autoscaler.daemon.spool import Spool

    memory, _ = _remembered(arguments.state)
    scheduler = client(policy, state=arguments.state, may_write=lambda: False, clock=time.time)
    nodes, jobs = scheduler.nodes(), scheduler.jobs()
    instances = OciCloud(policy).instances({claim.instance_id for claim in memory.claims.values() if claim.instance_id})
    intents = tuple(intent for _, intent in Spool(arguments.spool).read())
    joining = join_requests.Requests(arguments.state).waiting()
    spent = BudgetReader(policy.budgets, arguments.state / RECORD).read(time.time()) if policy.budgets else None
    seen = Observation(
        nodes, jobs, instances, intents=intents, joining=joining, spent=spent.accounts if spent else None
    )
    return seen, memory


# --- printing -----


def _print(arguments: argparse.Namespace, content: Mapping[str, Any], text: str) -> None:
    print(json.dumps(content, indent=2) if arguments.output == "json" else text)  # noqa: T201


def _plan_lines(decided: ScalingPlan) -> Iterator[str]:
    number = len(decided.actions)
    yield f"{count(number, 'action')} now{':' if number else ''}"
    for action in decided.actions:
        yield f"  {_kind(action)} {_object(action)}: {getattr(action, 'why', '')}"
    if decided.notes:
        yield "Why, and why not:"
    for note in decided.notes:
        yield f"  {note.subject}: {note.text}"


def _kind(action: Action) -> str:
    return _KINDS[type(action)]


def _object(action: Action) -> str:
    known = {entry.name: getattr(action, entry.name) for entry in fields(action)}
    if "nodes" in known:
        return ", ".join(known["nodes"])
    if "job" in known:
        until = f" until {status.iso(known['until'])}" if "until" in known else ""
        return f"job {known['job']}{until}"
    instance = f" ({known['instance_id']})" if known.get("instance_id") else ""
    return f"{known['node']}{instance}"
