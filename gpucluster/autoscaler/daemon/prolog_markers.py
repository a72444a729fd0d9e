"""Which elastic nodes are in service, and which jobs wait for them no more, for Slurm's prolog: one empty file each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpucluster.autoscaler.decide.world import Job, Node

UP_DIRECTORY = Path("/run/gpucluster-autoscaler/up")
# Slurm runs a job that it has taken back only after its prolog has ended, which it does not end itself (measured).
_CLEANING = "Cleaning"


def publish(directory: Path, nodes: Mapping[str, Node], jobs: Mapping[str, Job]) -> None:
    """Make the files of `directory` say what Slurm last said (see prolog.sh). Raises OSError if they can't be written.

    `<node>` is in service; `job-<id>` was requeued or cancelled, and its prolog holds it up.
    """
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    there = {file.name for file in directory.iterdir()}
    names = {name for name, node in nodes.items() if node.in_service}
    names |= {f"job-{job.id}" for job in jobs.values() if job.state == "COMPLETING" or job.reason == _CLEANING}
    for name in names - there:
        (directory / name).touch()
    for name in there - names:
        (directory / name).unlink(missing_ok=True)
