"""What must hold after a disturbance, judged from what squeue and sacct have printed. Pure.

Kinds of jobs: `RUNNING` ones run until the harness ends each of them, `WAITING` ones ask for what is never free,
`SHORT` ones end at once, and `CANCELLED` ones have waited and were cancelled. Each job has an exit code of its own.

slurmctld writes its queue up to five seconds after a change (docs/how-to/controller.md). What was submitted, or has
started or ended, in the seconds before a host vanishes is not judged but counted: `of_last_seconds`. Slurm may lose it,
or run it again: a job that has ended is missing from its node, and is requeued. A controller that is stopped writes
everything, so there nothing is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

#: The name of all jobs: the number of one that is lost is given to the next one, which may be a check of gpucluster's.
JOB_NAME = "chaos"
#: Print what `parse_queue` and `parse_rows` read. The numbers of jobs follow `-j`: without them, a job is left out that
#: waits for another one. `-D`: also the rows of earlier starts of a job.
SQUEUE = f"squeue -h -a -n {JOB_NAME} -o '%A|%T'"
SACCT = f"SLURM_TIME_FORMAT=%s sacct -a -D -X -n -P --name={JOB_NAME} -o JobIDRaw,State,ExitCode,Submit,Start,End -j"
#: Of a job's own row, at most so much before the time that its sbatch was started at.
_CLOCK_S = 2.0
#: Seconds in which slurmctld may not have saved a change: SAVE_MAX_WAIT is 5 (its src/slurmctld/state_save.c), and a
#: busy machine needs some more.
UNSAVED_S = 15.0
#: States of jobs that are not over.
_ALIVE = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED"})


class Kind(StrEnum):
    """How a job ends."""

    SHORT = "short"
    RUNNING = "running"
    WAITING = "waiting"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Job:
    """A job that sbatch has accepted.

    Args:
        exit_code: what its script ends with.
        submitted: seconds since 1970, by the clock of the hosts.
    """

    id: str
    kind: Kind
    exit_code: int = 0
    submitted: float = 0.0


@dataclass(frozen=True)
class Row:
    """A row of the accounting: one start of a job.

    Args:
        state: without what follows it, such as the user who has cancelled the job.
        exit_code: as sacct prints it: the script's, a colon, the signal's.
        submit: seconds since 1970.
        start, end: as sacct prints them; `Unknown` before.
    """

    job: str
    state: str
    exit_code: str = "0:0"
    submit: float = 0.0
    start: str = "Unknown"
    end: str = "Unknown"

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.state not in _ALIVE


def parse_jobs(text: str, kind: Kind) -> list[Job]:
    """Jobs from lines of the form `ID|EXIT CODE|SECONDS`; a line that was cut off is left out."""
    lines = [line.strip().split("|") for line in text.splitlines()]
    whole = [words for words in lines if len(words) == 3 and all(words)]
    return [Job(words[0], kind, int(words[1]), float(words[2])) for words in whole]


def parse_queue(text: str) -> dict[str, str]:
    """The state of each job that slurmctld knows, from the output of `SQUEUE`."""
    return dict(line.split("|", 1) for line in text.split())


def parse_rows(text: str) -> list[Row]:
    """The accounting, from the output of `SACCT`."""
    found = []
    for line in text.splitlines():
        job, state, exit_code, submit, start, end = line.strip().split("|")
        found.append(Row(job, state.split()[0], exit_code, float(submit), start, end))
    return found


def settled(jobs: Iterable[Job], gone: float | None, ran: Mapping[str, float]) -> list[Job]:
    """The jobs that slurmctld had saved when its host vanished: no change of them is from about that time.

    Args:
        gone: when that was, in seconds since 1970; None for a controller that was stopped.
        ran: when the script of each short job ran, by the job; one that has not run yet is not there.
    """
    return [
        job
        for job in jobs
        if gone is None or (job.submitted < gone - UNSAVED_S and job.id in ran and abs(ran[job.id] - gone) > UNSAVED_S)
    ]


def violations(
    jobs: Iterable[Job], queue: Mapping[str, str], rows: Sequence[Row], *, ended: Collection[str]
) -> list[str]:
    """What is wrong with these jobs, in words; empty if everything holds.

    Args:
        ended: the jobs of the kind RUNNING whose end was asked for.
    """
    by_job: dict[str, list[Row]] = {}
    for row in rows:
        by_job.setdefault(row.job, []).append(row)
    return [
        f"job {job.id} ({job.kind}): {wrong}"
        for job in jobs
        for wrong in _wrong(job, queue.get(job.id, ""), _own(job, by_job.get(job.id, [])), job.id in ended)
    ]


def _own(job: Job, rows: Iterable[Row]) -> list[Row]:
    """The rows of a job without those of an earlier one of its number, which was lost: slurmctld gives it again."""
    return [row for row in rows if row.submit >= job.submitted - _CLOCK_S]


def _wrong(job: Job, state: str, rows: Sequence[Row], is_ended: bool) -> Iterator[str]:
    if not state and not rows:
        yield "neither squeue nor sacct knows it"
        return
    if len(rows) != 1:
        yield f"{len(rows)} rows in the accounting: {[(row.state, row.start) for row in rows]}"
        return
    (row,) = rows
    if row.is_over and state in _ALIVE - {"COMPLETING"}:
        yield f"{row.state} in the accounting, and {state} in the queue"
    if not row.is_over and not state:
        yield f"{row.state} in the accounting, and the queue does not have it"
    if job.kind is Kind.WAITING and (state, row.is_over) != ("PENDING", False):
        yield f"it does not wait any more: {state or row.state}"
    elif job.kind is Kind.RUNNING and not is_ended and (state, row.state) != ("RUNNING", "RUNNING"):
        yield f"it does not run any more: {state or 'not in the queue'}, {row.state} in the accounting"
    elif job.kind in (Kind.SHORT, Kind.CANCELLED) or (job.kind is Kind.RUNNING and is_ended):
        yield from _wrong_end(job, row)


def _wrong_end(job: Job, row: Row) -> Iterator[str]:
    expected = ("FAILED" if job.exit_code else "COMPLETED", f"{job.exit_code}:0")
    if job.kind is Kind.CANCELLED:
        expected = ("CANCELLED", "0:0")
    if (row.state, row.exit_code) != expected:
        yield f"{row.state} {row.exit_code}, and its own end is {expected[0]} {expected[1]}"


def lost_rows(before: Iterable[Row], after: Iterable[Row]) -> list[str]:
    """The rows of jobs that were over before a disturbance, and that are gone or changed after it."""
    present = set(after)
    return [f"accounting: the row {row} is not there any more" for row in before if row.is_over and row not in present]


def parse_starts(text: str) -> list[tuple[str, float]]:
    """Each start of a script, from lines of the form `ID SECONDS`; one that is still being written is left out."""
    lines = [line.split() for line in text.splitlines()]
    return [(words[0], float(words[1])) for words in lines if len(words) == 2]


def doubled(starts: Iterable[tuple[str, float]]) -> list[str]:
    """The jobs whose script has run more than once."""
    counts = Counter(job for job, _ in starts)
    return sorted((job for job, count in counts.items() if count > 1), key=int)


def of_last_seconds(jobs: Iterable[Job], queue: Mapping[str, str], rows: Sequence[Row]) -> dict[str, list[str]]:
    """How jobs fared that slurmctld may not have saved: which are kept, lost, or have several rows.

    Args:
        jobs: those that `settled` leaves out.
    """
    found: dict[str, list[str]] = {"kept": [], "lost": [], "left in the accounting": [], "with several rows": []}
    for job in jobs:
        own = _own(job, (row for row in rows if row.job == job.id))
        if len(own) > 1:
            found["with several rows"].append(job.id)
        elif job.id not in queue and not own:
            found["lost"].append(job.id)
        elif job.id not in queue and not own[0].is_over:
            found["left in the accounting"].append(job.id)
        else:
            found["kept"].append(job.id)
    return found


def named_as_lost(messages: Iterable[str]) -> set[str]:
    """The jobs that a command has reported as lost."""
    found = (re.search(r"jobs are lost: ([0-9, ]+)", message) for message in messages)
    return {job for match in found if match for job in match.group(1).replace(",", " ").split()}
