"""Carries out what `policy` decides, within the health service, and keeps what must survive a restart.

What was done is written down after it was done: a process that is killed between the two repeats it. A reservation has
its name from the event, so that it is not made twice; at worst the owner of a job reads the same line twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from gpucluster.controller.admin_log import to_stderr
from gpucluster.controller.health.policy import SchedulerNode
from gpucluster.controller.maintenance import policy
from gpucluster.controller.maintenance.events import EVENTS, FOLDER, OPEN, REQUESTS, EventList, read_requests
from gpucluster.controller.maintenance.policy import (
    BeginEarly,
    Delete,
    EarlyPhase,
    EarlyRecord,
    MaintenanceAct,
    MaintenanceMemory,
    MaintenanceSettings,
    Move,
    Reserve,
    Tell,
    ToldJob,
)
from gpucluster.controller.maintenance.slurm import MaintenanceScheduler, uses
from gpucluster.node_agent import bounded
from gpucluster.node_agent.durable_file import replace
from gpucluster.node_agent.errors import AgentError

#: In the folder of the health service: what earlier passes did, and what the last one found.
MEMORY, STATUS = "maintenance.json", "maintenance-status.json"
_LARGEST = 16 << 20
#: Seconds between two passes; each asks Slurm three questions.
PASS_S = 60.0
#: Seconds after which the same line is said again.
_AGAIN_S = 86400.0


class Maintenance:
    """What follows from the events.

    Args:
        folder: of the health service.
        nodes: all nodes of Slurm.
        exchange: the folder that the reader and this share.
        clock: seconds, only forwards; wall: seconds since 1970.
        say: where lines for the administrator go.
    """

    def __init__(
        self,
        folder: Path,
        slurm: MaintenanceScheduler,
        nodes: Callable[[], Mapping[str, SchedulerNode]],
        settings: MaintenanceSettings,
        *,
        exchange: Path = FOLDER,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._folder, self._slurm, self._nodes, self._settings = folder, slurm, nodes, settings
        self._events, self._requests = exchange / EVENTS, exchange / REQUESTS
        self._clock, self._wall, self._say = clock, wall, say or to_stderr
        self._next, self._seen = -PASS_S, 0
        self._said: dict[str, float] = {}

    def tick(self) -> None:
        """One pass, if it is time for one, or the reader has listed the events again.

        Raises:
            Failed: Slurm does not answer.
            OSError: the records can't be read or written.
        """
        changed = self._changed_at()
        if changed != self._seen or self._clock() >= self._next:
            self._seen, self._next = changed, self._clock() + PASS_S
            self.run()

    def _changed_at(self) -> int:
        """When the list was written, in nanoseconds; 0 without one."""
        try:
            return self._events.stat().st_mtime_ns
        except OSError:
            return 0

    def run(self) -> None:
        """One pass. It raises what `tick` does."""
        listing = EventList.load(self._events)
        if listing is None:
            # What is reserved stays: nothing is known.
            return
        now = self._wall()
        memory = load_memory(self._folder)
        outcome = policy.decide(
            now, listing, self._slurm.reservations(), uses(self._nodes()), self._slurm.jobs(), memory, self._settings
        )
        for remark in outcome.remarks:
            self._say_once(remark, now)
        problems: dict[str, str] = {}
        for act in outcome.acts:
            try:
                self._do(act)
            except (AgentError, OSError) as error:
                # The others have their turn; the next pass tries it again.
                why = error.message if isinstance(error, AgentError) else str(error)
                problems[_subject(act)] = why
                self._say_once(f"{_subject(act)}: {why}", now)
        said = {each.job.id for each in outcome.acts if isinstance(each, Tell) and each.job.id not in problems}
        kept = _without_unsaid(outcome.memory, memory, said)
        replace(self._folder / MEMORY, json.dumps(_memory_to_dict(kept)))
        self._write_status(now, listing, outcome, problems)

    def _do(self, act: MaintenanceAct) -> None:
        if self._settings.shadow:
            self._say_once(f"would be done: {_words(act)}", self._wall())
            return
        if isinstance(act, Reserve):
            self._slurm.reserve(act)
        elif isinstance(act, Move):
            self._slurm.move(act)
        elif isinstance(act, Delete):
            self._slurm.delete(act.name)
        elif isinstance(act, Tell):
            self._slurm.notify(act.job.id, act.text)
        else:
            known = read_requests(self._requests)
            replace(self._requests, json.dumps({**known, act.event.id: act.start}), mode=0o644)
        self._say(_words(act))

    def _write_status(
        self, now: float, listing: EventList, outcome: policy.Outcome, problems: Mapping[str, str]
    ) -> None:
        rows = []
        for event in listing.events:
            name = policy.reservation_name(event.id)
            early = outcome.memory.early.get(event.id)
            rows.append(
                {
                    **event.to_dict(),
                    "end": event.end,
                    "interrupts": event.interrupts,
                    "jobs": [job.id for job in outcome.hit.get(event.id, ())],
                    "reservation": name if event.id in outcome.hit and name not in problems else "",
                    "problem": problems.get(name, ""),
                    "early": "" if early is None else f"{early.phase.value}{f': {early.why}' if early.why else ''}",
                }
            )
        content = {
            "at": now, "listed_at": listing.at, "problem": listing.problem, "events": rows,
            "remarks": list(outcome.remarks),
        }  # fmt: skip
        replace(self._folder / STATUS, json.dumps(content), durable=False)

    def _say_once(self, words: str, now: float) -> None:
        """Say it, unless it was said within a day."""
        self._said = {each: at for each, at in self._said.items() if now - at < _AGAIN_S}
        if words not in self._said:
            self._said[words] = now
            self._say(words)


def _without_unsaid(memory: MaintenanceMemory, before: MaintenanceMemory, said: set[str]) -> MaintenanceMemory:
    """What Slurm has not written into a job's output was not said."""
    told = {job: each for job, each in memory.told.items() if job in said or before.told.get(job) == each}
    told.update({job: each for job, each in before.told.items() if job not in told})
    return MaintenanceMemory(memory.missing, memory.early, told)


def status(folder: Path) -> dict[str, Any] | None:
    """What the last pass has found, for `health status`; None where there was no pass."""
    try:
        raw = bounded.load(folder / STATUS, _LARGEST)
    except (OSError, ValueError):
        return None
    return raw if isinstance(raw, dict) and isinstance(raw.get("events"), list) else None


def text_lines(content: Mapping[str, Any]) -> list[str]:
    """The status as lines: an event each, then what an administrator should know."""
    lines = []
    for row in content["events"]:
        if row["state"] not in OPEN:
            continue
        noun = "job" if len(row["jobs"]) == 1 else "jobs"
        jobs = f"; it would end {noun} {', '.join(row['jobs'])}" if row["jobs"] else ""
        reserved = f"; reservation {row['reservation']}" if row["reservation"] else ""
        problem = f"; not reserved: {row['problem']}" if row["problem"] else ""
        early = f"; earlier date: {row['early']}" if row["early"] else ""
        lines.append(
            f"maintenance of {row['host']}: {_time(row['start'])} to {_time(row['end'])}, {row['action']}, "
            f"{row['state']}{reserved}{problem}{early}{jobs}"
        )
    if content.get("problem"):
        listed = _time(content["listed_at"]) if content["listed_at"] else "never"
        lines.append(f"the events of maintenance can't be read (the last time: {listed}): {content['problem']}")
    return [*lines, *content["remarks"]]


def messages_of_job(folder: Path, number: str) -> list[str]:
    """What the owner of a job was told about maintenance."""
    told = load_memory(folder).told.get(number)
    return list(told.lines) if told is not None else []


def load_memory(folder: Path) -> MaintenanceMemory:
    """What earlier passes did. Nothing where the file is damaged: reservations have their names from the events."""
    try:
        raw = bounded.load(folder / MEMORY, _LARGEST)
        early = {
            str(id_): EarlyRecord(
                EarlyPhase(each["phase"]), float(each["window"]), float(each["at"]), str(each.get("why", ""))
            )
            for id_, each in raw["early"].items()
        }
        told = {
            str(job): ToldJob(
                float(each["window"]),
                bool(each["last"]),
                str(each["event"]),
                tuple(str(line) for line in each["lines"]),
            )
            for job, each in raw["told"].items()
        }
        missing = {str(name): float(since) for name, since in raw["missing"].items()}
        return MaintenanceMemory(missing, early, told)
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        return MaintenanceMemory()


def _memory_to_dict(memory: MaintenanceMemory) -> dict[str, Any]:
    return {
        "missing": dict(memory.missing),
        "early": {id_: {**vars(each), "phase": each.phase.value} for id_, each in memory.early.items()},
        "told": {job: {**vars(each), "lines": list(each.lines)} for job, each in memory.told.items()},
    }


def _subject(act: MaintenanceAct) -> str:
    if isinstance(act, Tell):
        return act.job.id
    if isinstance(act, BeginEarly):
        return act.event.id
    return act.name


def _words(act: MaintenanceAct) -> str:
    if isinstance(act, Reserve):
        return f"reservation {act.name} of {act.node} for maintenance, {_time(act.start)} to {_time(act.end)}"
    if isinstance(act, Move):
        start = f"{_time(act.start)} " if act.start is not None else ""
        return f"reservation {act.name} is moved: {start}to {_time(act.end)}"
    if isinstance(act, Delete):
        return f"reservation {act.name} is deleted: {act.why}"
    if isinstance(act, Tell):
        return act.text
    return f"maintenance of {act.event.host} is to begin at {_time(act.start)}: no job runs on it"


def _time(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(when))
