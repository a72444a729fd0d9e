"""The jobs that run on this node, as files that the prolog writes and the epilog removes."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpucluster.node_agent import rdma_files
from gpucluster.node_agent.exporter.collect import Place
from gpucluster.node_agent.exporter.exposition import sample
from gpucluster.node_agent.gpu_numbers import Numbers

_END = ".json"
# A file is small: node_agent/record writes the counters beside it. A folder of thousands is not a folder of running
# jobs.
_MOST_BYTES, _MOST_FILES, _MOST_GPUS = 64 * 1024, 1024, 64
_ID = re.compile(r"[0-9]+(_[0-9]+)?([+.][0-9]+)?")


class RunningJob(NamedTuple):
    """A running job.

    Attributes:
        job_id: its number.
        gpus: its GPUs as Slurm numbers them, or their names.
    """

    job_id: str
    gpus: list[str]


#: A file is the same as before: its number, size and time.
Stamp = tuple[int, int, int]


class JobCollector:
    """Running jobs and their GPUs. A file is replaced and never changed, so each is read once."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._known: dict[str, tuple[Stamp, RunningJob | None]] = {}

    def subjects(self) -> list[str]:
        """The folder."""
        return [self._place.jobs]

    def samples(self, subject: str) -> Iterator[str]:
        """The lines of all jobs. A file that is something else is counted."""
        files = [name for name in rdma_files.names(subject) if name.endswith(_END) and not name.startswith(".")]
        numbers: Numbers | None = None
        unread = max(0, len(files) - _MOST_FILES)
        self._known = {name: self._known[name] for name in files[:_MOST_FILES] if name in self._known}
        for name in files[:_MOST_FILES]:
            job = self._job(subject, name)
            if job is None:
                unread += 1
                continue
            yield sample("gpucluster_job_node", 1, job_id=job.job_id)
            if numbers is None and job.gpus:
                numbers = Numbers(self._place.proc, self._place.mig)
            for gpu in map(numbers.meaning, job.gpus) if numbers else ():
                # The figures of a whole GPU are not those of a job that has an instance of it.
                instance = {} if gpu.whole else {"gpu_instance": gpu.instance}
                yield sample("gpucluster_job_gpu", 1, job_id=job.job_id, gpu=gpu.number, uuid=gpu.uuid, **instance)
        yield sample("gpucluster_job_files_unread", unread)

    def _job(self, folder: str, name: str) -> RunningJob | None:
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


def read(path: str) -> RunningJob | None:
    """The job of a file; None if the file does not describe one.

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
        content: Any = json.loads(data) if len(data) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        return None
    job, gpus = (content.get("job_id"), content.get("gpus", [])) if isinstance(content, dict) else (None, None)
    if not isinstance(job, str) or not _ID.fullmatch(job) or not isinstance(gpus, list):
        return None
    return RunningJob(job, list(dict.fromkeys(str(gpu) for gpu in gpus if isinstance(gpu, (str, int))))[:_MOST_GPUS])
