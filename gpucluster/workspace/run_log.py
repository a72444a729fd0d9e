"""The lock of a cluster, and the log of its runs.

The kernel holds the lock (flock): it is free as soon as its holder has ended, for whatever reason. The content of
the lock's file only names the holder. Runs on other machines are kept away by the lock of Terraform's state
(`terraform.lock`). The run log, one JSON file a run, is for people and pipelines; nothing in
gpucluster reads it to decide anything.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpucluster.errors import EnvironmentFault, LockedError
from gpucluster.paths import ClusterPaths, write_private

MAX_RUNS = 50


class RunStatus(StrEnum):
    """The state of a run. RUNNING in a log whose process has ended means that the run was killed."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


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
            raise EnvironmentFault(f"can't open the lock: {error.strerror}", where=str(paths.lock)) from error
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
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _locked(paths) from None


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
        holder = json.loads(paths.lock.read_text())
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
        self.run_id = f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
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
        for old in sorted(folder.glob("*.json"))[: -MAX_RUNS + 1]:
            old.unlink(missing_ok=True)


def last_run(paths: ClusterPaths) -> Mapping[str, Any] | None:
    """The record of the newest run, for `status`; None if there is none that can be read."""
    for file in sorted(paths.runs.glob("*.json"), reverse=True):
        try:
            record = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(record, dict):
            return record
    return None
