"""The records of jobs on the controller: `<job_id>/<node>.json`, with the last runs of the job on that node.

A job that was requeued runs again under its number, and after a restore a number may be used again: runs differ in
when they began on the node.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from gpucluster.node_agent import bounded
from gpucluster.node_agent.durable_file import replace
from gpucluster.node_agent.errors import Refused

FOLDER = Path("/var/lib/gpucluster/job-records")
#: Bytes of one record, and entries in it.
LONGEST, MOST_ENTRIES = 192 * 1024, 4000
#: What is kept: files, bytes, seconds; and runs of one job on one node.
MOST_FILES, MOST_BYTES, OLDEST_S = 100_000, 1 << 30, 90 * 86400.0
_RUNS = 5
#: Records of one node: so many at once, and so many a second.
_BURST, _RATE = 100.0, 2.0
_PRUNE_S = 3600.0
_JOB, _NODE = re.compile(r"[1-9][0-9]{0,9}"), re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")


class JobRecordFolder:
    """The folder. Several threads may use it.

    Args:
        clock: seconds, only forwards; wall: seconds since 1970.
    """

    def __init__(
        self,
        folder: Path = FOLDER,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        limits: tuple[int, int, float] = (MOST_FILES, MOST_BYTES, OLDEST_S),
    ) -> None:
        self._folder, self._clock, self._wall, self._limits = folder, clock, wall, limits
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}
        self._pruned = float("-inf")

    def keep(self, record: Any) -> bool:
        """Keep a record; False if this node has sent too many, and is to try later.

        Raises:
            Refused: it is not a record.
            OSError: the disk is full.
        """
        job, node = _checked(record)
        with self._lock:
            if not self._admit(node):
                return False
            folder = self._folder / job
            folder.mkdir(mode=0o750, exist_ok=True)
            file = folder / f"{node}.json"
            others = [each for each in load(file) if each.get("started") != record["started"]]
            runs = sorted([*others, record], key=lambda each: float(each["started"]))[-_RUNS:]
            replace(file, json.dumps({"version": 1, "runs": runs}, separators=(",", ":")), durable=False)
            if self._clock() - self._pruned > _PRUNE_S:
                self._pruned = self._clock()
                self.prune()
        return True

    def _admit(self, node: str) -> bool:
        now = self._clock()
        left, since = self._left.get(node, (_BURST, now))
        left = min(_BURST, left + (now - since) * _RATE)
        self._left[node] = (max(0.0, left - 1), now)
        return left >= 1

    def prune(self) -> None:
        """Remove the records of the oldest jobs until the rest is within the limits."""
        files, size_limit, oldest = self._limits
        jobs = []
        for folder in self._folder.iterdir():
            try:
                stats = [each.stat() for each in folder.iterdir()]
                last = max((each.st_mtime for each in stats), default=0.0)
                jobs.append((last, len(stats), sum(each.st_size for each in stats), folder))
            except OSError:
                continue
        count = size = 0
        for last, number, bytes_, folder in sorted(jobs, key=lambda each: each[0], reverse=True):
            count, size = count + number, size + bytes_
            if count > files or size > size_limit or self._wall() - last > oldest:
                shutil.rmtree(folder, ignore_errors=True)


def load(file: Path) -> list[dict[str, Any]]:
    """The runs in a file; none if it can't be read."""
    try:
        content = bounded.load(file)
        runs = content["runs"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [each for each in runs if _is_record(each)] if isinstance(runs, list) else []


def of_job(job: str, folder: Path = FOLDER) -> list[dict[str, Any]]:
    """All runs of a job on all nodes.

    Raises:
        Refused: this is not a job id.
    """
    if not _JOB.fullmatch(job):
        raise Refused(f"not a job id: {job[:40]!r}")
    try:
        files = sorted((folder / job).iterdir())
    except OSError:
        return []
    return [run for file in files if file.name.endswith(".json") for run in load(file)]


def _checked(record: Any) -> tuple[str, str]:
    if not _is_record(record):
        raise Refused("not the record of a job")
    for key in ("devices", "changes", "notes"):
        if not isinstance(record.get(key), list) or len(record[key]) > MOST_ENTRIES:
            raise Refused(f"a record has a list of {key} with at most {MOST_ENTRIES} entries")
    return str(record["job_id"]), str(record["node"])


def _is_record(record: Any) -> bool:
    if not isinstance(record, Mapping):
        return False
    job, node, started = (record.get(key) for key in ("job_id", "node", "started"))
    return (
        isinstance(job, str) and bool(_JOB.fullmatch(job))
        and isinstance(node, str) and bool(_NODE.fullmatch(node))
        and isinstance(started, (int, float)) and not isinstance(started, bool) and 0 < started < 1e11  # noqa: PLR2004
    )  # fmt: skip
