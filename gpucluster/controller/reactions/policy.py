"""Decides what follows from what the watchers of a job's nodes report. Pure.

A job is hung where one of its nodes reports it and none reports that it works. The controller acts only on what all
nodes of the job have reported lately, and since the first of them called it hung: a message that is lost or late ends
no job.

The owner's choice is a word in the job's comment, `gpucluster:on-hang=requeue`. Without one that of the partition
counts, and without that the cluster's. What Slurm does not allow is not done: it refuses itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from gpucluster.node_agent.watch.judge import JobActivity

#: Seconds after which nothing follows from a node's words. Its watcher repeats them every minute.
FRESH_S = 150.0
#: Seconds that Slurm has at least to bring a line to a job before something is done to it: `scontrol notify` ends when
#: slurmctld has the line, and a thread of slurmctld brings it to the node.
NOTICE_S = 5.0
#: How often one job is requeued: a program that hangs in the same place each time would never end.
MOST_REQUEUES = 3
#: In a job's comment, before the choice. Words are separated by spaces, commas or semicolons; others stay free.
KEY = "gpucluster:on-hang"
_SEPARATORS = re.compile(r"[\s,;]+")
#: Characters of what a watcher reports, in a line for the job's owner.
_LONGEST = 300
#: Nodes whose stacks a line names.
_MOST_STACKS = 4
#: Lines about a job that are kept.
_TOLD = 8


class Choice(str, Enum):
    """What follows a hang. A line in the job's output is always written."""

    TELL = "tell"
    REQUEUE = "requeue"
    CANCEL = "cancel"


@dataclass(frozen=True)
class ReactionSettings:
    """The administrator's settings.

    Args:
        on_hang: where neither the job nor its partition has another setting.
        partitions: by partition, where it differs.
        end_idle_s: seconds after which a job is ended that uses none of its GPUs; None: never.
        shadow: nothing is done, and the line states what would be done.
    """

    on_hang: Choice = Choice.TELL
    partitions: Mapping[str, Choice] = field(default_factory=dict)
    end_idle_s: float | None = None
    shadow: bool = False


@dataclass(frozen=True)
class Remark:
    """What the watcher of one node reports of a job. Times are seconds of the controller's clock, only forwards.

    Args:
        since: when the state began on the node.
        first: when the controller first heard of this state from this node.
        at: when it heard of it last.
        words: why, as text.
        place: the rank to look at; empty where it is not known.
        suspect: the node of that rank; empty where it is not known.
        idle_gpus: GPUs of the node that have no process for the watcher's limit.
        idle_s: seconds for which they have had none, summed over these GPUs.
        stacks: where the stacks of the job's processes on the node are, or why there are none.
    """

    node: str
    state: JobActivity
    since: float
    first: float
    at: float
    words: str = ""
    place: str = ""
    suspect: str = ""
    idle_gpus: int = 0
    idle_s: float = 0.0
    stacks: str = ""


@dataclass(frozen=True)
class WatchedJob:
    """A job as Slurm has it.

    Args:
        id: its number, one for each task of an array.
        name: how Slurm's commands name this task alone, `4711_3`.
        run: when this run of it has begun; another one after a requeue.
        age: seconds since then. What was heard before is of another run.
        required, excluded: nodes that its owner wants, and does not want.
        others: nodes of its partition that it may use and does not have now.
        held: it waits and is held.
    """

    id: str
    name: str
    state: str
    run: str
    partition: str
    nodes: frozenset[str]
    required: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    comment: str = ""
    held: bool = False
    age: float = float("inf")

    @property
    def heterogeneous(self) -> bool:
        """Whether it is a part of a job, which Slurm requeues only as a whole."""
        return "+" in self.name


class ReactionKind(str, Enum):
    """What is done to a job, beside the line in its output."""

    NOTHING = "nothing"
    REQUEUE = "requeue"
    CANCEL = "cancel"


@dataclass(frozen=True)
class ReactionRecord:
    """What was done to a job. It is written before each act.

    Args:
        run: of the job when it was written.
        hang_told, idle_told: the line about the present hang, or about its idle GPUs, was written.
        kind: what else was decided.
        pending: that is not done yet.
        exclude: the node that the job avoids after its requeue.
        requeues: how often it was requeued.
        tries: how often Slurm has not done it.
        wall: when it was written, seconds since 1970.
        told: the last lines about the job, of all its runs, each with the time in front.
    """

    run: str
    hang_told: bool = False
    idle_told: bool = False
    kind: ReactionKind = ReactionKind.NOTHING
    pending: bool = False
    exclude: str = ""
    requeues: int = 0
    tries: int = 0
    wall: float = 0.0
    told: tuple[str, ...] = ()

    def begun(self, run: str, *, idle_told: bool = False) -> ReactionRecord:
        """A record of a run or a hang of which nothing was done yet."""
        return ReactionRecord(run, idle_told=idle_told, requeues=self.requeues, wall=self.wall, told=self.told)

    def telling(self, line: str) -> ReactionRecord:
        """The record with one more line."""
        return replace(self, told=(*self.told, line)[-_TOLD:])


@dataclass(frozen=True)
class Act:
    """What is to be done now.

    Args:
        of_hang: because of a hang; else because of idle GPUs.
        text: the line for the job's output.
        kind: what else is done.
        exclude: the node that the job avoids after a requeue.
    """

    of_hang: bool
    text: str
    kind: ReactionKind = ReactionKind.NOTHING
    exclude: str = ""


def choice_of(job: WatchedJob, settings: ReactionSettings) -> tuple[Choice, str]:
    """What is to follow a hang of this job, and what is wrong with its owner's choice; that is "tell" then."""
    words = [word for word in _SEPARATORS.split(job.comment) if word == KEY or word.startswith(f"{KEY}=")]
    if not words:
        return settings.partitions.get(job.partition, settings.on_hang), ""
    values = sorted({word[len(KEY) + 1 :] for word in words})
    choices = [choice for choice in Choice if choice.value in values]
    if len(values) == len(choices) == 1:
        return choices[0], ""
    known = ", ".join(choice.value for choice in Choice)
    return Choice.TELL, f"its comment has {_cut(', '.join(words), 80)}, and one of {known} is known"


def goes_on(job: WatchedJob, remarks: Sequence[Remark], now: float) -> bool:
    """Whether a node has reported lately that the job works: an earlier hang is over."""
    return any(each.state in (JobActivity.WORKING, JobActivity.STRAGGLING) for each in _fresh(job, remarks, now))


def hang(job: WatchedJob, remarks: Sequence[Remark], now: float) -> Remark | None:
    """The words of a node about a hang of the whole job; None where it is not known to be hung."""
    own = _complete(job, remarks, now)
    hung = [each for each in own if each.state is JobActivity.HUNG]
    if not hung or any(each.state in (JobActivity.WORKING, JobActivity.STRAGGLING) for each in own):
        return None
    first = min(each.first for each in hung)
    if any(each.at < first for each in own):
        return None
    # One that names a rank is more useful.
    return min(hung, key=lambda each: (not each.suspect, not each.place, each.since, each.node))


def _complete(job: WatchedJob, remarks: Sequence[Remark], now: float) -> list[Remark]:
    """What each node of the job has reported lately; empty where one of them has reported nothing."""
    own = _fresh(job, remarks, now)
    return own if own and {each.node for each in own} == job.nodes else []


def _fresh(job: WatchedJob, remarks: Sequence[Remark], now: float) -> list[Remark]:
    """What nodes of the job have reported lately, and of this run."""
    return [each for each in remarks if each.node in job.nodes and now - each.at <= min(FRESH_S, job.age)]


def still(job: WatchedJob, remarks: Sequence[Remark], now: float) -> bool:
    """Whether what was decided earlier still holds: the job is hung, or idle on all of its nodes."""
    own = _complete(job, remarks, now)
    return hang(job, remarks, now) is not None or (bool(own) and all(each.state is JobActivity.IDLE for each in own))


def decide(
    job: WatchedJob, remarks: Sequence[Remark], record: ReactionRecord, settings: ReactionSettings, now: float
) -> Act | None:
    """What is to be done to a running job; None: nothing, or all of it was done."""
    if job.state != "RUNNING":
        return None
    remark = hang(job, remarks, now)
    if remark is not None:
        if record.hang_told:
            return None
        act = _of_hang(job, remark, record, settings, now)
        return replace(act, text=act.text + _stacks(_fresh(job, remarks, now)))
    return _of_idle(job, remarks, record, settings, now)


def _of_hang(job: WatchedJob, remark: Remark, record: ReactionRecord, settings: ReactionSettings, now: float) -> Act:
    choice, problem = choice_of(job, settings)
    place = f" ({remark.place})" if remark.place else ""
    why = f": {_cut(remark.words)}" if remark.words else ""
    beginning = f"gpucluster: job {job.name} is hung for {_minutes(now - remark.since)}{place}{why}."
    kind, what, exclude = ReactionKind.NOTHING, "", ""
    if problem:
        what = f" Nothing else follows: {problem}."
    elif choice is Choice.CANCEL:
        kind, what = ReactionKind.CANCEL, " It is cancelled (on-hang=cancel)."
    elif choice is Choice.REQUEUE and job.heterogeneous:
        what = " It is not requeued: it is a part of a heterogeneous job."
    elif choice is Choice.REQUEUE and record.requeues >= MOST_REQUEUES:
        what = f" It is not requeued: that was done {record.requeues} times already."
    elif choice is Choice.REQUEUE:
        kind, (exclude, where) = ReactionKind.REQUEUE, _excluded(job, remark.suspect)
        what = f" It is requeued (on-hang=requeue){where}."
    if settings.shadow and kind is not ReactionKind.NOTHING:
        return Act(of_hang=True, text=f"{beginning} Nothing else follows: the checks are in shadow mode.")
    return Act(of_hang=True, text=beginning + what, kind=kind, exclude=exclude)


def _stacks(remarks: Sequence[Remark]) -> str:
    """Where the stacks are, in the line. A path has no full stop behind it: it is copied."""
    own = sorted((each.node, each.stacks) for each in remarks if each.stacks)
    more = f"; and on {len(own) - _MOST_STACKS} more nodes" if own[_MOST_STACKS:] else ""
    return f" Stacks: {'; '.join(f'{node}: {_cut(text)}' for node, text in own[:_MOST_STACKS])}{more}" if own else ""


def _excluded(job: WatchedJob, suspect: str) -> tuple[str, str]:
    """The node that the job avoids from now on, and its words for the line."""
    if suspect not in job.nodes:
        return "", ""
    if suspect in job.required:
        return "", f"; {suspect} is not excluded, because the job asks for it"
    # A job that excludes too many nodes would wait forever.
    if len((job.others - {suspect}) | (job.nodes - {suspect})) < len(job.nodes):
        return "", f"; {suspect} is not excluded, because too few other nodes are left"
    return suspect, f" without {suspect}"


def _of_idle(
    job: WatchedJob, remarks: Sequence[Remark], record: ReactionRecord, settings: ReactionSettings, now: float
) -> Act | None:
    own = [each for each in _fresh(job, remarks, now) if each.idle_gpus]
    if not own:
        return None
    complete = _complete(job, remarks, now)
    whole = bool(complete) and all(each.state is JobActivity.IDLE for each in complete)
    count, waste = sum(each.idle_gpus for each in own), sum(each.idle_s for each in own) / 3600
    which = "all of its GPUs" if whole else f"{count} of its GPUs"
    text = f"gpucluster: job {job.name} uses no process on {which}, for {waste:.1f} GPU hours ({_names(own)})."
    # The last node that became idle counts.
    limit = settings.end_idle_s if whole and not settings.shadow else None
    if limit is not None and now - max(each.since for each in complete) >= limit:
        if record.kind is ReactionKind.CANCEL:
            return None
        return Act(
            of_hang=False,
            text=f"{text} It is cancelled: the limit here is {_minutes(limit)}.",
            kind=ReactionKind.CANCEL,
        )
    if record.idle_told:
        return None
    warning = "" if limit is None else f" Such jobs are cancelled here after {_minutes(limit)}."
    return Act(of_hang=False, text=f"{text}{warning}")


def after(job: WatchedJob, record: ReactionRecord | None, remarks: Sequence[Remark], now: float) -> ReactionRecord:
    """The record as it counts for this run of the job and its present hang."""
    if record is None:
        return ReactionRecord(job.run)
    if job.state != "RUNNING":
        return record
    if record.run != job.run:
        return record.begun(job.run)
    if record.hang_told and goes_on(job, remarks, now):
        record = _over(record)
    own = _fresh(job, remarks, now)
    if record.idle_told and own and not any(each.idle_gpus for each in own):
        if not record.hang_told:
            # With it goes an end for this reason that was not done.
            return record.begun(record.run)
        return replace(record, idle_told=False)
    return record


def _over(record: ReactionRecord) -> ReactionRecord:
    """After a hang from which the job has gone on: what was not done is not done later."""
    return record.begun(record.run, idle_told=record.idle_told)


def _names(remarks: Sequence[Remark]) -> str:
    names = sorted(each.node for each in remarks)
    more = f" and {len(names) - 4} more nodes" if len(names) > 4 else ""  # noqa: PLR2004 - a line stays readable
    return ", ".join(names[:4]) + more


def _minutes(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes} minute{'s' if minutes > 1 else ''}"


def _cut(words: str, longest: int = _LONGEST) -> str:
    return words if len(words) <= longest else words[: longest - 3] + "..."
