"""The lock of a cluster and the diary of its runs.

The lock is the kernel's (flock): it is gone when its holder is dead, however it died. The file beside it only names the
holder. The diary, one JSON file a run, is for people and pipelines; nothing in gpucluster reads it to decide anything.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpucluster.errors import EnvironmentFault, LockedError
from gpucluster.paths import ClusterPaths, write_private

KEPT_RUNS = 50


def _age(seconds: float) -> str:
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def lock(paths: ClusterPaths, command: str) -> Iterator[None]:
    """Hold the cluster for one run.

    Raises:
        LockedError: another process holds it; the text names its pid, host, command and age.
    """
    try:
        descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise EnvironmentFault(f"can't open the lock: {error.strerror}", where=str(paths.lock)) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _locked(paths) from None
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "command": command, "since": time.time()}
        os.ftruncate(descriptor, 0)
        try:
            os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        except OSError as error:
            raise EnvironmentFault(
                f"can't write: {error.strerror}", where=str(paths.lock), hint="Free some space and try again"
            ) from error
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _locked(paths: ClusterPaths) -> LockedError:
    try:
        holder = json.loads(paths.lock.read_text())
        who = (
            f"gpucluster {holder['command']}, pid {holder['pid']} on {holder['host']}, "
            f"for {_age(time.time() - holder['since'])}"
        )
    except (OSError, ValueError, KeyError, TypeError):
        who = "another process, which has just taken it"
    return LockedError(
        f"this cluster is held by {who}",
        where=str(paths.lock),
        hint="Wait for it to end; the lock goes with the process that holds it",
    )


class Journal:
    """The diary page of one run. `close` writes it; a page that was never closed tells of a run that died."""

    def __init__(self, paths: ClusterPaths, command: str) -> None:
        now = datetime.now(UTC)
        self.run_id = f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        self._file = paths.runs / f"{self.run_id}.json"
        self._page: dict[str, Any] = {
            "run": self.run_id,
            "command": command,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": now.isoformat(timespec="seconds"),
            "status": "running",
        }
        self._prune(paths.runs)
        self._write()

    def close(self, status: str, **details: Any) -> None:
        """Write how the run ended. `details` must be JSON values without secrets."""
        self._page |= {
            "status": status,
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            **details,
        }
        self._write()

    def _write(self) -> None:
        write_private(self._file, json.dumps(self._page, indent=2, default=str) + "\n")

    @staticmethod
    def _prune(folder: Path) -> None:
        for old in sorted(folder.glob("*.json"))[: -KEPT_RUNS + 1]:
            old.unlink(missing_ok=True)


def last_run(paths: ClusterPaths) -> Mapping[str, Any] | None:
    """The newest page of the diary, for `status`; None when there is none that can be read."""
    for page in sorted(paths.runs.glob("*.json"), reverse=True):
        try:
            loaded = json.loads(page.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(loaded, dict):
            return loaded
    return None
