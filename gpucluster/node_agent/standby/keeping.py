"""The host in service keeps the standby like itself between two applies, every ten minutes.

A rotation of secrets, an upgrade or an elastic node changes files of the controller without an apply. A standby that
does not answer is not a fault of this host: the next time asks again, `verify` names it, and where there is monitoring
an alert follows from the age of the last time that it did.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpucluster.node_agent import durable_file, programs
from gpucluster.node_agent.errors import AgentError
from gpucluster.node_agent.standby import mirror, scope, watching
from gpucluster.node_agent.state_volume import layout

SERVICE, TIMER = "gpucluster-standby.service", "gpucluster-standby.timer"
_UNITS = "/etc/systemd/system"
_TARGET = f"{scope.FOLDER}/target.json"
_PROGRAM = "/usr/local/bin/gpucluster-agent"
#: What the metrics say; docs/reference/metrics.md is made from it.
METRICS = {
    "gpucluster_standby_current_timestamp_seconds": "When the standby was made like the controller the last time.",
    "gpucluster_standby_failover_ready": "1: the standby could go on by itself; 0: it could not. No series where it "
    "is not meant to.",
    "gpucluster_standby_automatic_failover_timestamp_seconds": "When the standby went on by itself. No series after "
    "the next apply.",
}
_CURRENT, _READY, _FAILED_OVER = METRICS
#: The folder belongs to the exporters, and is not there without them.
METRICS_FILE = "/var/lib/gpucluster/metrics/standby.prom"
FAILOVER_FILE = "/var/lib/gpucluster/metrics/failover.prom"


def units(program: str = _PROGRAM, *, automatic: bool = False) -> dict[str, str]:
    """The texts of the units, by their names.

    Args:
        automatic: the standby goes on by itself.
    """
    service = f"""\
# Managed by gpucluster.
[Unit]
Description=Keep the standby like this host

[Service]
Type=oneshot
ExecStart={program} standby again
Nice=19
IOSchedulingClass=idle
TimeoutStartSec=1h
"""
    timer = """\
# Managed by gpucluster.
[Unit]
Description=Keep the standby like this host

[Timer]
OnBootSec=10min
OnUnitInactiveSec=10min

[Install]
WantedBy=timers.target
"""
    return {SERVICE: service, TIMER: timer, **(watching.units(program) if automatic else {})}


def keep(target: str, host_key: str, root: Path = Path("/"), *, automatic: bool = False) -> None:
    """Repeat what `mirror.send` does with these arguments from now on.

    Args:
        automatic: the standby goes on by itself. Both hosts have the units for it: they are mirrored.

    Raises:
        Failed: systemd refused.
    """
    folder = root / scope.FOLDER.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    document = json.dumps({"target": target, "host_key": host_key, "automatic": automatic})
    durable_file.replace(root / _TARGET.lstrip("/"), f"{document}\n", mode=0o600)
    if not automatic:
        _remove_watching(root)
    changed = False
    for name, text in units(automatic=automatic).items():
        file = root / _UNITS.lstrip("/") / name
        if not file.is_file() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            durable_file.replace(file, text, mode=0o644)
            changed = True
    if changed:
        programs.run("systemctl", "daemon-reload")
    programs.run("systemctl", "enable", "--quiet", "--now", TIMER)
    if automatic:
        # It runs on the standby, which gets the link as well.
        programs.run("systemctl", "enable", "--quiet", watching.SERVICE)
        programs.run("systemctl", "enable", "--quiet", "--now", watching.SHUTDOWN)
    # An apply has learnt which host is in service.
    for name in (FAILOVER_FILE, watching.RECORD):
        (root / name.lstrip("/")).unlink(missing_ok=True)


def _remove_watching(root: Path) -> None:
    """Remove the units of a standby that went on by itself. May be repeated.

    Raises:
        Failed: systemd refused.
    """
    names = [name for name in watching.units(_PROGRAM) if (root / _UNITS.lstrip("/") / name).is_file()]
    if not names:
        return
    programs.run("systemctl", "disable", "--quiet", *names)
    for name in names:
        (root / _UNITS.lstrip("/") / name).unlink(missing_ok=True)
    programs.run("systemctl", "daemon-reload")


def again(root: Path = Path("/")) -> dict[str, Any]:
    """What the timer runs. Does nothing on a host that is not in service, or that has no standby."""
    file = root / _TARGET.lstrip("/")
    if not file.is_file() or not os.path.ismount(root / layout.MOUNT.lstrip("/")):
        return {}
    words = json.loads(file.read_text())
    try:
        answer = mirror.send(words["target"], words["host_key"], only_compare=False, root=root)
    except AgentError as error:
        sys.stderr.write(f"{error.message}\n")
        return {}
    metrics = root / METRICS_FILE.lstrip("/")
    if metrics.parent.is_dir():
        text = _metric(_CURRENT, f"{time.time():.3f}")
        if words.get("automatic"):
            seen = _ask_standby(words["target"], words["host_key"], root)
            if not seen["ready"]:
                sys.stderr.write(f"the standby could not go on by itself: {seen['reason']}\n")
            text += _metric(_READY, str(int(seen["ready"] is True)))
        durable_file.replace(metrics, text, mode=0o644, durable=False)
    return answer


def announce(root: Path = Path("/")) -> None:
    """This host is shut down: tell the standby, so that a reboot does not count as a loss.

    Raises:
        AgentError: it can't be told.
    """
    file = root / _TARGET.lstrip("/")
    if not file.is_file() or watching.is_passive(root):
        return
    words = json.loads(file.read_text())
    with tempfile.TemporaryDirectory() as folder:
        ssh = mirror.connection(words["target"], words["host_key"], Path(folder), root)
        programs.run(*ssh, "pause", seconds=15.0)


def _ask_standby(target: str, host_key: str, root: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return watching.receive_status(mirror.connection(target, host_key, Path(folder), root))


def note_failover(at: float, root: Path = Path("/")) -> None:
    """This host has gone on by itself, as a metric of the new controller.

    Args:
        at: seconds of the epoch.
    """
    metrics = root / FAILOVER_FILE.lstrip("/")
    if metrics.parent.is_dir():
        durable_file.replace(metrics, _metric(_FAILED_OVER, f"{at:.3f}"), mode=0o644, durable=False)


def _metric(name: str, value: str) -> str:
    return f"# HELP {name} {METRICS[name]}\n# TYPE {name} gauge\n{name} {value}\n"


def end(root: Path = Path("/")) -> None:
    """This host has no standby any more. May be repeated.

    Raises:
        Failed: systemd refused.
    """
    if (root / _UNITS.lstrip("/") / TIMER).is_file():
        programs.run("systemctl", "disable", "--quiet", "--now", TIMER)
    _remove_watching(root)
    for name in (_TARGET, METRICS_FILE, *(f"{_UNITS}/{each}" for each in units())):
        (root / name.lstrip("/")).unlink(missing_ok=True)
    programs.run("systemctl", "daemon-reload")
