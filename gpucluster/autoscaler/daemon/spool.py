"""The records of Slurm's hooks: read, parsed, and removed when the ledger has them.

Each record is a file (see `hooks`). No decision depends on a record to be correct: the loop sees in Slurm what Slurm
wants, and a record only reports which nodes are for which job. So a record that can't be parsed is set aside and
reported, and stops nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpucluster.autoscaler.daemon.logs import DaemonLog
from gpucluster.autoscaler.decide.types import Intent
from gpucluster.errors import ToolError
from gpucluster.slurm.hostlists import HostlistError, expand

KINDS = frozenset({"resume", "suspend", "resume_fail"})
_NAME = re.compile(r"([0-9]{1,20})-([0-9]{1,10})-(resume|suspend|resume_fail)\.json")
_BROKEN = ".broken"
# A record of ten thousand jobs has about 2 MB.
_LARGEST = 64_000_000
# Records that are read in one pass, and broken records that are kept for an administrator.
_MOST = 10_000
_BROKEN_KEPT = 20
_LATEST = 1e11
# Seconds after which the unfinished file of a hook that was killed is removed.
_UNFINISHED = 600.0

log = DaemonLog("spool")


class SpoolError(ToolError):
    """The spool can't be read or cleared."""


class Spool:
    """The directory that the hooks write to; it must exist."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self) -> list[tuple[str, Intent]]:
        """Every record, oldest first, with the name of its file. Files that are not records are set aside.

        Raises:
            SpoolError: the directory can't be read.
        """
        records = []
        for name in self._names():
            with contextlib.suppress(FileNotFoundError):
                try:
                    records.append((name, self._record(name)))
                except (ValueError, RecursionError) as error:
                    self._set_aside(name, str(error))
                except FileNotFoundError:
                    raise
                except OSError as error:
                    self._set_aside(name, error.strerror or type(error).__name__)
        return records

    def waits(self) -> bool:
        """Whether there is a record. It is not read.

        Raises:
            SpoolError: the directory can't be read.
        """
        try:
            with os.scandir(self._directory) as entries:
                return any(_NAME.fullmatch(entry.name) for entry in entries)
        except OSError as error:
            raise self._error("read", error) from error

    def remove(self, names: Collection[str]) -> None:
        """Remove records. A record that is gone already is not an error.

        Raises:
            SpoolError: a file can't be removed.
        """
        try:
            for name in names:
                (self._directory / name).unlink(missing_ok=True)
        except OSError as error:
            raise self._error("cleared", error) from error

    def _names(self) -> list[str]:
        now = time.time()
        names = []
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    if _NAME.fullmatch(entry.name):
                        names.append(entry.name)
                    elif entry.name.endswith(".json.tmp"):
                        self._sweep(entry, now)
                    elif entry.name.endswith(".json"):
                        self._set_aside(entry.name, "its name is not one that a hook gives")
        except OSError as error:
            raise self._error("read", error) from error
        return sorted(names, key=_age)[:_MOST]

    def _sweep(self, entry: os.DirEntry[str], now: float) -> None:
        with contextlib.suppress(OSError):
            if now - entry.stat(follow_symlinks=False).st_mtime > _UNFINISHED:
                os.unlink(entry.path)

    def _record(self, name: str) -> Intent:
        # The user slurm writes here: a link could lead anywhere, and a pipe would block the daemon.
        descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise ValueError("it is too long")
        return parse(json.loads(content))

    def _set_aside(self, name: str, why: str) -> None:
        log.warning(f"a record of a hook can't be understood and is set aside: {why[:200]}", file=name)
        with contextlib.suppress(OSError):
            os.replace(self._directory / name, self._directory / f"{name}{_BROKEN}")
            broken = sorted(self._directory.glob(f"*{_BROKEN}"), key=lambda file: file.lstat().st_mtime)
            for file in broken[:-_BROKEN_KEPT]:
                file.unlink(missing_ok=True)

    def _error(self, participle: str, error: OSError) -> SpoolError:
        hint = "It is made by gpucluster apply, for user slurm and group gpucluster"
        return SpoolError(
            f"the hooks' spool can't be {participle}: {error.strerror}", where=str(self._directory), hint=hint
        )


def parse(raw: Any) -> Intent:
    """Parse a record. Its part about jobs has the form of Slurm 22.05 or of 23.02 and later, or is missing.

    Raises:
        ValueError: a hook does not write this.
    """
    if not isinstance(raw, dict) or raw.get("version") != 1:
        raise ValueError("it is of no known version")
    kind, at, nodes = raw.get("kind"), raw.get("at"), raw.get("nodes")
    if not isinstance(kind, str) or kind not in KINDS or not isinstance(nodes, str):
        raise ValueError("its kind or nodes are missing")
    if not isinstance(at, (int, float)) or not 0 <= at < _LATEST:
        raise ValueError("its time is missing")
    return Intent(kind=kind, at=float(at), nodes=tuple(expand(nodes)), jobs=dict(_jobs(raw.get("resume"))))


def _jobs(resume: object) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Job id -> the nodes that are powered up for it. Wrong entries are left out: the record is only a hint."""
    listed = resume.get("jobs") if isinstance(resume, Mapping) else None
    for job in listed if isinstance(listed, list) else ():
        if not isinstance(job, Mapping):
            continue
        # `nodes` was renamed in 23.02; `nodes_alloc` also has the nodes that are up already.
        number, nodes = job.get("job_id"), job.get("nodes_resume", job.get("nodes"))
        if isinstance(number, int) and not isinstance(number, bool) and isinstance(nodes, str):
            with contextlib.suppress(HostlistError):
                yield str(number), tuple(expand(nodes))


def _age(name: str) -> tuple[int, str]:
    return int(name.partition("-")[0]), name
