"""What systemd reports of the units of this host."""

from __future__ import annotations

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed

# Of `systemctl is-active`: the unit does not run, or there is no such unit.
_NOT_ACTIVE = (3, 4)


def is_active(unit: str) -> bool:
    """Whether systemd runs a unit, or is about to start or end it.

    Raises:
        Failed: systemd does not tell it. Who works on its files would take it for one that is stopped.
    """
    result = programs.call(["systemctl", "is-active", unit])
    if result.returncode not in (0, *_NOT_ACTIVE):
        raise Failed(f"systemd does not tell whether {unit} runs: {result.stderr.strip()[-300:]}", "Run it again")
    return result.returncode == 0 or result.stdout.strip() in ("activating", "deactivating", "reloading")
