"""The host in service keeps the standby like itself between two applies, every ten minutes.

A rotation of secrets, an upgrade or an elastic node changes files of the controller without an apply. A standby that
does not answer is not a fault of this host: the next time asks again, `verify` names it, and where there is monitoring
an alert follows from the age of the last time that it did.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from gpucluster.node_agent import durable_file, programs
from gpucluster.node_agent.errors import AgentError
from gpucluster.node_agent.standby import mirror, scope
from gpucluster.node_agent.state_volume import layout

SERVICE, TIMER = "gpucluster-standby.service", "gpucluster-standby.timer"
_UNITS = "/etc/systemd/system"
_TARGET = f"{scope.FOLDER}/target.json"
_PROGRAM = "/usr/local/bin/gpucluster-agent"
#: What the metrics say; docs/reference/metrics.md is made from it.
METRICS = {
    "gpucluster_standby_current_timestamp_seconds": "When the standby was made like the controller the last time."
}
#: The folder belongs to the exporters, and is not there without them.
METRICS_FILE = "/var/lib/gpucluster/metrics/standby.prom"


def units(program: str = _PROGRAM) -> dict[str, str]:
    """The texts of the units, by their names."""
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
    return {SERVICE: service, TIMER: timer}


def keep(target: str, host_key: str, root: Path = Path("/")) -> None:
    """Repeat what `mirror.send` does with these arguments from now on.

    Raises:
        Failed: systemd refused.
    """
    folder = root / scope.FOLDER.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    document = json.dumps({"target": target, "host_key": host_key})
    durable_file.replace(root / _TARGET.lstrip("/"), f"{document}\n", mode=0o600)
    changed = False
    for name, text in units().items():
        file = root / _UNITS.lstrip("/") / name
        if not file.is_file() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            durable_file.replace(file, text, mode=0o644)
            changed = True
    if changed:
        programs.run("systemctl", "daemon-reload")
    programs.run("systemctl", "enable", "--quiet", "--now", TIMER)


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
        lines = (
            f"# HELP {name} {words}\n# TYPE {name} gauge\n{name} {time.time():.3f}\n" for name, words in METRICS.items()
        )
        durable_file.replace(metrics, "".join(lines), mode=0o644, durable=False)
    return answer


def end(root: Path = Path("/")) -> None:
    """This host has no standby any more. May be repeated.

    Raises:
        Failed: systemd refused.
    """
    if (root / _UNITS.lstrip("/") / TIMER).is_file():
        programs.run("systemctl", "disable", "--quiet", "--now", TIMER)
    for name in (_TARGET, METRICS_FILE, *(f"{_UNITS}/{each}" for each in units())):
        (root / name.lstrip("/")).unlink(missing_ok=True)
    programs.run("systemctl", "daemon-reload")
