"""What there is to back up, and where the work is done."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backup.accounting import Accounting
from backup.directory import Directory
from backup.programs import Failed

KEPT = Path("/var/lib/gpucluster/backup")
LOCK = Path("/run/gpucluster-backup.lock")


class Busy(Failed):
    """Another one runs."""


@dataclass(frozen=True)
class Site:
    """What there is to back up."""

    cluster: str
    directory: Directory
    accounting: Accounting | None

    @classmethod
    def load(cls, file: Path) -> Site:
        """Read the file that the role writes."""
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            place, books = raw["directory"], raw["accounting"]
            directory = Directory(place["suffix"], Path(place["config"]), Path(place["data"]), place["user"])
            words = [books[key] for key in ("cluster", "unit", "client", "dump")] if books else []
            accounting = Accounting(Path(books["settings"]), Path(books["state"]), *words) if books else None
            return cls(raw["cluster"], directory, accounting)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Failed(f"{file} can't be used: {error}", "Run `gpucluster apply`, which writes it") from error

    @property
    def units(self) -> list[str]:
        """The daemons, in the order in which they stop; they start the other way round."""
        return ["slurmctld", "slurmdbd", "slapd"] if self.accounting else ["slapd"]


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A folder on the disk that only root can look into, and that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="work-", dir=KEPT) as name:
        yield Path(name)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One at a time; what a killed one left in the work folders goes.

    Raises:
        Busy: another one runs.
    """
    KEPT.mkdir(parents=True, exist_ok=True)
    KEPT.chmod(0o700)
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Busy("another backup or restore is under way", "Wait for it") from None
        for left in KEPT.glob("work-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
