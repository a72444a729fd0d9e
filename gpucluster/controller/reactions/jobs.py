"""Slurm's commands about jobs that are hung or idle: what they are, a line in their output, requeue and cancel.

As Slurm 24.11.5 answers: `scontrol notify` writes the line into the file with the job's errors, as
`slurmstepd-gpu-1: error: ...`, and refuses jobs that do not run. A requeue of a job with Requeue=0 is refused
("Requested operation is presently disabled"), and so is a change of ExcNodeList while the job runs ("no longer pending
execution"). A job is therefore held for the moment between its requeue and that change.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from typing import Protocol

from gpucluster.controller.health.slurm import ask, expanded, moment
from gpucluster.controller.reactions.policy import WatchedJob
from gpucluster.node_agent.errors import Failed

# State, run, names and lists; the comment is last, because it may have any character in it.
_FIELDS = ("%A", "%i", "%T", "%S", "%P", "%Q", "%N", "%n", "%x", "%k")
#: Jobs in one question.
_MOST = 200


class JobControl(Protocol):
    """What is needed of Slurm. Each call raises Failed where Slurm does not do it."""

    def look(self, numbers: Collection[str]) -> dict[str, WatchedJob]:
        """The jobs with these numbers. One that has ended may be missing."""

    def notify(self, job: WatchedJob, text: str) -> None:
        """Write a line into the job's output."""

    def requeue(self, job: WatchedJob, *, hold: bool) -> None:
        """Requeue the job: this run ends, and it is held until it is released."""

    def exclude(self, job: WatchedJob, node: str) -> None:
        """Exclude a node for a job that waits, beside those that it excludes already."""

    def release(self, job: WatchedJob) -> None:
        """Release a held job."""

    def cancel(self, job: WatchedJob) -> None:
        """End it."""


class SlurmJobs:
    """The real one."""

    def look(self, numbers: Collection[str]) -> dict[str, WatchedJob]:
        """The jobs with these numbers. One that has ended may be missing."""
        jobs: dict[str, WatchedJob] = {}
        # One after the other: squeue refuses a list in which one number is unknown, and there are few.
        partitions: dict[str, frozenset[str]] = {}
        for number in sorted(numbers)[:_MOST]:
            job = self._one(number, partitions)
            if job is not None:
                jobs[number] = job
        return jobs

    def _one(self, number: str, partitions: dict[str, frozenset[str]]) -> WatchedJob | None:
        # A comment can have line breaks: a mark that its author could not know begins each job.
        mark = secrets.token_hex(8)
        try:
            # Whatever its state: one that is not shown has left Slurm's memory, and is forgotten here.
            text = ask(
                "squeue", "--noheader", "--states=all", f"--jobs={number}", f"--format={mark}{'|'.join(_FIELDS)}"
            )
        except Failed as error:
            if "Invalid job id" in error.message:
                return None
            raise
        for part in text.split(mark)[1:]:
            values = part.rstrip("\n").split("|", len(_FIELDS) - 1)
            # The number of an array stands for all of its tasks: one of them has it as its own.
            if len(values) == len(_FIELDS) and values[0] == number:
                return self._job(values, partitions)
        return None

    def _job(self, values: list[str], partitions: dict[str, frozenset[str]]) -> WatchedJob:
        number, name, state, run, partition, priority, nodes, required, excluded, comment = values
        own = expanded(nodes, ask)
        avoided = expanded(excluded, ask)
        # squeue writes (null) for an empty comment.
        words = "" if comment == "(null)" else comment
        others: frozenset[str] = frozenset()
        if state == "RUNNING":
            if partition not in partitions:
                partitions[partition] = _of_partition(partition)
            others = partitions[partition] - own - avoided
        return WatchedJob(
            number, name, state, run, partition, own, expanded(required, ask), avoided, others, words,
            state == "PENDING" and priority == "0", _age(state, run),
        )  # fmt: skip

    def notify(self, job: WatchedJob, text: str) -> None:
        """Write a line into the job's output."""
        ask("scontrol", "notify", job.id, text)

    def requeue(self, job: WatchedJob, *, hold: bool) -> None:
        """Requeue the job: this run ends, and it is held until it is released."""
        ask("scontrol", "requeuehold" if hold else "requeue", job.name)

    def exclude(self, job: WatchedJob, node: str) -> None:
        """Exclude a node for a job that waits, beside those that it excludes already."""
        names = ",".join(sorted(job.excluded | {node}))
        ask("scontrol", "update", f"jobid={job.name}", f"excnodelist={names}")

    def release(self, job: WatchedJob) -> None:
        """Release a held job."""
        ask("scontrol", "release", job.name)

    def cancel(self, job: WatchedJob) -> None:
        """End it."""
        ask("scancel", job.name)


def _age(state: str, run: str) -> float:
    """Seconds since a run began, by the clock of this host: slurmctld is on it, too."""
    began = moment(run) if state == "RUNNING" else None
    return max(0.0, time.time() - (began or 0.0))


def _of_partition(partition: str) -> frozenset[str]:
    return frozenset(ask("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N").split())
