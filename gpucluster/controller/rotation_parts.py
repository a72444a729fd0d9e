"""What rotations of secrets have in common: the file of one that is not complete, a server that starts again, and the
rows of the list of what can be rotated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, TypeVar

from gpucluster.node_agent import bounded, programs
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.passwords import write_file

_T = TypeVar("_T")

#: What to do where a host in service does not take part.
HINT = "Run the same command again when they answer, or take them out of service: gpucluster replace NODE"


def read(file: Path, name: str, made: Callable[[Any], _T]) -> _T | None:
    """What `made` makes of the document in a file; None if there is no file.

    Args:
        name: of the secret, for the command that begins again.

    Raises:
        Failed: it can't be read.
    """
    try:
        return made(bounded.load(file))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Failed(f"{file} can't be read", f"Remove it, then run: gpucluster rotate {name} ({file})") from None


def restart(unit: str, seconds: float) -> None:
    """Start a server again that runs, or is to run after a boot: it reads its secret when it starts.

    Args:
        seconds: until it has started.

    Raises:
        Failed: it does not start.
    """
    if programs.call(["systemctl", "is-enabled", "--quiet", unit]).returncode != 0:
        return
    done = programs.call(["systemctl", "restart", unit], seconds=seconds)
    if done.returncode != 0:
        raise Failed(f"systemctl restart {unit}: {done.stderr.strip()[-300:]}", f"Run: journalctl -u {unit}")


def moment(seconds: float) -> str:
    """A time for the list of what can be rotated, in UTC: 2026-11-30T02:03:28Z."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class UnconfirmedHosts:
    """The hosts that have not confirmed a rotation that goes by phases.

    Args:
        file: where they are kept. `secret`: its name.
    """

    file: Path
    secret: str

    def read(self) -> list[str]:
        """Their names; empty if there is no file.

        Raises:
            Failed: it can't be read.
        """
        return read(self.file, self.secret, lambda raw: list(map(str, raw))) or []

    def keep(self, names: Sequence[str]) -> None:
        """Write them, or remove the file if there is none."""
        if names:
            write_file(self.file, json.dumps(sorted(names)))
        else:
            self.file.unlink(missing_ok=True)

    def row(self, changed: float, phase: str) -> dict[str, Any]:
        """The secret in the list of what can be rotated.

        Args:
            changed: when it was made, in seconds since 1970.
            phase: `complete`, `prepared`, or `switched`, when hosts may be missing.
        """
        return {
            "name": self.secret,
            "changed": moment(changed),
            "state": {"complete": "complete", "prepared": "prepared", "switched": "unconfirmed"}[phase],
            "unconfirmed": self.read() if phase == "switched" else [],
        }
