"""Marker files for Slurm's prolog: one for each elastic node in service and for each job that lost its nodes."""

from __future__ import annotations

from collections.abc import Mapping
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
    present = {file.name for file in directory.iterdir()}
    names = {name for name, node in nodes.items() if node.in_service}
    names |= {f"job-{job.id}" for job in jobs.values() if job.state == JobState.COMPLETING or job.reason == _CLEANING}
    for name in names - present:
        (directory / name).touch()
    for name in present - names:
        (directory / name).unlink(missing_ok=True)
