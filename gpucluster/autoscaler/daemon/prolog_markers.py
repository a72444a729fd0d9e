"""Marker files for Slurm's prolog: one for each elastic node in service and for each job that lost its nodes."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpucluster.autoscaler.decide.types import Job, Node
from gpucluster.slurm.states import JobState

UP_DIRECTORY = Path("/run/gpucluster-autoscaler/up")
# Slurm runs a requeued job again only after its prolog has ended, and does not end the prolog itself (measured).
_CLEANING = "Cleaning"


def publish(directory: Path, nodes: Mapping[str, Node], jobs: Mapping[str, Job]) -> None:
    """Bring the files of `directory` up to date with what Slurm last reported (prolog.sh reads them).

    `<node>` is in service; `job-<id>` was requeued or cancelled, and its prolog delays it.

    Raises:
        OSError: the files can't be written.
    """
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    present = set(os.listdir(directory))
    names = {name for name, node in nodes.items() if node.in_service}
    names |= {f"job-{job.id}" for job in jobs.values() if job.state == JobState.COMPLETING or job.reason == _CLEANING}
    # One system call for each file. Each releases Python's lock, and up to 32 threads that launch wait for it.
    for name in names - present:
        with suppress(FileExistsError):
            os.mknod(directory / name, 0o644 | stat.S_IFREG)
    for name in present - names:
        with suppress(FileNotFoundError):
            os.unlink(directory / name)
