"""The lock of a cluster, and the log of its runs.

The kernel holds the lock (flock): it is free as soon as its holder has ended, for whatever reason. The content of
the lock's file only names the holder. Runs on other machines are kept away by the lock of Terraform's state
(`terraform.lock`). The run log, one JSON file a run, is for users and pipelines; nothing in
gpucluster reads it to decide anything. A log without an end belongs to a run that was killed, unless that run holds the
lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpucluster.errors import EnvironmentFault, LockedError
from gpucluster.node_agent import bounded
from gpucluster.paths import ClusterPaths, read_saved, write_private
from gpucluster.waiting import wait_until

MAX_RUNS = 50
# Commands that change nothing. What is left of an interrupted one is nothing, too.
_READING = frozenset({"plan", "verify"})
# Seconds to wait for the lock: `holder` holds it for a moment to see whether it is free.
_PATIENCE = 0.2
_POLL = 0.02
# The texts in the record of each run. A record with anything else in their place is damaged.
_TEXTS = ("run", "command", "host", "started", "status", "phase")


class RunStatus(StrEnum):
    """The state of a run. KILLED is never in a log: it is what RUNNING means there once the run has ended.

    REFUSED: it ended before it changed anything, because of what it was asked for.
    """

    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    KILLED = "killed"


def _age(seconds: float) -> str:
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def lock(paths: ClusterPaths, command: str) -> Iterator[None]:
    """Hold the cluster for one run.

    Raises:
        LockedError: another process holds it; the text names its pid, host, command and age.
        EnvironmentFault: the lock can't be opened or written.
    """
    with ExitStack() as held:
        # The folder of cluster.yml stays if `.gpucluster` is deleted. A network file system may refuse to lock it.
        with suppress(OSError):
            _flock(paths, paths.root.parent, os.O_RDONLY | os.O_DIRECTORY, held)
        try:
            _flock(paths, paths.lock, os.O_RDWR | os.O_CREAT, held)
        except OSError as error:
            # Without flock, a lock that merely exists would outlive a killed holder.
            raise EnvironmentFault(
                f"can't open the lock: {error.strerror}",
                where=str(paths.lock),
                hint="Look at the permissions of the file and at the space of its disk",
            ) from error
        try:
            _name_holder(paths, command)
            yield
        finally:
            with suppress(OSError):  # the folder may have been deleted meanwhile
                os.truncate(paths.lock, 0)


def _flock(paths: ClusterPaths, file: Path, flags: int, held: ExitStack) -> None:
    """Lock a file or a folder until `held` ends.

    Raises:
        LockedError: another process has it.
        OSError: it can't be opened, or its file system has no locks.
    """
    descriptor = os.open(file, flags | os.O_CLOEXEC, 0o600)
    held.callback(os.close, descriptor)
    if not wait_until(lambda: _flocked(descriptor, fcntl.LOCK_EX), _PATIENCE, _POLL):
        raise _locked(paths) from None


def _flocked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _name_holder(paths: ClusterPaths, command: str) -> None:
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "command": command, "since": time.time()}
    try:
        paths.lock.write_text(json.dumps(holder))
    except OSError as error:
        raise EnvironmentFault(
            f"can't write: {error.strerror}",
            where=str(paths.lock),
            hint="Free some space and run the same command again",
        ) from error


def _locked(paths: ClusterPaths) -> LockedError:
    try:
        holder = bounded.load(paths.lock)
        holder_text = (
            f"gpucluster {holder['command']}, pid {holder['pid']} on {holder['host']}, "
            f"for {_age(time.time() - holder['since'])}"
        )
    except (OSError, ValueError, KeyError, TypeError):
        holder_text = "another process, which took it just now"
    return LockedError(
        f"this cluster is held by {holder_text}",
        where=str(paths.lock),
        hint="Wait for it to end; the lock is free as soon as that process has ended",
    )


class RunLog:
    """The log of one run. `close` writes how it ended; a log that was never closed belongs to a run that was killed."""

    def __init__(self, paths: ClusterPaths, command: str) -> None:
        now = datetime.now(UTC)
        # Names have the order of the runs, also of those that begin in the same second.
        self.run_id = f"{now:%Y%m%dT%H%M%S}-{now.microsecond:05x}{secrets.randbelow(16):x}"
        self._file = paths.runs / f"{self.run_id}.json"
        self._record: dict[str, Any] = {
            "run": self.run_id,
            "command": command,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": now.isoformat(timespec="seconds"),
            "status": RunStatus.RUNNING,
        }
        self._prune(paths.runs)
        self._write()

    def enter(self, phase: str) -> None:
        """Write which phase the run is in: of a run that is killed, this is all that stays."""
        self._record["phase"] = phase
        self._write()

    def close(self, status: RunStatus, **details: Any) -> None:
        """Write how the run ended. `details` must be JSON values without secrets."""
        self._record |= {
            "status": status,
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            **details,
        }
        self._write()

    def _write(self) -> None:
        write_private(self._file, json.dumps(self._record, indent=2, default=str) + "\n")

    @staticmethod
    def _prune(folder: Path) -> None:
        """Delete the oldest logs, but never that of the last change."""
        old = sorted(folder.glob("*.json"))[: -MAX_RUNS + 1]
        if not old:
            return
        change = next((record["run"] for record in _newest_first(folder) if _changes(record)), None)
        for file in old:
            if file.stem != change:
                shutil.rmtree(file.with_suffix(""), ignore_errors=True)  # its evidence
                file.unlink(missing_ok=True)


@dataclass(frozen=True)
class Runs:
    """What the run log of this machine has about a cluster. Each is a log's record, None if there is none.

    Args:
        running: the run that holds the cluster now.
        last: the newest one.
        last_change: the newest one that could change something.
    """

    running: Mapping[str, Any] | None
    last: Mapping[str, Any] | None
    last_change: Mapping[str, Any] | None


def read_runs(paths: ClusterPaths) -> Runs:
    """Read the run log, and tell runs that were killed from the one that runs. Takes no lock."""
    lock_holder = holder(paths)
    records = [_ended(record, lock_holder) for record in _newest_first(paths.runs)]
    last_change = next((record for record in records if _changes(record)), None)
    return Runs(lock_holder, records[0] if records else None, last_change)


def last_phases(paths: ClusterPaths, command: str) -> Mapping[str, float]:
    """Seconds of each phase of the newest run of a command that succeeded on this machine; empty without one."""
    for record in _newest_first(paths.runs):
        if record["command"] == command and record["status"] == RunStatus.SUCCESS:
            phases = record.get("phases")
            found = phases.items() if isinstance(phases, dict) else ()
            return {str(name): float(took) for name, took in found if isinstance(took, int | float)}
    return {}


def last_tasks(paths: ClusterPaths, command: str) -> Mapping[str, tuple[int, float]]:
    """Tasks and seconds of each phase that runs tasks, of the newest run of a command that succeeded and ran some."""
    for record in _newest_first(paths.runs):
        if record["command"] == command and record["status"] == RunStatus.SUCCESS and record.get("tasks"):
            tasks, phases = record["tasks"], record.get("phases")
            if isinstance(tasks, dict) and isinstance(phases, dict):
                return {
                    str(name): (number, float(took))
                    for name, number in tasks.items()
                    if isinstance(number, int) and isinstance(took := phases.get(name), int | float)
                }
    return {}


def records(paths: ClusterPaths) -> list[Mapping[str, Any]]:
    """The records of all runs that can be read, the newest first. Takes no lock."""
    lock_holder = holder(paths)
    return [_ended(record, lock_holder) for record in _newest_first(paths.runs)]


def holder(paths: ClusterPaths) -> Mapping[str, Any] | None:
    """The run that holds the lock: {pid, host, command, since}, empty if it is not named; None if the lock is free."""
    if _is_free(paths.lock) and _is_free(paths.root.parent):
        return None
    try:
        return _holder_of(paths.lock) or {}
    except OSError:
        return {}  # the folder was deleted under the run


def _is_free(file: Path) -> bool:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True  # there is no lock, or it is not readable for us
    try:
        return _flocked(descriptor, fcntl.LOCK_SH)
    except OSError:
        return True  # its file system has no locks
    finally:
        os.close(descriptor)


def _ended(record: Mapping[str, Any], lock_holder: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The record, with the state of a run that was killed."""
    runs = lock_holder is not None and all(lock_holder.get(key) == record.get(key) for key in ("pid", "host"))
    if record.get("status") == RunStatus.RUNNING and not runs:
        return {**record, "status": RunStatus.KILLED}
    return record


def _changes(record: Mapping[str, Any]) -> bool:
    return record.get("command") not in _READING and record.get("status") != RunStatus.REFUSED


def _newest_first(folder: Path) -> Iterator[dict[str, Any]]:
    """The records that can be read."""
    for file in sorted(folder.glob("*.json"), reverse=True):
        with suppress(OSError):
            record = _json_object(read_saved(file))
            if record and all(isinstance(record.get(key, ""), str) for key in _TEXTS):
                yield {**dict.fromkeys(_TEXTS, ""), **record}


def _holder_of(file: Path) -> dict[str, Any] | None:
    """The run that the lock's file names; None if it names none."""
    holder = _json_object(read_saved(file))
    return holder if holder and all(holder.get(key) for key in ("pid", "host", "command")) else None


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = bounded.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
