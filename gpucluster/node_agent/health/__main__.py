"""`gpucluster-agent health` on nodes: run the checks of a profile, and report them to the controller."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import syslog
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

from gpucluster.node_agent.checks import __main__ as checks
from gpucluster.node_agent.checks import registry
from gpucluster.node_agent.checks.model import HostReport, Profile, accusations
from gpucluster.node_agent.errors import AgentError
from gpucluster.node_agent.health import client
from gpucluster.node_agent.health.client import PORT, HealthAnswer
from gpucluster.node_agent.health.node_object import publish
from gpucluster.node_agent.kubernetes.kubectl import KUBELET, Kubectl
from gpucluster.node_agent.kubernetes.node_name import registered_name
from gpucluster.node_agent.rules import reasons

#: Adds a subcommand: its name, its line of help, and what runs it and returns the exit status.
Add = Callable[[str, str, Callable[[argparse.Namespace], int]], argparse.ArgumentParser]

#: The exit status of `run` when the node is drained for its checks. A prolog then fails, so that the job is requeued.
#: No error of Python or of a shell ends with it.
DRAINED = 75
#: The checks of a boot passed since the last boot, or could not be made.
_GATE_OPEN = Path("/run/gpucluster/boot-checked")
#: Beside it, on a node of Kubernetes: their report, until the node has an object for it.
_BOOT_REPORT = "boot-report.json"
_SPARE = 3.0
#: Slurm starts its programs without one.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _checks(profile: Profile) -> HostReport:
    """As `gpucluster-agent check` makes it.

    Raises:
        ValueError: it makes none; its words.
    """
    output, problems = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(problems):
        checks.main(["--profile", profile.value, "--output", "json"])
    if not output.getvalue():
        raise ValueError(problems.getvalue().strip() or "no output")
    return HostReport.from_dict(json.loads(output.getvalue()))


def _limit(options: argparse.Namespace, profile: Profile) -> float:
    """Seconds for the checks: they end by themselves, unless something hangs that they did not expect."""
    return float(options.limit or registry.TOTAL_S[profile] + _SPARE)


def _run(options: argparse.Namespace) -> int:
    profile = Profile(options.profile)
    report = client.measure(profile, _limit(options, profile), _checks)
    answer = _sent(report, options)
    return DRAINED if answer is not None and answer.drained else 0


def _sent(report: HostReport, options: argparse.Namespace) -> HealthAnswer | None:
    """The answer to a report; None if there is none, which the log reports."""
    try:
        answer = client.send(report, options.controller, options.port)
    except AgentError as error:
        _log(syslog.LOG_WARNING, f"{report.profile.value}: {report.status.value}, not reported: {error.message}")
        return None
    if answer.reason:
        _log(syslog.LOG_WARNING, f"{report.profile.value}: {answer.reason}")
    return answer


def _gate(options: argparse.Namespace) -> int:
    """Once in each boot: whether this host may become a node."""
    if options.marker.exists():
        return 0
    try:
        held = _held(options)
    except Exception as error:  # an unexpected error does not prove that the host is bad
        _log(syslog.LOG_ERR, f"this host becomes a node, and its checks were not made: {error!r}")
        held = False
    if not held:
        options.marker.parent.mkdir(parents=True, exist_ok=True)
        options.marker.touch()
    return int(held)


def _held(options: argparse.Namespace) -> bool:
    """Make the checks of the boot. Whether this host must not become a node."""
    report = client.measure(Profile.BOOT, _limit(options, Profile.BOOT), _checks)
    answer = None
    if options.controller:
        answer = _sent(report, options)
    else:
        options.marker.parent.mkdir(parents=True, exist_ok=True)
        options.marker.with_name(_BOOT_REPORT).write_text(json.dumps(report.to_dict(), default=str))
    if options.hold:
        # The results of the checks are judged here if the controller can't be asked.
        failed = [(each.check, each.message) for each in accusations(report, registry.drains())]
        # A node that its reboot has fixed is drained until its slurmd has registered, and the controller undrains it.
        if failed and (answer is None or answer.drained):
            words = reasons.of_checks(failed, again=False)
            _log(syslog.LOG_ERR, f"this host does not become a node: {words}")
            # With Kubernetes the autoscaler reads it: it looks for these words.
            sys.stderr.write(f"{words}\n")
            return True
    if report.status.value == "unknown":
        unknown = [f"{each.check}: {each.message}" for each in report.findings if each.status.value == "unknown"]
        _log(syslog.LOG_WARNING, f"this host becomes a node, and not all is known: {'; '.join(unknown)}")
    return False


def _publish(options: argparse.Namespace) -> int:
    """A node of Kubernetes: the checks of the boot once in each boot, later the periodic ones.

    An elastic node has made those of its boot before it joined (`gate`).
    """
    booted = options.marker.exists()
    profile = Profile.PERIODIC if booted else Profile.BOOT
    report = client.measure(profile, _limit(options, profile), _checks)
    kubectl, name = Kubectl(options.kubeconfig), registered_name()
    of_boot = options.marker.with_name(_BOOT_REPORT)
    if of_boot.exists():
        with contextlib.suppress(TypeError, ValueError):
            publish(
                kubectl, HostReport.from_dict(json.loads(of_boot.read_text())), registry.drains(), time.time(), name
            )
        of_boot.unlink()
    publish(kubectl, report, registry.drains(), time.time(), name)
    if not booted:
        options.marker.parent.mkdir(parents=True, exist_ok=True)
        options.marker.touch()
    return 0


def _log(level: int, words: str) -> None:
    syslog.openlog("gpucluster-health", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(level, "".join(sign if sign.isprintable() else " " for sign in words)[:2000])


def add_commands(add: Add) -> None:
    """Add the subcommands of nodes."""
    run = add("run", f"run a profile of checks and report it; {DRAINED}: this node is drained for its checks", _run)
    run.add_argument("--profile", choices=[each.value for each in Profile], required=True, help="which checks")
    gate = add("gate", "before this host becomes a node, once in each boot: run the checks of the boot", _gate)
    gate.add_argument("--hold", action="store_true", help="fail if the checks fail")
    gate.add_argument("--marker", type=Path, default=_GATE_OPEN, help=argparse.SUPPRESS)
    run.add_argument("--controller", required=True, metavar="ADDRESS", help="the controller")
    gate.add_argument("--controller", metavar="ADDRESS", help="the controller; without it the node keeps the report")
    for command in (run, gate):
        command.add_argument("--limit", type=float, metavar="SECONDS", help="for the checks")
    for command in (run, gate):
        command.add_argument("--port", type=int, default=PORT, help=f"of the service (default: {PORT})")
    written = add("publish", "run the checks of a node of Kubernetes, and write the report to its object", _publish)
    written.add_argument("--kubeconfig", default=KUBELET, help=argparse.SUPPRESS)
    written.add_argument("--marker", type=Path, default=_GATE_OPEN, help=argparse.SUPPRESS)
    written.add_argument("--limit", type=float, metavar="SECONDS", help="for the checks")


def main(
    argv: Sequence[str] | None = None,
    description: str | None = __doc__,
    commands_of: Callable[[Add], None] = add_commands,
) -> int:
    """Run one of the commands; returns the exit status.

    Args:
        argv: the arguments; those of this process by default.
        description: of these commands; its first line is shown.
        commands_of: adds the subcommands.
    """
    parser = argparse.ArgumentParser(prog="gpucluster-agent health", description=(description or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    commands_of(add)
    options = parser.parse_args(argv)
    os.environ["PATH"] = os.environ.get("PATH") or _PATH
    try:
        status: int = options.run(options)
    except AgentError as error:
        sys.stderr.write(f"gpucluster-agent health: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"{error.hint}\n")
        return error.status
    return status
