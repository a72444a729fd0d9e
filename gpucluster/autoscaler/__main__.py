"""The program on the controller: `gpucluster-autoscaler`.

`run` and `join` are services of systemd; everything else is for people and monitors, and needs the right to read the
daemon's folder (root, or the daemon's own user).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import pwd
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucluster.autoscaler.daemon import status
from gpucluster.autoscaler.decide.world import Action, Memory, Observation, Plan
from gpucluster.autoscaler.policy import CONFIG_FILE, POKE_SOCKET, SPOOL_DIRECTORY, STATE_DIRECTORY, Policy
from gpucluster.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_SUCCESS,
    EnvironmentFault,
    GpuClusterError,
    InputError,
)

if TYPE_CHECKING:
    from gpucluster.autoscaler.daemon.ledger import Event

PUBLIC_KEY = "ssh/id_ed25519.pub"
# systemd would wait 90 s; nothing that we do may not be broken off.
_PATIENCE = 5.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpucluster-autoscaler", description="Gives Slurm the nodes that its jobs need, and takes them away again."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, run: Callable[[argparse.Namespace], int], *, output: bool = True) -> Any:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument("--config", type=Path, default=CONFIG_FILE, metavar="FILE", help="the policy")
        command.add_argument("--state", type=Path, default=STATE_DIRECTORY, metavar="DIR", help="the daemon's folder")
        command.add_argument("--spool", type=Path, default=SPOOL_DIRECTORY, metavar="DIR", help="the hooks' folder")
        command.add_argument("--poke", type=Path, default=POKE_SOCKET, metavar="SOCKET", help="where hooks wake us")
        if output:
            command.add_argument("--output", choices=("text", "json"), default="text", help="(default: text)")
        return command

    daemon = add("run", "Look, decide and act, until told to stop.", _run, output=False)
    daemon.add_argument("--metrics", default="127.0.0.1:9811", metavar="HOST:PORT", help="for Prometheus")
    join = add("join", "Configure the new nodes that the daemon asks for (as root).", _join, output=False)
    join.add_argument("--inventory", type=Path, metavar="FILE", help="the operator's inventory")
    join.add_argument("--work", type=Path, metavar="DIR", help="a folder of root's own")
    command = add("status", "How the autoscaler is.", _status)
    command.add_argument("--check", action="store_true", help="exit with 1 if it is not healthy")
    command = add("plan", "What would be done now, and why. Nothing is changed.", _plan)
    command.add_argument("--dry-run", action="store_true", required=True, help="there is no other way to ask")
    command = add("explain", "Why a job or a node is where it is.", _explain)
    command.add_argument("subject", metavar="JOB|NODE")
    command = add("pause", "Do nothing more until `resume`: neither launch nor terminate.", _pause)
    command.add_argument("reason", nargs="*", default=[], metavar="REASON")
    add("resume", "Go on after a pause.", _resume)

    from gpucluster.autoscaler.simulation import command as simulate

    command = commands.add_parser("simulate", help="Run jobs of the past against a policy.")
    simulate.add_arguments(command)
    command.set_defaults(run=simulate.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (gpucluster.errors)."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except GpuClusterError as error:
        print(f"gpucluster-autoscaler: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


# --- services -----


def _run(arguments: argparse.Namespace) -> int:
    from gpucluster.autoscaler.daemon import logs
    from gpucluster.autoscaler.daemon.clock import SteadyClock
    from gpucluster.autoscaler.daemon.ledger import Ledger
    from gpucluster.autoscaler.daemon.loop import Autoscaler, Doorbell
    from gpucluster.autoscaler.daemon.metrics import Metrics
    from gpucluster.autoscaler.daemon.oci import Cloud
    from gpucluster.autoscaler.daemon.prolog_markers import UP_DIRECTORY
    from gpucluster.autoscaler.daemon.slurm import Slurm
    from gpucluster.autoscaler.daemon.spool import Spool

    policy = Policy.load(arguments.config)
    logs.to_stream()
    with Ledger(arguments.state) as ledger:
        clock, metrics = SteadyClock(), Metrics()

        def asked(operation: str, code: str) -> None:
            metrics.count("oci_requests_total", op=operation, code=code)

        autoscaler = Autoscaler(
            policy,
            slurm=Slurm(pool_of=policy.pool_of, clock=clock),
            cloud=Cloud(policy, public_key=_public_key(policy, arguments.state), on_request=asked),
            ledger=ledger,
            spool=Spool(arguments.spool),
            state=arguments.state,
            up=arguments.poke.parent / UP_DIRECTORY.name,
            bell=Doorbell(arguments.poke),
            metrics=metrics,
            clock=clock,
        )
        _export(metrics, arguments.metrics)
        _until_told(autoscaler.stop, autoscaler.run)
        autoscaler.close()
    _leave()
    return EXIT_SUCCESS


def _join(arguments: argparse.Namespace) -> int:
    from gpucluster.autoscaler.daemon import join, logs

    Policy.load(arguments.config)
    logs.to_stream()
    service = join.Service(
        arguments.config,
        arguments.state,
        inventory=arguments.inventory or join.INVENTORY,
        work=arguments.work or join.WORK_DIRECTORY,
    )
    _until_told(service.stop, service.run)
    _leave()
    return EXIT_SUCCESS


def _until_told(stop: Callable[..., None], run: Callable[[], None]) -> None:
    """Run until SIGTERM or SIGINT. Whatever doesn't end in time is broken off: it can be, at any point."""

    def told(*_: object) -> None:
        stop()
        deadline = threading.Timer(_PATIENCE, _leave)
        deadline.daemon = True
        deadline.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told)
    run()


def _leave() -> None:
    """End without waiting for threads: what they do is in the ledger."""
    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(EXIT_SUCCESS)


def _public_key(policy: Policy, state: Path) -> str:
    if all(pool.baked for pool in policy.pools.values()):
        return ""
    try:
        return (state / PUBLIC_KEY).read_text()
    except OSError as error:
        raise EnvironmentFault(
            f"there is no key for nodes that have no baked image: {error.strerror}",
            where=str(state / PUBLIC_KEY),
            hint="Run gpucluster apply: it makes one",
        ) from error


def _export(metrics: Any, address: str) -> None:
    from gpucluster.autoscaler.daemon.logs import Log
    from gpucluster.autoscaler.daemon.metrics import Exporter

    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise InputError(f"{address} is no HOST:PORT", where="--metrics")
    try:
        exporter = Exporter(metrics, host, int(port))
    except OSError as error:
        Log("metrics").error(f"no metrics: can't listen on {address}: {error.strerror}")
    else:
        Log("metrics").info("metrics", address=f"{host}:{exporter.port}")


# --- for people and monitors -----


def _unusable(state: Path, error: OSError) -> EnvironmentFault:
    hint = "Run it with sudo" if isinstance(error, PermissionError) else "Run gpucluster apply: it makes this folder"
    return EnvironmentFault(f"can't use the daemon's folder: {error.strerror}", where=str(state), hint=hint)


def _as_the_daemon(state: Path) -> None:
    """Root becomes the user of the daemon's folder, so that no file in there ever belongs to anybody else."""
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


def _say(arguments: argparse.Namespace, content: Mapping[str, Any], text: str) -> None:
    print(json.dumps(content, indent=2) if arguments.output == "json" else text)  # noqa: T201


def _status(arguments: argparse.Namespace) -> int:
    _as_the_daemon(arguments.state)
    policy = Policy.load(arguments.config)
    written: Mapping[str, Any] | None = None
    with contextlib.suppress(FileNotFoundError, ValueError):
        written = json.loads((arguments.state / status.FILE).read_text())
    content = status.judge(written, policy, paused=_remembered(arguments.state)[0].paused, now=time.time())
    _say(arguments, content, status.text(content))
    return EXIT_SUCCESS if content["healthy"] or not arguments.check else EXIT_FAILED


def _remembered(state: Path, subject: str = "") -> tuple[Memory, tuple[Event, ...]]:
    """What the ledger holds, and its events of a subject; nothing before the daemon's first start."""
    from gpucluster.autoscaler.daemon import ledger

    if not (state / ledger.FILE).exists():
        return Memory(id=""), ()
    with ledger.Ledger(state, exclusive=False) as opened:
        return opened.load(), opened.history(subject) if subject else ()


def _look(arguments: argparse.Namespace, policy: Policy) -> tuple[Observation, Memory]:
    """One look with the daemon's own hands, which changes nothing."""
    from gpucluster.autoscaler.daemon import join
    from gpucluster.autoscaler.daemon.oci import Cloud
    from gpucluster.autoscaler.daemon.slurm import Slurm
    from gpucluster.autoscaler.daemon.spool import Spool

    memory, _ = _remembered(arguments.state)
    slurm = Slurm(pool_of=policy.pool_of)
    nodes, jobs = slurm.nodes(), slurm.jobs()
    instances = Cloud(policy).instances({slot.instance_id for slot in memory.slots.values() if slot.instance_id})
    intents = tuple(intent for _, intent in Spool(arguments.spool).read())
    joining = join.Requests(arguments.state).waiting()
    return Observation(nodes, jobs, instances, intents=intents, joining=joining), memory


def _plan(arguments: argparse.Namespace) -> int:
    from gpucluster.autoscaler.decide.plan import decide

    _as_the_daemon(arguments.state)
    policy = Policy.load(arguments.config)
    observation, memory = _look(arguments, policy)
    plan = decide(observation, memory, policy, time.time())
    content = {
        "version": 1,
        "cluster": policy.cluster,
        "actions": [{"kind": _kind(action), **asdict(action)} for action in plan.actions],
        "notes": [asdict(note) for note in plan.notes],
    }
    _say(arguments, content, "\n".join(_plan_lines(plan)))
    return EXIT_SUCCESS


def _plan_lines(plan: Plan) -> Iterator[str]:
    count = len(plan.actions)
    yield f"{count} action{'s' if count != 1 else ''} now{':' if count else ''}"
    for action in plan.actions:
        yield f"  {_kind(action)} {_object(action)}: {getattr(action, 'why', '')}"
    if plan.notes:
        yield "Why, and why not:"
    for note in plan.notes:
        yield f"  {note.subject}: {note.text}"


def _kind(action: Action) -> str:
    """The name of an action's class, in words."""
    return "".join(f" {sign.lower()}" if sign.isupper() else sign for sign in type(action).__name__).strip()


def _object(action: Action) -> str:
    known = {entry.name: getattr(action, entry.name) for entry in fields(action)}
    if "nodes" in known:
        return ", ".join(known["nodes"])
    if "job" in known:
        until = f" until {status.iso(known['until'])}" if "until" in known else ""
        return f"job {known['job']}{until}"
    instance = f" ({known['instance_id']})" if known.get("instance_id") else ""
    return f"{known['node']}{instance}"


def _explain(arguments: argparse.Namespace) -> int:
    from gpucluster.autoscaler.decide.explain import explain_job, explain_node

    _as_the_daemon(arguments.state)
    policy = Policy.load(arguments.config)
    observation, memory = _look(arguments, policy)
    subject = str(arguments.subject)
    explain = explain_job if subject[:1].isdecimal() else explain_node
    lines = explain(subject, observation, memory, policy, time.time())
    _, history = _remembered(arguments.state, subject)
    content = {
        "version": 1,
        "subject": subject,
        "now": list(lines),
        "history": [{"at": status.iso(one.at), "what": one.what, "why": one.why} for one in history],
    }
    text = [*lines, *(["Before:"] if history else [])]
    text += [f"  {status.iso(one.at)}  {one.what}{f': {one.why}' if one.why else ''}" for one in history]
    _say(arguments, content, "\n".join(text))
    return EXIT_SUCCESS


def _pause(arguments: argparse.Namespace) -> int:
    reason = " ".join(arguments.reason) or "by hand"
    return _set_pause(
        arguments, reason, f"Paused ({reason}). Nodes that run stay; go on with: gpucluster-autoscaler resume"
    )


def _resume(arguments: argparse.Namespace) -> int:
    return _set_pause(arguments, "", "The autoscaler goes on.")


def _set_pause(arguments: argparse.Namespace, reason: str, text: str) -> int:
    from gpucluster.autoscaler.daemon.hooks import send
    from gpucluster.autoscaler.daemon.ledger import Ledger

    _as_the_daemon(arguments.state)
    with Ledger(arguments.state, exclusive=False) as ledger:
        ledger.pause(reason)
    send(str(arguments.poke), b"pause")
    _say(arguments, {"version": 1, "paused": reason}, text)
    return EXIT_SUCCESS


if __name__ == "__main__":
    sys.exit(main())
