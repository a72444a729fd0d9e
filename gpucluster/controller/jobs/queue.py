"""What both schedulers have in common: a job as it is seen, and the operations of the queue that has it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gpucluster.controller.rules.slurm_jobs import ENDED
from gpucluster.node_agent.accounts import Account
from gpucluster.node_agent.errors import Refused


class SubmittedJob(NamedTuple):
    """A job.

    Args:
        uid: of its user.
        state: in Slurm's words, such as PENDING.
        reason: why it waits; "" if it does not.
        exit_status: of its script; None where it is not known.
        patience: seconds after which the wait for it ends: `reason` does not go away by itself. 0: for ever.
    """

    id: str
    uid: int
    state: str
    nodes: str
    reason: str
    folder: str
    exit_status: int | None = None
    patience: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.state in ENDED


class QueuedJob(NamedTuple):
    """A line of the list of jobs.

    Args:
        user: the name of its user.
        state: in Slurm's words; `reason`: why it waits, "" if it does not.
        running: for how long, as the scheduler prints it; "" if it does not print it.
        name: as its user wrote it.
    """

    id: str
    user: str
    state: str
    nodes: str
    reason: str
    running: str
    name: str

    def to_dict(self) -> dict[str, str]:
        """As a JSON object."""
        return dict(self._asdict())


class Checked(NamedTuple):
    """What a queue reports of a job before its submission.

    Args:
        refused: why it can never start; "" if it can.
        delayed: what only delays it.
        requirements: the state of each, in their order: {need, name, state, message}.
    """

    refused: str
    delayed: str
    requirements: list[dict[str, str]]


class Queue(Protocol):
    """A scheduler with jobs of users.

    Attributes:
        title: its name, as the beginning of a sentence.
        late_s: seconds in which it may not know a job that it has: its accounting is late.
    """

    title: str
    late_s: float

    def checked_id(self, job_id: object) -> str:
        """The name of a job. Raises Refused where it can't be one."""

    def check(self, owner: Account, share: Path, request: Mapping[str, Any]) -> Checked:
        """What is missing for a job. Raises AgentError where it is not known."""

    def submit(
        self, owner: Account, template: str, record: Mapping[str, Any], request: Mapping[str, Any]
    ) -> tuple[str, Path]:
        """Take a job of a user; returns its name and its folder. Raises AgentError; nothing is left then."""

    def look(self, job: str) -> SubmittedJob | None:
        """A job, also one that has ended; None if it is not known. Raises Failed without an answer."""

    def jobs(self) -> list[QueuedJob]:
        """The jobs that have not ended, the newest last. Raises Failed without an answer."""

    def cancel(self, seen: SubmittedJob) -> None:
        """End a job and whatever it has. Raises Failed without an answer."""

    def printed(self, seen: SubmittedJob) -> Path | None:
        """The file into which a job of any origin prints, as its user has named it; None if it is not known."""

    def unknown(self, job: str) -> Refused:
        """The error for a job that it does not know."""

    def foreign(self, seen: SubmittedJob, owner: Account) -> Refused:
        """The error for a job that was not submitted from here."""


def now() -> str:
    """The time as records have it: UTC, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
