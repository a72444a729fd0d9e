"""What the hosts do for the failover by itself, beside the program that decides (`gpucluster.failover`).

The standby keeps the settings, and runs the program. The host in service announces its shutdowns to the standby, so
that a reboot does not count as a loss, for ten minutes at most. Other hosts answer whether they reach the controller.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpucluster.node_agent import durable_file, programs
from gpucluster.node_agent.standby import scope
from gpucluster.node_agent.state_volume import layout

SERVICE = "gpucluster-failover.service"
SHUTDOWN = "gpucluster-shutdown-notice.service"
SETTINGS = f"{scope.FOLDER}/watch.json"
#: Until when an announced shutdown counts, in seconds of the epoch.
PAUSE = f"{scope.FOLDER}/pause.json"
#: What the program has seen last.
STATUS = f"{scope.FOLDER}/watch-status.json"
#: How the program has made this host the controller; an apply removes it.
RECORD = f"{scope.FOLDER}/automatic-failover.json"
PROGRAM = "/opt/gpucluster/venv/bin/gpucluster-failover"
#: For how long an announced shutdown counts: bare metal needs some minutes for a reboot.
PAUSE_SECONDS = 600.0
#: A status that is older is that of a program that hangs, or does not run.
FRESH_SECONDS = 120.0
#: What a controller listens on, by the name of the probe.
PORTS: Mapping[str, int] = {"ssh": 22, "slurmctld": 6817}
CONNECT_SECONDS = 3.0


def units(agent: str) -> dict[str, str]:
    """The texts of the units, by their names. Both hosts have them; conditions decide where they do something.

    Args:
        agent: the path of this program.
    """
    service = f"""\
# Managed by gpucluster.
[Unit]
Description=Go on in the place of the controller when it is lost
ConditionPathExists={layout.PASSIVE}
ConditionPathExists={SETTINGS}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
ExecStart={PROGRAM}
Restart=always
RestartSec=5
# A host without memory left must not lose this one first.
OOMScoreAdjust=-900

[Install]
WantedBy=multi-user.target
"""
    shutdown = f"""\
# Managed by gpucluster.
[Unit]
Description=Announce a shutdown of this host to the standby
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
RemainAfterExit=true
ExecStart=/bin/true
ExecStop={agent} standby announce
TimeoutStopSec=20s

[Install]
WantedBy=multi-user.target
"""
    return {SERVICE: service, SHUTDOWN: shutdown}


def reaches(address: str, port: int, seconds: float = CONNECT_SECONDS) -> bool:
    """Whether something accepts a connection there."""
    try:
        with socket.create_connection((address, port), timeout=seconds):
            return True
    except OSError:
        return False


def witness(
    addresses: Sequence[str], reach: Callable[[str, int], bool] = reaches, ports: Mapping[str, int] = PORTS
) -> dict[str, Any]:
    """On another host: whether the controller is reached from here, at one of its addresses."""
    probes = {f"{name} at {address}": (address, port) for address in addresses for name, port in ports.items()}
    with ThreadPoolExecutor(max(len(probes), 1)) as pool:
        found = dict(zip(probes, pool.map(lambda each: reach(*each), probes.values())))
    seen = [name for name, reached in found.items() if reached]
    return {"reached": bool(seen), "by": seen}


# --- on the standby -----


def watch(settings: str, root: Path = Path("/")) -> None:
    """Keep the settings, and let the program run with them.

    Raises:
        Failed: systemd refused.
    """
    json.loads(settings)
    file = root / SETTINGS.lstrip("/")
    durable_file.replace(file, f"{settings}\n", mode=0o600)
    programs.run("systemctl", "daemon-reload")
    # A restart: the program that runs has the settings and the files of the last apply.
    programs.run("systemctl", "restart", SERVICE)


def unwatch(root: Path = Path("/")) -> None:
    """Let the program end. May be repeated.

    Raises:
        Failed: systemd refused.
    """
    file = root / SETTINGS.lstrip("/")
    if file.is_file():
        programs.run("systemctl", "stop", SERVICE)
    for name in (SETTINGS, STATUS, PAUSE):
        (root / name.lstrip("/")).unlink(missing_ok=True)


def pause(root: Path = Path("/"), now: Callable[[], float] = time.time) -> None:
    """The host in service has announced a shutdown."""
    durable_file.replace(root / PAUSE.lstrip("/"), json.dumps({"until": now() + PAUSE_SECONDS}), mode=0o600)


def paused_seconds(root: Path = Path("/"), now: Callable[[], float] = time.time) -> float:
    """For how long an announced shutdown still counts; never more than a shutdown announced now would."""
    try:
        until = float(json.loads((root / PAUSE.lstrip("/")).read_text())["until"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0
    return min(max(0.0, until - now()), PAUSE_SECONDS)


def status(root: Path = Path("/"), now: Callable[[], float] = time.time) -> dict[str, Any]:
    """What the program has seen last: `ready`, whether it could go on now, and `reason`, why not."""
    try:
        seen = json.loads((root / STATUS.lstrip("/")).read_text())
        age = now() - float(seen["at"])
        ready, reason = seen["ready"] is True, str(seen["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return {"ready": False, "reason": "the program that watches the controller does not run"}
    if not 0 <= age <= FRESH_SECONDS:
        return {"ready": False, "reason": f"the program that watches the controller was seen {age:.0f} s ago"}
    return {"ready": ready, "reason": reason}


def is_passive(root: Path = Path("/")) -> bool:
    """Whether this host is the standby: it does not have the volume, and is not meant to."""
    return (root / layout.PASSIVE.lstrip("/")).exists() and not os.path.ismount(root / layout.MOUNT.lstrip("/"))


# --- on the host in service -----


def receive_status(ssh: Sequence[str]) -> dict[str, Any]:
    """What the program on the standby has seen last, asked over this connection; `status` has the form."""
    ended = programs.call([*ssh, "watched"], seconds=60.0)
    try:
        answer = json.loads(ended.stdout) if ended.returncode == 0 else None
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {"ready": False, "reason": "the standby does not answer"}
