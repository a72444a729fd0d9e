"""`gpucluster-agent health`: the health service on the controller, and what nodes run."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpucluster.controller import job_records
from gpucluster.controller.health import metrics, service
from gpucluster.controller.health.control import Control
from gpucluster.controller.health.kubernetes import Follower, KubernetesNodes
from gpucluster.controller.health.settings import FILE, HealthSettings
from gpucluster.controller.health.slurm import NodeScheduler, NoSlurm, SlurmCommands
from gpucluster.controller.health.store import FOLDER, ReportStore, now
from gpucluster.controller.kubernetes import health_access
from gpucluster.controller.maintenance import control as maintenance
from gpucluster.controller.maintenance.events import FOLDER as EXCHANGE
from gpucluster.controller.maintenance.slurm import SlurmMaintenance
from gpucluster.controller.reactions.control import Reactions
from gpucluster.controller.reactions.jobs import SlurmJobs
from gpucluster.node_agent.checks import registry
from gpucluster.node_agent.checks.model import Finding
from gpucluster.node_agent.errors import AgentError, Failed, Refused
from gpucluster.node_agent.health import __main__ as node_commands
from gpucluster.node_agent.health.__main__ import Add
from gpucluster.node_agent.health.client import PORT
from gpucluster.node_agent.kubernetes.kubectl import Kubectl
from gpucluster.node_agent.notify import notify


def _parts(options: argparse.Namespace) -> tuple[HealthSettings, ReportStore, NodeScheduler, Control]:
    settings = HealthSettings.load(options.settings)
    store = ReportStore(options.folder, interval=settings.interval)
    cluster = _scheduler(settings, options)
    control = Control(store, cluster, settings.policy, drains=registry.drains(), fixable=registry.reboots(), moment=now)
    return settings, store, cluster, control


def _scheduler(settings: HealthSettings, options: argparse.Namespace) -> NodeScheduler:
    if settings.kubernetes:
        return KubernetesNodes(Kubectl(options.kubeconfig), settings.pool_of)
    return SlurmCommands(settings.pool_of) if settings.slurm else NoSlurm()


def _serve(options: argparse.Namespace) -> int:
    os.umask(0o027)
    settings, store, slurm, control = _parts(options)
    if isinstance(slurm, KubernetesNodes):
        follower = Follower(settings, store, slurm, control, drains=registry.drains(), moment=now)
        notify("READY=1")
        service.repeat(follower.tick)
    # Nodes keep their records until there is a place for them.
    records = job_records.JobRecordFolder(options.records) if options.records.is_dir() else None
    watched = settings.reactions if settings.slurm else None
    receiver = service.HealthDaemon(
        settings, store, slurm, control, drains=registry.drains(), moment=now, records=records,
        reactions=Reactions(options.folder, SlurmJobs(), watched) if watched is not None else None,
        maintenance=_maintenance(settings, slurm, options),
    )  # fmt: skip
    service.serve(receiver, service.Listener(receiver, options.address, options.port))
    return 0


def _maintenance(
    settings: HealthSettings, slurm: NodeScheduler, options: argparse.Namespace
) -> maintenance.Maintenance | None:
    if settings.maintenance is None:
        return None
    return maintenance.Maintenance(
        options.folder, SlurmMaintenance(), slurm.nodes, settings.maintenance, exchange=options.exchange
    )


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
    content = {
        **metrics.status(store, settings, registry.drains(), now(), nodes),
        "maintenance": maintenance.status(options.folder) if settings.maintenance is not None else None,
        "problems": problems,
    }
    if options.output == "json":
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        sys.stdout.write(_text(content))
    return 0


def _text(content: dict[str, Any]) -> str:
    lines = ["node                 status    last report  checks that fail or warn"]
    for row in content["nodes"]:
        age = "never" if row["age_s"] is None else f"{row['age_s']:.0f} s ago{' (stale)' if row['stale'] else ''}"
        checks = "; ".join(f"{each['check']}: {each['message']}" for each in row["failing"] + row["warnings"]) or "-"
        lines.append(f"{row['node']:<20} {row['status']:<9} {age:<12} {checks}")
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
    lines += maintenance.text_lines(content["maintenance"]) if content["maintenance"] else []
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


def add_commands(add: Add) -> None:
    """Add the subcommands of the controller, and those of nodes: the controller may be one."""
    serve = add("serve", "receive reports and drain nodes, until stopped (the controller's service)", _serve)
    serve.add_argument("--address", default="0.0.0.0", help="where to listen")  # noqa: S104 - all of its networks
    serve.add_argument("--exchange", type=Path, default=EXCHANGE, help=argparse.SUPPRESS)
    serve.add_argument("--records", type=Path, default=job_records.FOLDER, help=argparse.SUPPRESS)
    serve.add_argument("--port", type=int, default=PORT, help=f"of the service (default: {PORT})")
    status = add("status", "show what is known of each node, and the last decisions", _status)
    status.add_argument("--output", choices=("text", "json"), default="text", help="(default: text)")
    react = add("react", "decide on findings: JSON on standard input, JSON on standard output", _react)
    for command in (serve, status, react):
        command.add_argument("--settings", type=Path, default=FILE, help=argparse.SUPPRESS)
        command.add_argument("--folder", type=Path, default=FOLDER, help=argparse.SUPPRESS)
        command.add_argument("--kubeconfig", default=str(health_access.FILE), help=argparse.SUPPRESS)
    node_commands.add_commands(add)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; returns the exit status."""
    return node_commands.main(argv, __doc__, add_commands)
