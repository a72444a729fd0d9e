"""The databases to back up, the folder for the work, and the lock."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpucluster.controller import file_lock
from gpucluster.controller.backup.accounting import AccountingDatabase
from gpucluster.controller.backup.control_plane import ControlPlane
from gpucluster.controller.backup.directory import Directory
from gpucluster.controller.backup.schedule import Schedule
from gpucluster.node_agent.errors import Failed

KEPT = Path("/var/lib/gpucluster/backup")
LOCK = Path("/run/gpucluster-backup.lock")


class Busy(Failed):
    """Another backup or restore runs."""


@dataclass(frozen=True)
class Site:
    """The databases to back up, as the role `people` describes them."""

    cluster: str
    directory: Directory
    accounting: AccountingDatabase | None
    control_plane: ControlPlane | None = None
    schedule: Schedule | None = None

    @classmethod
    def load(cls, file: Path) -> Site:
        """Read the file that the role writes.

        Raises:
            Failed: it is missing or not well formed.
        """
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            place, settings = raw["directory"], raw["accounting"]
            directory = Directory(place["suffix"], Path(place["config"]), Path(place["data"]), place["user"])
            words = [settings[key] for key in ("cluster", "unit", "client", "dump")] if settings else []
            accounting = (
                AccountingDatabase(Path(settings["settings"]), Path(settings["state"]), *words) if settings else None
            )
            # A new agent may run before the apply that brought it has written the file again.
            plane = raw.get("control_plane")
            control_plane = ControlPlane(Path(plane["folder"]), Path(plane["config"])) if plane else None
            plan = raw.get("schedule")
            schedule = Schedule.of(plan) if plan else None
            return cls(raw["cluster"], directory, accounting, control_plane, schedule)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Failed(f"{file} can't be used: {error}", "Run `gpucluster apply`, which writes it") from error

    @property
    def units(self) -> list[str]:
        """The daemons in the order in which they stop; they start in the reverse order."""
        return ["slurmctld", "slurmdbd", "slapd"] if self.accounting else ["slapd"]


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A folder on disk that only root can read; it is deleted at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="work-", dir=KEPT) as name:
        yield Path(name)


@contextlib.contextmanager
def exclusive(patience: float = 0.0) -> Iterator[None]:
    """Hold the lock of backups and restores, and delete work folders that a killed one has left.

    Args:
        patience: seconds for which it waits for the end of another one.

    Raises:
        Busy: another one runs.
    """
    KEPT.mkdir(parents=True, exist_ok=True)
    KEPT.chmod(0o700)
    with LOCK.open("w") as lock:
        if not file_lock.acquire(lock.fileno(), patience):
            raise Busy("another backup or restore runs", "Wait until it has ended")
        for left in KEPT.glob("work-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
