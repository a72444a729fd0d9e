"""`gpucluster-agent health`: the health service on the controller, and what nodes run."""

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
from typing import Any, Callable

from gpucluster.agent.checks import __main__ as checks
from gpucluster.agent.checks import registry
from gpucluster.agent.checks.model import Finding, Profile, Reaction, Report
from gpucluster.agent.errors import AgentError, Failed, Refused
from gpucluster.agent.health import client, metrics, service
from gpucluster.agent.health.control import Control
from gpucluster.agent.health.kubernetes import Follower, KubernetesNodes, publish
from gpucluster.agent.health.settings import FILE, PORT, Settings
from gpucluster.agent.health.slurm import NoSlurm, Slurm, SlurmCommands
from gpucluster.agent.health.store import FOLDER, Store, accusations, now
from gpucluster.agent.kubernetes import health_access, nodes
from gpucluster.agent.kubernetes.kubectl import Kubectl
from gpucluster.agent.kubernetes.routes import KUBELET
from gpucluster.agent.notify import notify
from gpucluster.agent.reactions.control import Reactions
from gpucluster.agent.reactions.jobs import SlurmJobs
from gpucluster.agent.record import kept
from gpucluster.agent.rules import reasons

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


def _checks(profile: Profile) -> Report:
    """As `gpucluster-agent check` makes it.

    Raises:
        ValueError: it makes none; its words.
    """
    said, wrong = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
        checks.main(["--profile", profile.value, "--output", "json"])
    if not said.getvalue():
        raise ValueError(wrong.getvalue().strip() or "no output")
    return Report.from_dict(json.loads(said.getvalue()))


def _drains() -> frozenset[str]:
    """The checks whose failure drains the node."""
    return frozenset(check.name for check in registry.CHECKS if check.reaction is Reaction.DRAIN)


def _limit(options: argparse.Namespace, profile: Profile) -> float:
    """Seconds for the checks: they end by themselves, unless something hangs that they did not expect."""
    return float(options.limit or registry.TOTAL_S[profile] + _SPARE)


def _parts(options: argparse.Namespace) -> tuple[Settings, Store, Slurm, Control]:
    settings = Settings.load(options.settings)
    store = Store(options.folder, interval=settings.interval)
    cluster = _scheduler(settings, options)
    return settings, store, cluster, Control(store, cluster, settings.policy, drains=_drains(), moment=now)


def _scheduler(settings: Settings, options: argparse.Namespace) -> Slurm:
    if settings.kubernetes:
        return KubernetesNodes(Kubectl(options.kubeconfig), settings.pool_of)
    return SlurmCommands(settings.pool_of) if settings.slurm else NoSlurm()


def _serve(options: argparse.Namespace) -> int:
    os.umask(0o027)
    settings, store, slurm, control = _parts(options)
    if isinstance(slurm, KubernetesNodes):
        follower = Follower(settings, store, slurm, control, drains=_drains(), moment=now)
        notify("READY=1")
        service.repeat(follower.tick)
    # Nodes keep their records until there is a place for them.
    records = kept.Kept(options.records) if options.records.is_dir() else None
    watched = settings.reactions if settings.slurm else None
    receiver = service.Service(
        settings, store, slurm, control, drains=_drains(), moment=now, records=records,
        reactions=Reactions(options.folder, SlurmJobs(), watched) if watched is not None else None,
    )  # fmt: skip
    service.serve(receiver, service.Listener(receiver, options.address, options.port))
    return 0


def _become_owner(folder: Path) -> None:
    """Root works as the service's own user, so that it leaves no file there that the service can't write.

    Raises:
        Failed: there is no service here.
    """
    try:
        owner = folder.stat()
    except OSError:
        raise Failed(f"there is no {folder}: no health service runs here", "Run: gpucluster apply") from None
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.setgroups([])
        os.setgid(owner.st_gid)
        os.setuid(owner.st_uid)
    os.umask(0o027)


def _status(options: argparse.Namespace) -> int:
    _become_owner(options.folder)
    settings, store, slurm, _control = _parts(options)
    problems, nodes = [], {}
    try:
        nodes = slurm.nodes()
    except AgentError as error:
        problems.append(error.message)
    content = {**metrics.status(store, settings, _drains(), now(), nodes), "problems": problems}
    if options.output == "json":
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        sys.stdout.write(_text(content))
    return 0


def _text(content: dict[str, Any]) -> str:
    lines = ["node                 status    last report  failing checks"]
    for row in content["nodes"]:
        age = "never" if row["age_s"] is None else f"{row['age_s']:.0f} s ago{' (stale)' if row['stale'] else ''}"
        failing = "; ".join(f"{each['check']}: {each['message']}" for each in row["failing"]) or "-"
        lines.append(f"{row['node']:<20} {row['status']:<9} {age:<12} {failing}")
        if row["drained"]:
            lines.append(f"{'':<20} drained: {row['drained']}")
    lines += [
        f"breaker of pool {each['pool']}: {each['drained']} of {each['limit']} drains within an hour"
        for each in content["breakers"]
        if each["open"]
    ]
    lines += [
        f"check {each['check']} fails on {each['nodes']} nodes of pool {each['pool']} and passes on none: the check "
        "itself is the suspect, and drains nothing"
        for each in content["suspects"]
    ]
    lines += ["shadow mode: nothing is drained"] if content["shadow"] else []
    return "\n".join([*lines, *content["problems"]]) + "\n"


def _react(options: argparse.Namespace) -> int:
    try:
        raw = json.loads(sys.stdin.read())
        findings = [Finding.from_dict(each) for each in raw["findings"]]
        shadow = raw.get("shadow", False)
        if not isinstance(shadow, bool):
            raise ValueError("shadow is neither true nor false")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"the request can't be read: {error!r}"
        raise Refused(message, 'Give {"findings": [...], "shadow": false}') from None
    _become_owner(options.folder)
    outlook = _parts(options)[3].react(findings, shadow=shadow)
    sys.stdout.write(json.dumps({"decisions": [each.to_dict() for each in outlook.carried]}, indent=2) + "\n")
    return 0


def _run(options: argparse.Namespace) -> int:
    profile = Profile(options.profile)
    report = client.measure(profile, _limit(options, profile), _checks)
    answer = _sent(report, options)
    return DRAINED if answer is not None and answer.drained else 0


def _sent(report: Report, options: argparse.Namespace) -> service.Answer | None:
    """The answer to a report; None if there is none, which the log says."""
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
    except Exception as error:  # what nobody foresaw is not known to be bad
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
        # What a check says is judged here if the controller can't be asked.
        failed = [(each.check, each.message) for each in accusations(report, _drains())]
        if answer.drained if answer is not None else bool(failed):
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
    kubectl, name = Kubectl(options.kubeconfig), nodes.registered_name()
    of_boot = options.marker.with_name(_BOOT_REPORT)
    if of_boot.exists():
        with contextlib.suppress(TypeError, ValueError):
            publish(kubectl, Report.from_dict(json.loads(of_boot.read_text())), _drains(), time.time(), name)
        of_boot.unlink()
    publish(kubectl, report, _drains(), time.time(), name)
    if not booted:
        options.marker.parent.mkdir(parents=True, exist_ok=True)
        options.marker.touch()
    return 0


def _log(level: int, words: str) -> None:
    syslog.openlog("gpucluster-health", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(level, "".join(sign if sign.isprintable() else " " for sign in words)[:2000])


def _parser() -> argparse.ArgumentParser:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="gpucluster-agent health", description=summary)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    serve = add("serve", "receive reports and drain nodes, until stopped (the controller's service)", _serve)
    serve.add_argument("--address", default="0.0.0.0", help="where to listen")  # noqa: S104 - all of its networks
    serve.add_argument("--records", type=Path, default=kept.FOLDER, help=argparse.SUPPRESS)
    status = add("status", "show what is known of each node, and the last decisions", _status)
    status.add_argument("--output", choices=("text", "json"), default="text", help="(default: text)")
    react = add("react", "decide on findings: JSON on standard input, JSON on standard output", _react)
    for command in (serve, status, react):
        command.add_argument("--settings", type=Path, default=FILE, help=argparse.SUPPRESS)
        command.add_argument("--folder", type=Path, default=FOLDER, help=argparse.SUPPRESS)
        command.add_argument("--kubeconfig", default=str(health_access.FILE), help=argparse.SUPPRESS)
    run = add("run", f"run a profile of checks and report it; {DRAINED}: this node is drained for its checks", _run)
    run.add_argument("--profile", choices=[each.value for each in Profile], required=True, help="which checks")
    gate = add("gate", "before this host becomes a node, once in each boot: run the checks of the boot", _gate)
    gate.add_argument("--hold", action="store_true", help="fail if the checks fail")
    gate.add_argument("--marker", type=Path, default=_GATE_OPEN, help=argparse.SUPPRESS)
    run.add_argument("--controller", required=True, metavar="ADDRESS", help="the controller")
    gate.add_argument("--controller", metavar="ADDRESS", help="the controller; without it the node keeps the report")
    for command in (run, gate):
        command.add_argument("--limit", type=float, metavar="SECONDS", help="for the checks")
    for command in (serve, run, gate):
        command.add_argument("--port", type=int, default=PORT, help=f"of the service (default: {PORT})")
    written = add("publish", "run the checks of a node of Kubernetes, and write the report to its object", _publish)
    written.add_argument("--kubeconfig", default=KUBELET, help=argparse.SUPPRESS)
    written.add_argument("--marker", type=Path, default=_GATE_OPEN, help=argparse.SUPPRESS)
    written.add_argument("--limit", type=float, metavar="SECONDS", help="for the checks")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; returns the exit status."""
    options = _parser().parse_args(argv)
    os.environ["PATH"] = os.environ.get("PATH") or _PATH
    try:
        status: int = options.run(options)
    except AgentError as error:
        sys.stderr.write(f"gpucluster-agent health: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"{error.hint}\n")
        return error.status
    return status
