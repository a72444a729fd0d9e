"""The key of the REST API's tokens (auth/jwt of Slurm): where it is, and how it is rotated.

slurmctld and slurmdbd read it when they start, and no other host has it. With another key every token that was made
before is refused: there is no overlap, because a rotation is what ends the token of someone who left.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpucluster.controller import rotation_parts
from gpucluster.node_agent import munge_key, programs
from gpucluster.node_agent.errors import AgentError, Failed, Refused
from gpucluster.node_agent.passwords import write_file

NAME = "jwt"
#: The role slurm makes it, for the daemons' user alone.
KEY = Path("/etc/gpucluster/jwt.key")
#: Is there while the daemons may have the former key.
BEGUN = Path("/etc/gpucluster/jwt.switch")
#: The size that the role makes, in bytes.
SIZE = 64

_OWNER: str | None = "slurm"
_RESTART_SECONDS = 600.0
_PING_SECONDS, _POLL_SECONDS = 10.0, 0.2

Note = Callable[[str], None]


def replace() -> None:
    """Put another key in the place of the present one, whole or not at all.

    Raises:
        OSError: it can't be written; the present one is unchanged.
    """
    munge_key.install(secrets.token_bytes(SIZE), KEY, _OWNER)


def rotate(note: Note, save: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Give tokens another key. Killed at any point, the same call begins again, with another key.

    Args:
        save: copies the key to where the next controller gets it from.

    Raises:
        Refused: this cluster has no REST API.
        Failed: a daemon does not start.
    """
    if not KEY.is_file():
        raise Refused("this cluster has no key of tokens", "Set slurm.rest in cluster.yml, then run: gpucluster apply")
    write_file(BEGUN, "{}")
    replace()
    save()
    note("Slurm starts again with the next key: every token that was made before is refused")
    for unit in ("slurmdbd.service", "slurmctld.service"):
        # Without accounting there is no slurmdbd.
        rotation_parts.restart(unit, _RESTART_SECONDS)
    _await()
    BEGUN.unlink()
    return {"new": True, "hosts": 1, "away": [], "unconfirmed": []}


def state() -> list[dict[str, Any]]:
    """When the key was changed, and whether the daemons have it; empty where the REST API is off."""
    if not KEY.is_file():
        return []
    changed = rotation_parts.moment(KEY.stat().st_mtime)
    begun = rotation_parts.read(BEGUN, NAME, lambda _raw: True)
    return [{"name": NAME, "changed": changed, "state": "prepared" if begun else "complete", "unconfirmed": []}]


def _await() -> None:
    """Wait until slurmctld answers: it loads its plugins after it has told systemd that it is ready."""
    until = time.monotonic() + _RESTART_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(AgentError):
            if programs.call(["scontrol", "ping"], seconds=_PING_SECONDS).returncode == 0:
                return
        time.sleep(_POLL_SECONDS)
    raise Failed("slurmctld does not answer with the next key", "Run: journalctl -u slurmctld")
