"""Carries out what the policy decides about jobs: each act once for each hang, also after a restart.

What is about to be done is on the disk before Slurm gets it. A process that is killed between the two loses at most the
line in the job's output. A requeue or a cancellation is done in a later pass, if the job still hangs then: Slurm brings
the line to the job after `scontrol notify` has ended, and a job that has ended takes none.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable

from gpucluster.controller.admin_log import to_stderr
from gpucluster.controller.reactions import policy
from gpucluster.controller.reactions.jobs import JobControl
from gpucluster.controller.reactions.policy import Act, ReactionKind, ReactionRecord, Remark, WatchedJob
from gpucluster.node_agent import bounded
from gpucluster.node_agent.durable_file import replace as replace_file
from gpucluster.node_agent.errors import AgentError, Failed
from gpucluster.node_agent.watch.judge import JobActivity
from gpucluster.node_agent.watch.message import ReportedJob

FILE = "reactions.json"
#: Lines in outputs of jobs begin so.
_BEGINNING = "gpucluster: "
_LARGEST = 8 << 20
#: Seconds after which a record that asks for nothing is forgotten, and how many are kept.
_OLDEST_S, _MOST = 7 * 86400.0, 10_000
_DONE = {ReactionKind.REQUEUE: "requeued", ReactionKind.CANCEL: "cancelled"}
#: Passes in which an act is tried that Slurm does not do.
_TRIES = 3
#: What Slurm answers to a requeue that the job does not allow (Requeue=0). Another try does not help.
_NOT_ALLOWED = "disabled"


class Reactions:
    """What follows from the reports of watchers.

    Args:
        folder: with the records, the service's own.
        clock: seconds, only forwards; wall: seconds since 1970.
        say: where lines for the administrator go.
    """

    def __init__(
        self,
        folder: Path,
        jobs: JobControl,
        settings: policy.ReactionSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._file, self._jobs, self._settings = folder / FILE, jobs, settings
        self._clock, self._wall, self._say = clock, wall, say or to_stderr
        self._lock = threading.Lock()
        self._heard: dict[str, dict[str, Remark]] = {}
        self._failed: dict[str, str] = {}

    def hear(self, node: str, reports: Sequence[ReportedJob]) -> None:
        """Take the report of a node. It replaces the node's report before."""
        now = self._clock()
        with self._lock:
            before = self._heard.get(node, {})
            self._heard[node] = {each.job_id: _remark(node, each, before.get(each.job_id), now) for each in reports}

    def tick(self, node_of: Callable[[str], str] = lambda _address: "") -> None:
        """One pass.

        Args:
            node_of: the node with an address; "" where none has it.

        Raises:
            Failed: Slurm does not answer.
            OSError: the records can't be read or written.
        """
        now = self._clock()
        with self._lock:
            self._heard = {
                node: jobs
                for node, jobs in self._heard.items()
                if any(now - each.at <= policy.FRESH_S for each in jobs.values())
            }
            by_job: dict[str, list[Remark]] = {}
            for jobs in self._heard.values():
                for number, each in jobs.items():
                    by_job.setdefault(number, []).append(each)
        records = self._load()
        numbers = {
            number
            for number, remarks in by_job.items()
            if number in records or any(each.state is JobActivity.HUNG or each.idle_gpus for each in remarks)
        } | {number for number, record in records.items() if record.pending}
        if not numbers:
            return
        job_by_number = self._jobs.look(numbers)
        for number in sorted(numbers):
            job = job_by_number.get(number)
            remarks = [_resolved(each, node_of) for each in by_job.get(number, ())]
            try:
                if job is None:
                    self._forget(number, records)
                else:
                    self._one(job, remarks, records, now)
            except AgentError as error:
                # The other jobs have their turn.
                self._say_once(number, f"job {number}: {error.message}")

    def _forget(self, number: str, records: dict[str, ReactionRecord]) -> None:
        """The job is gone. The lines about it stay for its owner."""
        record = records.get(number)
        if record is None or not record.told:
            self._save(number, None, records)
        elif record.pending:
            self._save(number, replace(record, pending=False), records)

    def _one(self, job: WatchedJob, remarks: Sequence[Remark], records: dict[str, ReactionRecord], now: float) -> None:
        before = records.get(job.id)
        record = policy.after(job, before, remarks, now)
        if before is not None and record != before:
            if before.pending and not record.pending and record.run == before.run:
                text = f"gpucluster: job {job.name} goes on: it is not {_DONE[before.kind]}."
                record = record.telling(self._line(text))
                self._save(job.id, record, records)
                self._tell(job, text)
            else:
                self._save(job.id, record, records)
        if record.pending:
            self._go_on(job, remarks, record, records, now)
            return
        act = policy.decide(job, remarks, record, self._settings, now)
        if act is not None:
            self._do(job, record, act, records)

    def _do(self, job: WatchedJob, record: ReactionRecord, act: Act, records: dict[str, ReactionRecord]) -> None:
        record = replace(
            record,
            run=job.run,
            hang_told=record.hang_told or act.of_hang,
            idle_told=record.idle_told or not act.of_hang,
            kind=act.kind,
            pending=act.kind is not ReactionKind.NOTHING,
            exclude=act.exclude,
            requeues=record.requeues + (act.kind is ReactionKind.REQUEUE),
            tries=0,
            wall=self._wall(),
        ).telling(self._line(act.text))
        self._save(job.id, record, records)
        self._tell(job, act.text)

    def _line(self, text: str) -> str:
        when = datetime.fromtimestamp(self._wall(), timezone.utc)
        return f"{when:%Y-%m-%d %H:%M:%S} UTC {text[len(_BEGINNING) :] if text.startswith(_BEGINNING) else text}"

    def _tell(self, job: WatchedJob, text: str) -> None:
        """Say it to the administrator, and in the job's output."""
        self._say(text)
        try:
            self._jobs.notify(job, text)
        except Failed as error:
            self._say(f"job {job.name}: its output has no line about this: {error.message}")

    def _carry_out(self, job: WatchedJob, record: ReactionRecord, records: dict[str, ReactionRecord]) -> None:
        try:
            if record.kind is ReactionKind.REQUEUE:
                self._jobs.requeue(job, hold=bool(record.exclude))
            else:
                self._jobs.cancel(job)
        except Failed as error:
            record = replace(record, tries=record.tries + 1)
            if record.tries >= _TRIES or _NOT_ALLOWED in error.message:
                requeues = record.requeues - (record.kind is ReactionKind.REQUEUE)
                what = "requeue" if record.kind is ReactionKind.REQUEUE else "cancel"
                text = f"gpucluster: Slurm does not {what} job {job.name}. It stays as it is. {error.message}"
                record = replace(record, pending=False, exclude="", requeues=requeues).telling(self._line(text))
                self._save(job.id, record, records)
                self._tell(job, text)
            else:
                self._save(job.id, record, records)
                self._say(f"job {job.name}: {record.kind.value} is tried again: {error.message}")
            return
        self._say(f"job {job.name}: {record.kind.value} is done")
        # One that is held is released in a later pass, when its nodes are free.
        self._save(job.id, replace(record, pending=bool(record.exclude), tries=0), records)

    def _go_on(
        self,
        job: WatchedJob,
        remarks: Sequence[Remark],
        record: ReactionRecord,
        records: dict[str, ReactionRecord],
        now: float,
    ) -> None:
        """What an earlier pass has left."""
        if job.state == "RUNNING":
            # A clock that was set back does not hold it up.
            told_now = 0 <= self._wall() - record.wall < policy.NOTICE_S
            if policy.still(job, remarks, now) and not told_now:
                self._carry_out(job, record, records)
        elif job.held and record.exclude:
            self._let_run(job, record, records)
        elif job.state == "PENDING" or not record.exclude:
            # It was done before a restart, or an administrator has decided.
            self._save(job.id, replace(record, pending=False), records)

    def _let_run(self, job: WatchedJob, record: ReactionRecord, records: dict[str, ReactionRecord]) -> None:
        try:
            self._jobs.exclude(job, record.exclude)
            self._say(f"job {job.name}: it avoids {record.exclude}")
        except Failed as error:
            self._say(f"job {job.name}: {record.exclude} is not excluded: {error.message}")
            record = replace(record, tries=record.tries + 1)
            if record.tries < _TRIES:
                self._save(job.id, record, records)
                return
        # If this fails, the next pass does both again.
        self._jobs.release(job)
        self._save(job.id, replace(record, pending=False), records)

    # --- records -----

    def _load(self) -> dict[str, ReactionRecord]:
        try:
            return _records(self._file)
        except ValueError as error:
            self._say_once("", f"{self._file} can't be read, and what was done to jobs is not known: {error}")
            return {}

    def _save(self, number: str, record: ReactionRecord | None, records: dict[str, ReactionRecord]) -> None:
        """Write down a record; None: the job is gone."""
        self._failed.pop(number, None)
        if record is None and records.pop(number, None) is None:
            return
        if record is not None:
            records[number] = record
        since = self._wall() - _OLDEST_S
        for old in [key for key, each in records.items() if each.wall < since and not each.pending and key != number]:
            del records[old]
        kept = dict(sorted(records.items(), key=lambda each: each[1].wall)[-_MOST:])
        replace_file(self._file, json.dumps({key: _to_dict(each) for key, each in kept.items()}))

    def _say_once(self, about: str, words: str) -> None:
        if self._failed.get(about) != words:
            self._failed[about] = words
            self._say(words)


def messages_of_job(folder: Path, number: str) -> list[str]:
    """The messages and the actions about a job, each line with its time: for its owner. Empty where nothing was, or it
    is not known.

    Args:
        folder: of the service.
    """
    try:
        record = _records(folder / FILE).get(number)
    except (OSError, ValueError):
        return []
    return list(record.told) if record is not None else []


def _records(file: Path) -> dict[str, ReactionRecord]:
    """
    Raises:
        ValueError: the file is none of ours.
        OSError: it can't be read.
    """
    try:
        raw = bounded.load(file, _LARGEST)
    except FileNotFoundError:
        return {}
    if not isinstance(raw, dict):
        raise ValueError("it has no records")
    return {number: record for number, each in raw.items() if (record := _record(each)) is not None}


def _remark(node: str, report: ReportedJob, before: Remark | None, now: float) -> Remark:
    known = before is not None and before.state is report.state and now - before.at <= policy.FRESH_S
    where = f", process {report.pid} on {report.host or 'an unknown host'}" if report.pid else ""
    return Remark(
        node, report.state, now - report.age, before.first if before is not None and known else now, now, report.words,
        f"rank {report.rank}{where}" if report.rank else "", report.host, report.idle, report.idle_s,
        report.stacks,
    )  # fmt: skip


def _resolved(remark: Remark, node_of: Callable[[str], str]) -> Remark:
    """With the name of the node where the watcher of another node knows only its address."""
    name = node_of(remark.suspect) if remark.suspect and remark.suspect != remark.node else ""
    return replace(remark, suspect=name) if name else remark


def _to_dict(record: ReactionRecord) -> dict[str, Any]:
    return {**vars(record), "kind": record.kind.value}


def _record(raw: Any) -> ReactionRecord | None:
    if not isinstance(raw, Mapping):
        return None
    try:
        lines = tuple(str(line) for line in raw.get("told") or ())
        return ReactionRecord(**{**raw, "kind": ReactionKind(raw["kind"]), "told": lines})
    except (KeyError, TypeError, ValueError):
        return None
