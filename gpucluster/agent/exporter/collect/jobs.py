"""The jobs that run on this node, as files that the prolog writes and the epilog removes."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpucluster.agent import rdma_files
from gpucluster.agent.exporter.collect import Place
from gpucluster.agent.exporter.exposition import sample

_END = ".json"
# A file is small: agent/record writes the counters beside it. A folder of thousands is no folder of running jobs.
_MOST_BYTES, _MOST_FILES, _MOST_GPUS = 64 * 1024, 1024, 64
_ID = re.compile(r"[0-9]+(_[0-9]+)?([+.][0-9]+)?")
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*([0-9]+)\s*$", re.MULTILINE)


class Gpu(NamedTuple):
    """A GPU as the tools name it.

    Attributes:
        number: NVIDIA's tools number GPUs in the order of their PCI addresses.
        uuid: its own name; empty if the driver does not say it.
    """

    number: str
    uuid: str


class Job(NamedTuple):
    """A running job.

    Attributes:
        job_id: its number.
        gpus: its GPUs as Slurm numbers them, or their names.
    """

    job_id: str
    gpus: list[str]


#: A file is the same as before: its number, size and time.
Stamp = tuple[int, int, int]


class Jobs:
    """Running jobs and their GPUs. A file is replaced and never changed, so each is read once."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._known: dict[str, tuple[Stamp, Job | None]] = {}

    def subjects(self) -> list[str]:
        """The folder."""
        return [self._place.jobs]

    def samples(self, subject: str) -> Iterator[str]:
        """The lines of all jobs. A file that is something else is counted."""
        files = [name for name in rdma_files.names(subject) if name.endswith(_END) and not name.startswith(".")]
        gpus = by_minor(f"{self._place.proc}/driver/nvidia/gpus") if files else {}
        unread = max(0, len(files) - _MOST_FILES)
        self._known = {name: self._known[name] for name in files[:_MOST_FILES] if name in self._known}
        for name in files[:_MOST_FILES]:
            job = self._job(subject, name)
            if job is None:
                unread += 1
                continue
            yield sample("gpucluster_job_node", 1, job_id=job.job_id)
            for gpu in job.gpus:
                found = gpus.get(gpu) or next((each for each in gpus.values() if each.uuid == gpu), Gpu(gpu, ""))
                yield sample("gpucluster_job_gpu", 1, job_id=job.job_id, gpu=found.number, uuid=found.uuid)
        yield sample("gpucluster_job_files_unread", unread)

    def _job(self, folder: str, name: str) -> Job | None:
        path = f"{folder}/{name}"
        try:
            state = os.lstat(path)
            stamp = (state.st_ino, state.st_size, state.st_mtime_ns)
            if name not in self._known or self._known[name][0] != stamp:
                self._known[name] = (stamp, read(path))
        except OSError:
            return None
        return self._known[name][1]

    def close(self) -> None:
        """Nothing was started."""


def read(path: str) -> Job | None:
    """The job of a file; None if it says nothing of one.

    Raises:
        OSError: it can't be read, or is a link.
    """
    # Whatever the folder has: a link leads nowhere, and a pipe without a writer does not block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, _MOST_BYTES + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)
    try:
        found: Any = json.loads(data) if len(data) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        return None
    job, gpus = (found.get("job_id"), found.get("gpus", [])) if isinstance(found, dict) else (None, None)
    if not isinstance(job, str) or not _ID.fullmatch(job) or not isinstance(gpus, list):
        return None
    return Job(job, list(dict.fromkeys(str(gpu) for gpu in gpus if isinstance(gpu, (str, int))))[:_MOST_GPUS])


def by_minor(folder: str) -> dict[str, Gpu]:
    """NVIDIA's GPUs by the number of their device files, which is how Slurm's gres.conf numbers them.

    Both numbers are the same on most hosts; on some boards they are not.
    """
    found: dict[str, Gpu] = {}
    for index, address in enumerate(rdma_files.names(folder)):
        try:
            text = rdma_files.text(f"{folder}/{address}/information")
        except OSError:
            continue
        minor, uuid = _MINOR.search(text), _UUID.search(text)
        if minor:
            found[minor[1]] = Gpu(str(index), uuid[1] if uuid else "")
    return found
