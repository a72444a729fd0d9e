"""What follows from the events that Oracle announces: reservations, words to the owners of jobs, an earlier date. Pure.

The rules:

1.  Each event that takes a node away has a reservation of its own, from the beginning of its window to its end, so
    that Slurm starts no job that would run into it. It is moved with the event, lengthened while Oracle still works,
    and deleted when the event is done or cancelled, or has been in no list for `GONE_S`.
2.  A reservation that is not ours is never changed. Slurm lets ours overlap it, and a message names both.
3.  The owner of a job that would still run at that time is told so: when the event is announced, when it is moved, and
    an hour before it.
4.  Only if the operator has asked for it (`early`): a node without jobs gets its maintenance now, instead of at the
    announced time. It is reserved first; when it is still without jobs then, Oracle is asked to begin. No more nodes
    of a pool are away for this at once than failed checks may drain (`max_drained_percent`).

Times are seconds since 1970: Oracle's windows are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from typing import Optional, Union

from gpucluster.controller.maintenance.events import CANCELED, CONTROLLER, NODE, SCHEDULED, EventList, MaintenanceEvent

#: Reservations that begin so are ours. The rest is the end of the event's OCID, which is random.
PREFIX = "gpucluster-maintenance-"
_SUFFIX = 12
#: Seconds by which a time may differ before a reservation is moved for it, or a job's owner told again.
_SAME_S, _SAME_FOR_OWNERS_S = 60.0, 300.0
#: A maintenance that takes longer: when less is left of the reservation, it is lengthened by the second number.
_NEARLY_OVER_S, _LONGER_S = 900.0, 3600.0
#: Seconds for which an event may be in no list before its reservation is deleted.
GONE_S = 180.0
#: The list is older than this: nothing is deleted for what it lacks.
STALE_S = 3600.0
#: Seconds before a window in which owners are told once more.
LAST_WORD_S = 3600.0
#: Lines in outputs of jobs begin so.
_BEGINNING = "gpucluster: "
#: Lines of a job that are kept, and jobs.
_LINES, _MOST_JOBS = 8, 5000
#: An earlier date: only if there is more time than this, to how long ahead, how long the answer may take.
_EARLY_IF_S, EARLY_AHEAD_S, _EARLY_PATIENCE_S = 3600.0, 600.0, 1800.0


@dataclass(frozen=True)
class SlurmReservation:
    """A reservation as Slurm has it.

    Args:
        flags: the words of its Flags, without what Slurm adds by itself.
        users: who may use it.
    """

    name: str
    start: float
    end: float
    nodes: frozenset[str]
    flags: frozenset[str] = frozenset()
    users: str = ""

    @property
    def ours(self) -> bool:
        """It is for a maintenance."""
        return self.name.startswith(PREFIX)


@dataclass(frozen=True)
class RunningJob:
    """A job that has nodes.

    Args:
        end: when it ends at the latest; infinite without a limit.
    """

    id: str
    user: str
    nodes: frozenset[str]
    end: float


@dataclass(frozen=True)
class NodeUse:
    """What counts of a node.

    Args:
        pool: empty if it belongs to none.
        in_service: it is idle, and could take a job.
    """

    pool: str
    in_service: bool


class EarlyPhase(str, Enum):
    """How far an earlier maintenance is."""

    #: The node is reserved from now on.
    RESERVED = "reserved"
    #: Oracle is asked to begin.
    REQUESTED = "requested"
    #: It was not possible for this window.
    ABANDONED = "abandoned"


@dataclass(frozen=True)
class EarlyRecord:
    """An earlier maintenance. `window`: the announced beginning; `at`: since when it is in this phase."""

    phase: EarlyPhase
    window: float
    at: float
    why: str = ""


@dataclass(frozen=True)
class ToldJob:
    """What the owner of a job was told.

    Args:
        window: the beginning of the maintenance; event: its id, empty where nothing is announced any more.
        last: it was said within the last hour before it.
        lines: all of it with its times, for the job's owner.
    """

    window: float
    last: bool = False
    event: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class MaintenanceMemory:
    """What is known from earlier passes: by event, or by job."""

    missing: Mapping[str, float] = field(default_factory=dict)
    early: Mapping[str, EarlyRecord] = field(default_factory=dict)
    told: Mapping[str, ToldJob] = field(default_factory=dict)


@dataclass(frozen=True)
class MaintenanceSettings:
    """The operator's settings. `early`: begin on a node without jobs; `shadow`: report, and do nothing."""

    early: bool = False
    max_away_percent: int = 20
    shadow: bool = False


@dataclass(frozen=True)
class Reserve:
    """Make a reservation."""

    name: str
    node: str
    start: float
    end: float


@dataclass(frozen=True)
class Move:
    """Give a reservation other times. `start` is None where it has begun: Slurm does not move that."""

    name: str
    start: float | None
    end: float


@dataclass(frozen=True)
class Delete:
    """Delete a reservation of ours."""

    name: str
    why: str


@dataclass(frozen=True)
class Tell:
    """Tell the owner of a job."""

    job: RunningJob
    text: str


@dataclass(frozen=True)
class BeginEarly:
    """Ask Oracle to begin at this time."""

    event: MaintenanceEvent
    start: float


#: What the service does. Python 3.9 knows no `|` between types.
MaintenanceAct = Union[Reserve, Move, Delete, Tell, BeginEarly]


@dataclass(frozen=True)
class Outcome:
    """What is to be done.

    Args:
        acts: in this order. One that is made again is deleted first.
        remarks: what an administrator should know, each once.
        memory: for the next pass.
        hit: by event, the jobs that it would end.
    """

    acts: tuple[MaintenanceAct, ...]
    remarks: tuple[str, ...]
    memory: MaintenanceMemory
    hit: Mapping[str, tuple[RunningJob, ...]]


def reservation_name(event_id: str) -> str:
    """The name of the reservation for an event."""
    return PREFIX + event_id[-_SUFFIX:]


def decide(
    now: float,
    listing: EventList,
    reservations: Collection[SlurmReservation],
    nodes: Mapping[str, NodeUse],
    jobs: Sequence[RunningJob],
    memory: MaintenanceMemory,
    settings: MaintenanceSettings,
) -> Outcome:
    """What is to be done now.

    Args:
        nodes: all nodes of Slurm, by name.
    """
    held = {each.name: each for each in reservations}
    events = [event for event in listing.events if event.interrupts and event.role == NODE]
    jobs_on: dict[str, list[RunningJob]] = {}
    for job in jobs:
        for node in job.nodes:
            jobs_on.setdefault(node, []).append(job)
    early = _early(now, listing, events, held, nodes, jobs_on, memory.early, settings)
    acts: list[MaintenanceAct] = [act for _, act in early.values() if act is not None]
    remarks: list[str] = []
    hit: dict[str, tuple[RunningJob, ...]] = {}
    told = dict(memory.told)
    for event in events:
        if event.host not in nodes:
            remarks.append(f"{_named(event)}: Slurm does not know this node: nothing is reserved")
            continue
        record = early[event.id][0] if event.id in early else None
        acts += _reserve(now, event, held.get(reservation_name(event.id)), record)
        remarks += _overlaps(event, reservations)
        hit[event.id] = tuple(job for job in jobs_on.get(event.host, ()) if job.end > max(event.start, now))
        for job in hit[event.id]:
            if _is_news(now, event, told.get(job.id)):
                acts.append(_say(now, told, Tell(job, _warning(event, job)), event, last=_soon(now, event)))
    acts += _cancelled(now, listing, jobs, told)
    remarks += [_elsewhere(event) for event in listing.events if event.interrupts and event.role != NODE]
    missing = _missing(now, listing, memory.missing, held)
    acts += _obsolete(now, listing, held, missing)
    records = {id_: record for id_, (record, _) in early.items() if record is not None}
    return Outcome(tuple(acts), tuple(remarks), MaintenanceMemory(missing, records, told), hit)


# --- reservations -----


def _reserve(
    now: float, event: MaintenanceEvent, have: SlurmReservation | None, early: EarlyRecord | None
) -> Iterator[MaintenanceAct]:
    name = reservation_name(event.id)
    start, end = event.start, event.end
    if early is not None and early.phase is not EarlyPhase.ABANDONED:
        # It is reserved from now on, and the end follows when the event was moved.
        start = min(start, early.at)
    if start <= now and end - now < _NEARLY_OVER_S:
        # It should have been over, and the event is open.
        enough = have is not None and _NEARLY_OVER_S <= have.end - now <= _LONGER_S
        end = have.end if have is not None and enough else now + _LONGER_S
    if have is None:
        yield Reserve(name, event.host, max(start, now), end)
        return
    begun = have.start <= now
    if have.nodes != {event.host} or (begun and start > now + _SAME_S):
        yield Delete(name, "its node or its begun window has changed")
        yield Reserve(name, event.host, max(start, now), end)
        return
    moved = not begun and abs(have.start - max(start, now)) > _SAME_S
    if moved or abs(have.end - end) > _SAME_S:
        yield Move(name, None if begun else max(start, now), end)


def _missing(
    now: float, listing: EventList, before: Mapping[str, float], held: Mapping[str, SlurmReservation]
) -> dict[str, float]:
    """Since when each of our reservations has had no event in the list. A list that is old shows nothing."""
    listed = {reservation_name(event.id) for event in listing.events}
    if now - listing.at > STALE_S:
        return {}
    return {name: before.get(name, now) for name, each in held.items() if each.ours and name not in listed}


def _obsolete(
    now: float, listing: EventList, held: Mapping[str, SlurmReservation], missing: Mapping[str, float]
) -> Iterator[Delete]:
    for event in listing.events:
        name = reservation_name(event.id)
        if name in held and not event.interrupts:
            yield Delete(name, f"the maintenance is {event.state}")
    for name, since in missing.items():
        if now - since >= GONE_S:
            yield Delete(name, "its event does not exist any more")


def _overlaps(event: MaintenanceEvent, reservations: Collection[SlurmReservation]) -> Iterator[str]:
    for each in sorted(reservations, key=lambda other: other.name):
        if not each.ours and event.host in each.nodes and each.start < event.end and each.end > event.start:
            times = f"{_time(each.start)} to {_time(each.end)}"
            yield (
                f"{_named(event)} falls into the reservation {each.name} ({each.users or 'all users'}, {times}): "
                f"its jobs do not start on {event.host} while the maintenance lasts. Give the "
                "reservation another node, or move it: scontrol update reservation"
            )


def _elsewhere(event: MaintenanceEvent) -> str:
    if event.role == CONTROLLER:
        return f"{_named(event)}: running jobs go on, and nothing starts or ends in the queue while it is away"
    return f"{_named(event)}: sessions of users on it end"


# --- the owners of jobs -----


def _soon(now: float, event: MaintenanceEvent) -> bool:
    return event.start - now <= LAST_WORD_S


def _is_news(now: float, event: MaintenanceEvent, before: ToldJob | None) -> bool:
    """Whether the owner of a job that an event would end does not know it yet."""
    if before is None or not before.event:
        return True
    if before.event != event.id and before.window <= event.start:
        # A job on several nodes is told of the first window.
        return False
    if abs(before.window - event.start) > _SAME_FOR_OWNERS_S:
        return True
    return _soon(now, event) and not before.last


def _warning(event: MaintenanceEvent, job: RunningJob) -> str:
    limit = "it has no time limit" if math.isinf(job.end) else f"it may run until {_time(job.end)}"
    return (
        f"{_BEGINNING}maintenance of the host {event.host} from {_time(event.start)} ({_what(event)}). Job {job.id} "
        f"ends with the host if it still runs then; {limit}. Save what it has computed before"
    )


def _cancelled(now: float, listing: EventList, jobs: Sequence[RunningJob], told: dict[str, ToldJob]) -> Iterator[Tell]:
    """Jobs that go on, and whose owners were told of a maintenance that does not come."""
    by_id = {event.id: event for event in listing.events if event.state == CANCELED}
    for job in jobs:
        known = told.get(job.id)
        event = by_id.get(known.event) if known is not None else None
        if event is not None:
            text = f"{_BEGINNING}the maintenance of the host {event.host} is cancelled. Job {job.id} can go on"
            yield _say(now, told, Tell(job, text), None)


def _say(
    now: float, told: dict[str, ToldJob], tell: Tell, event: MaintenanceEvent | None, *, last: bool = False
) -> Tell:
    """Note that it is said."""
    lines = told[tell.job.id].lines if tell.job.id in told else ()
    window, id_ = (event.start, event.id) if event is not None else (0.0, "")
    # The newest is the last one: the first ones are forgotten.
    told.pop(tell.job.id, None)
    line = f"{_time(now)} {tell.text[len(_BEGINNING) :]}"
    told[tell.job.id] = ToldJob(window, last, id_, (*lines[-(_LINES - 1) :], line))
    for old in list(told)[:-_MOST_JOBS]:
        del told[old]
    return tell


# --- an earlier date -----


#: The record for the next pass, and the request to Oracle, if it is sent now.
_Step = tuple[Optional[EarlyRecord], Optional[BeginEarly]]


def _early(
    now: float,
    listing: EventList,
    events: Sequence[MaintenanceEvent],
    held: Mapping[str, SlurmReservation],
    nodes: Mapping[str, NodeUse],
    jobs_on: Mapping[str, Sequence[RunningJob]],
    before: Mapping[str, EarlyRecord],
    settings: MaintenanceSettings,
) -> dict[str, _Step]:
    """The steps by event."""
    steps: dict[str, _Step] = {}
    for event in events:
        record = before.get(event.id)
        if record is not None:
            steps[event.id] = _go_on(now, listing, event, record, held, jobs_on)
    if settings.early and not settings.shadow:
        left = _still_free(events, steps, nodes, settings)
        together = [event.token for event in listing.events if event.is_open and event.token]
        for event in sorted(events, key=lambda each: (each.start, each.host)):
            node = nodes.get(event.host)
            if node is None or not node.in_service or event.id in steps or jobs_on.get(event.host):
                continue
            if left[node.pool] > 0 and _can_be_moved(now, event) and together.count(event.token) <= 1:
                left[node.pool] -= 1
                steps[event.id] = (EarlyRecord(EarlyPhase.RESERVED, event.start, now), None)
    return steps


def _still_free(
    events: Sequence[MaintenanceEvent],
    steps: Mapping[str, _Step],
    nodes: Mapping[str, NodeUse],
    settings: MaintenanceSettings,
) -> dict[str, int]:
    """How many more nodes of each pool may be away now. One may always be."""
    sizes: dict[str, int] = {}
    for node in nodes.values():
        sizes[node.pool] = sizes.get(node.pool, 0) + 1
    left = {pool: max(1, size * settings.max_away_percent // 100) for pool, size in sizes.items()}
    for event in events:
        record = steps[event.id][0] if event.id in steps else None
        is_away = event.under_way or (record is not None and record.phase is not EarlyPhase.ABANDONED)
        if is_away and event.host in nodes:
            left[nodes[event.host].pool] -= 1
    return left


def _can_be_moved(now: float, event: MaintenanceEvent) -> bool:
    return event.reschedulable and event.state == SCHEDULED and event.start - now > _EARLY_IF_S


def _go_on(
    now: float,
    listing: EventList,
    event: MaintenanceEvent,
    record: EarlyRecord,
    held: Mapping[str, SlurmReservation],
    jobs_on: Mapping[str, Sequence[RunningJob]],
) -> _Step:
    moved = abs(event.start - record.window) > _SAME_S
    if record.phase is EarlyPhase.ABANDONED:
        # Another window is another chance.
        return (None if moved else record), None
    if event.under_way:
        return record, None
    if record.phase is EarlyPhase.REQUESTED:
        why = _why_not(now, listing, event, record, moved)
        return (_abandoned(event, now, why) if why else record), None
    if jobs_on.get(event.host) or moved or not _can_be_moved(now, event):
        # It waits for the next time without a job.
        return None, None
    have = held.get(reservation_name(event.id))
    if have is None or have.start > now or have.nodes != {event.host}:
        return record, None
    return replace(record, phase=EarlyPhase.REQUESTED, at=now), BeginEarly(event, now + EARLY_AHEAD_S)


def _why_not(now: float, listing: EventList, event: MaintenanceEvent, record: EarlyRecord, moved: bool) -> str:
    """Why a request is abandoned; empty while it is not."""
    if event.id in listing.refused:
        return f"the cloud refuses: {listing.refused[event.id]}"
    if moved:
        return "the cloud has moved it to a later time" if event.start - now > _EARLY_IF_S else ""
    return "the cloud has not moved it" if now - record.at > _EARLY_PATIENCE_S else ""


def _abandoned(event: MaintenanceEvent, now: float, why: str) -> EarlyRecord:
    """For the present window."""
    return EarlyRecord(EarlyPhase.ABANDONED, event.start, now, why)


# --- words -----


def _named(event: MaintenanceEvent) -> str:
    return f"maintenance of {event.host} from {_time(event.start)} to {_time(event.end)} ({_what(event)})"


def _what(event: MaintenanceEvent) -> str:
    words = {"STOP": "stopped and started", "REBOOT_MIGRATION": "moved by a reboot", "TERMINATE": "terminated"}
    reason = event.reason.replace("_", " ").lower()
    action = words.get(event.action, event.action.lower())
    return f"it is {action}{f': {reason}' if reason else ''}"


def _time(when: float) -> str:
    return f"{datetime.fromtimestamp(when, timezone.utc):%Y-%m-%d %H:%M} UTC"
