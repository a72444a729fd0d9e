"""Slurm as a queue of jobs of users (`queue.Queue`)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucluster.controller.jobs import folder, requirements, slurm
from gpucluster.controller.jobs.queue import Checked, QueuedJob, SubmittedJob
from gpucluster.node_agent.accounts import Account
from gpucluster.node_agent.errors import AgentError, Failed, Refused

_MOST_WORDS = 50


class SlurmQueue:
    """The jobs of Slurm."""

    title = "Slurm"
    #: Its accounting may be late, and slurmctld may have just started.
    late_s = 60.0

    def checked_id(self, job_id: object) -> str:
        """The number of a job."""
        return slurm.checked_id(job_id)

    def check(self, owner: Account, share: Path, request: Mapping[str, Any]) -> Checked:
        """What is missing for a job on nodes of a partition."""
        refused, delayed = requirements.check_nodes(str(request.get("partition")), int(request.get("nodes", 1)))
        return Checked(refused, delayed, requirements.check(owner, share, request.get("requirements", [])))

    def submit(
        self, owner: Account, template: str, record: Mapping[str, Any], request: Mapping[str, Any]
    ) -> tuple[str, Path]:
        """Write the files of a job into a new folder, and submit its script from there."""
        files = folder.checked_files(request.get("files"))
        script, words = request.get("script"), request.get("words", [])
        if script not in files.texts:
            raise Refused("the script is not one of the files")
        if (
            not isinstance(words, list)
            or len(words) > _MOST_WORDS
            or not all(str(each).startswith("--") for each in words)
        ):
            raise Refused("these are not options of sbatch")
        home = Path(owner.home)
        place = folder.as_owner(owner, lambda: folder.make(home, template, files, record))
        try:
            job = slurm.submit(owner, place, str(script), [str(each) for each in words])
        except AgentError:
            with contextlib.suppress(Failed):
                folder.as_owner(owner, lambda: folder.remove(place))
            raise
        return job, place

    def look(self, job: str) -> SubmittedJob | None:
        """A job, also one that has ended."""
        return slurm.look(job)

    def jobs(self) -> list[QueuedJob]:
        """The jobs of all users that have not ended."""
        return slurm.jobs()

    def cancel(self, seen: SubmittedJob) -> None:
        """Cancel a job. One that has ended stays as it is."""
        if not seen.ended:
            slurm.cancel(seen.id)

    def printed(self, seen: SubmittedJob) -> Path | None:
        """The file of sbatch's --output."""
        return slurm.printed(seen.id)

    def unknown(self, job: str) -> Refused:
        """The error for a job that Slurm does not know."""
        return Refused(
            f"Slurm does not know a job {job}", "See: gpucluster ssh -- sacct --allusers --starttime=now-7days"
        )

    def foreign(self, seen: SubmittedJob, owner: Account) -> Refused:
        """The error for a job that was not submitted from here."""
        return Refused(
            f"job {seen.id} of {owner.name} is {seen.state}; it was not submitted by `gpucluster job submit`",
            f"See: gpucluster ssh -- sacct --jobs={seen.id}",
        )
