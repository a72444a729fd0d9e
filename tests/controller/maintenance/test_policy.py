"""From events, reservations and jobs to what is done. Nothing runs here."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpucluster.controller.maintenance import policy
from gpucluster.controller.maintenance.events import EventList, MaintenanceEvent
from gpucluster.controller.maintenance.policy import (
    BeginEarly,
    Delete,
    EarlyPhase,
    EarlyRecord,
    MaintenanceMemory,
    MaintenanceSettings,
    Move,
    NodeUse,
    Outcome,
    Reserve,
    RunningJob,
    SlurmReservation,
    Tell,
)

NOW = 1_800_000_000.0
HOUR, DAY = 3600.0, 86400.0
EVENT = MaintenanceEvent(
    id="ocid1.instancemaintenanceevent.oc1..aaaa111122223333", host="gpu-1", role="node", state="SCHEDULED",
    action="REBOOT_MIGRATION", category="FLEXIBLE", start=NOW + DAY, reason="HARDWARE_REPLACEMENT", window_s=HOUR,
    duration_s=4 * HOUR, reschedulable=True,
)  # fmt: skip
NAME = policy.reservation_name(EVENT.id)
NODES = {f"gpu-{number}": NodeUse("gpu", True) for number in range(1, 11)}
HELD = SlurmReservation(NAME, EVENT.start, EVENT.end, frozenset({"gpu-1"}), frozenset({"MAINT"}), "root")
LONG = RunningJob("7", "ada", frozenset({"gpu-1"}), math.inf)
SHORT = RunningJob("8", "bob", frozenset({"gpu-1"}), EVENT.start - 1)
EARLY = MaintenanceSettings(early=True)


def decided(
    *events: MaintenanceEvent,
    reservations: Sequence[SlurmReservation] = (),
    jobs: Sequence[RunningJob] = (),
    memory: MaintenanceMemory | None = None,
    settings: MaintenanceSettings | None = None,
    now: float = NOW,
    listed: float | None = None,
    refused: dict[str, str] | None = None,
    nodes: dict[str, NodeUse] | None = None,
) -> Outcome:
    listing = EventList(now if listed is None else listed, events, refused or {})
    return policy.decide(
        now, listing, reservations, NODES if nodes is None else nodes, jobs, memory or MaintenanceMemory(),
        settings or MaintenanceSettings(),
    )  # fmt: skip


# --- reservations -----


def test_an_event_gets_a_reservation_for_its_whole_window() -> None:
    assert decided(EVENT).acts == (Reserve(NAME, "gpu-1", EVENT.start, EVENT.start + 5 * HOUR),)
    assert NAME == "gpucluster-maintenance-111122223333"


def test_a_reservation_that_fits_is_left_alone() -> None:
    assert decided(EVENT, reservations=[HELD]).acts == ()
    # Slurm's times are whole seconds, and Oracle's are not.
    shifted = replace(HELD, start=HELD.start - 0.9, end=HELD.end - 0.9)
    assert decided(EVENT, reservations=[shifted]).acts == ()


@pytest.mark.parametrize("by", [-6 * HOUR, 2 * HOUR, 9 * DAY])
def test_a_window_that_moves_moves_the_reservation(by: float) -> None:
    moved = replace(EVENT, start=EVENT.start + by)
    assert decided(moved, reservations=[HELD]).acts == (Move(NAME, moved.start, moved.end),)


def test_a_window_that_moves_away_after_it_began_is_reserved_again() -> None:
    moved = replace(EVENT, start=EVENT.start + DAY)
    acts = decided(moved, reservations=[HELD], now=EVENT.start + 10).acts
    assert [type(act) for act in acts] == [Delete, Reserve]
    assert acts[1] == Reserve(NAME, "gpu-1", moved.start, moved.end)


@pytest.mark.parametrize("state", ["CANCELED", "SUCCEEDED", "FAILED"])
def test_an_event_that_is_over_ends_its_reservation(state: str) -> None:
    acts = decided(replace(EVENT, state=state), reservations=[HELD]).acts
    assert acts == (Delete(NAME, f"the maintenance is {state}"),)
    assert decided(replace(EVENT, state=state)).acts == ()


def test_an_event_that_disappears_ends_its_reservation_after_a_while() -> None:
    first = decided(reservations=[HELD])
    assert first.acts == ()
    assert first.memory.missing == {NAME: NOW}
    soon = decided(reservations=[HELD], memory=first.memory, now=NOW + policy.GONE_S - 1)
    assert soon.acts == ()
    later = decided(reservations=[HELD], memory=soon.memory, now=NOW + policy.GONE_S)
    assert [type(act) for act in later.acts] == [Delete]
    # It was back in a list in between: the time begins again.
    back = decided(EVENT, reservations=[HELD], memory=first.memory)
    assert back.memory.missing == {}


def test_an_old_list_ends_nothing() -> None:
    memory = MaintenanceMemory(missing={NAME: NOW - DAY})
    assert decided(reservations=[HELD], memory=memory, listed=NOW - policy.STALE_S - 1).acts == ()


def test_a_maintenance_that_takes_longer_is_reserved_for_longer() -> None:
    works = replace(EVENT, state="PROCESSING", started=EVENT.start)
    nearly = EVENT.start + EVENT.duration_s - 60
    held = replace(HELD, end=EVENT.start + EVENT.duration_s)
    first = decided(works, reservations=[held], now=nearly)
    assert first.acts == (Move(NAME, None, nearly + HOUR),)
    # Not again in the next minutes, and then once more.
    longer = replace(held, end=nearly + HOUR)
    assert decided(works, reservations=[longer], now=nearly + 1800).acts == ()
    again = nearly + HOUR - 600
    assert decided(works, reservations=[longer], now=again).acts == (Move(NAME, None, again + HOUR),)


def test_a_window_that_is_over_and_has_not_begun_is_still_reserved() -> None:
    now = EVENT.end + DAY
    assert decided(EVENT, now=now).acts == (Reserve(NAME, "gpu-1", now, now + HOUR),)


def test_an_event_that_moves_to_another_host_reserves_that_one() -> None:
    acts = decided(replace(EVENT, host="gpu-2"), reservations=[HELD]).acts
    assert [type(act) for act in acts] == [Delete, Reserve]
    assert isinstance(acts[1], Reserve)
    assert acts[1].node == "gpu-2"


@pytest.mark.parametrize(
    "event",
    [
        replace(EVENT, action="NONE"),
        replace(EVENT, category="NOTIFICATION"),
        replace(EVENT, role="controller", host="head"),
        replace(EVENT, role="login", host="login-1"),
    ],
)
def test_what_takes_no_node_away_reserves_nothing(event: MaintenanceEvent) -> None:
    assert decided(event, jobs=[LONG], settings=EARLY).acts == ()


def test_an_action_that_is_not_known_counts() -> None:
    assert [type(act) for act in decided(replace(EVENT, action="ROTATE")).acts] == [Reserve]


def test_a_node_that_slurm_does_not_know_is_named() -> None:
    outcome = decided(replace(EVENT, host="strange"))
    assert outcome.acts == ()
    assert "Slurm does not know this node" in outcome.remarks[0]


def test_the_controller_is_named() -> None:
    (remark,) = decided(replace(EVENT, role="controller", host="head")).remarks
    assert remark.startswith("maintenance of head from ")
    assert "running jobs go on" in remark


def test_a_reservation_of_a_user_is_never_changed_and_named() -> None:
    theirs = SlurmReservation(
        "course", EVENT.start - HOUR, EVENT.start + HOUR, frozenset({"gpu-1", "gpu-2"}), users="eve"
    )
    outcome = decided(EVENT, reservations=[theirs])
    assert [act for act in outcome.acts if not isinstance(act, Reserve)] == []
    (remark,) = outcome.remarks
    assert "the reservation course (eve" in remark
    assert "scontrol update reservation" in remark
    apart = replace(theirs, nodes=frozenset({"gpu-2"}))
    assert decided(EVENT, reservations=[apart]).remarks == ()


# --- the owners of jobs -----


def test_only_owners_of_jobs_that_would_be_hit_are_told() -> None:
    outcome = decided(EVENT, reservations=[HELD], jobs=[LONG, SHORT])
    (tell,) = outcome.acts
    assert isinstance(tell, Tell)
    assert tell.job == LONG
    assert "maintenance of the host gpu-1 from 2027-01-16" in tell.text
    assert outcome.hit == {EVENT.id: (LONG,)}


def test_they_are_told_once_then_when_it_moves_and_in_the_last_hour() -> None:
    first = decided(EVENT, reservations=[HELD], jobs=[LONG])
    assert decided(EVENT, reservations=[HELD], jobs=[LONG], memory=first.memory).acts == ()
    moved = replace(EVENT, start=EVENT.start + DAY)
    held = replace(HELD, start=moved.start, end=moved.end)
    second = decided(moved, reservations=[held], jobs=[LONG], memory=first.memory)
    assert [type(act) for act in second.acts] == [Tell]
    late = moved.start - 600
    third = decided(moved, reservations=[held], jobs=[LONG], memory=second.memory, now=late)
    assert [type(act) for act in third.acts] == [Tell]
    assert decided(moved, reservations=[held], jobs=[LONG], memory=third.memory, now=late + 60).acts == ()
    assert len(third.memory.told["7"].lines) == 3


def test_a_cancelled_maintenance_is_told_once() -> None:
    first = decided(EVENT, reservations=[HELD], jobs=[LONG])
    gone = replace(EVENT, state="CANCELED")
    second = decided(gone, jobs=[LONG], memory=first.memory)
    (tell,) = second.acts
    assert isinstance(tell, Tell)
    assert "is cancelled" in tell.text
    assert decided(gone, jobs=[LONG], memory=second.memory).acts == ()


def test_a_job_on_two_hosts_is_told_of_the_first_window() -> None:
    other = replace(EVENT, id=EVENT.id + "x", host="gpu-2", start=EVENT.start + HOUR)
    wide = replace(LONG, nodes=frozenset({"gpu-1", "gpu-2"}))
    outcome = decided(EVENT, other, jobs=[wide])
    assert len([act for act in outcome.acts if isinstance(act, Tell)]) == 1
    # The other event is moved to before the first one.
    sooner = replace(other, start=EVENT.start - HOUR)
    again = decided(EVENT, sooner, jobs=[wide], memory=outcome.memory)
    assert [act.text for act in again.acts if isinstance(act, Tell) and "gpu-2" in act.text]


def test_what_was_said_is_bounded() -> None:
    jobs = [RunningJob(str(number), "ada", frozenset({"gpu-1"}), math.inf) for number in range(6000)]
    memory = decided(EVENT, jobs=jobs).memory
    assert len(memory.told) == 5000
    assert "5999" in memory.told


# --- an earlier date -----


def test_nothing_begins_early_unless_asked_for() -> None:
    assert decided(EVENT, reservations=[HELD]).memory.early == {}


def early_pass(memory: MaintenanceMemory, held: SlurmReservation, now: float, **more: object) -> Outcome:
    return decided(EVENT, reservations=[held], memory=memory, settings=EARLY, now=now, **more)  # type: ignore[arg-type]


def test_an_empty_node_is_reserved_then_oracle_is_asked_then_the_window_follows() -> None:
    first = early_pass(MaintenanceMemory(), HELD, NOW)
    assert first.memory.early[EVENT.id].phase is EarlyPhase.RESERVED
    assert first.acts == (Move(NAME, NOW, EVENT.end),)
    from_now = replace(HELD, start=NOW)
    second = early_pass(first.memory, from_now, NOW + 60)
    assert second.acts == (BeginEarly(EVENT, NOW + 60 + policy.EARLY_AHEAD_S),)
    assert second.memory.early[EVENT.id].phase is EarlyPhase.REQUESTED
    # It is asked once.
    assert early_pass(second.memory, from_now, NOW + 120).acts == ()
    moved = replace(EVENT, start=NOW + 60 + policy.EARLY_AHEAD_S)
    third = decided(moved, reservations=[from_now], memory=second.memory, settings=EARLY, now=NOW + 180)
    assert third.acts == (Move(NAME, None, moved.end),)
    done = replace(moved, state="SUCCEEDED")
    last = decided(done, reservations=[replace(from_now, end=moved.end)], memory=third.memory, settings=EARLY)
    assert [type(act) for act in last.acts] == [Delete]
    assert last.memory.early == {}


def test_a_job_that_started_in_between_keeps_its_node() -> None:
    first = early_pass(MaintenanceMemory(), HELD, NOW)
    second = early_pass(first.memory, replace(HELD, start=NOW), NOW + 60, jobs=[LONG])
    assert not [act for act in second.acts if isinstance(act, BeginEarly)]
    assert second.memory.early == {}
    # The reservation goes back to the announced window.
    assert Reserve(NAME, "gpu-1", EVENT.start, EVENT.end) in second.acts


@pytest.mark.parametrize(
    ("refused", "later", "why"),
    [({EVENT.id: "409 IncorrectState"}, 60.0, "the cloud refuses"), ({}, 1900.0, "the cloud has not moved it")],
)
def test_a_request_that_fails_is_abandoned_for_this_window(refused: dict[str, str], later: float, why: str) -> None:
    memory = MaintenanceMemory(early={EVENT.id: EarlyRecord(EarlyPhase.REQUESTED, EVENT.start, NOW)})
    outcome = early_pass(memory, replace(HELD, start=NOW), NOW + later, refused=refused)
    record = outcome.memory.early[EVENT.id]
    assert record.phase is EarlyPhase.ABANDONED
    assert why in record.why
    assert [type(act) for act in outcome.acts] == [Delete, Reserve]
    after = early_pass(outcome.memory, HELD, NOW + later + 60)
    assert after.acts == ()
    assert after.memory.early[EVENT.id].phase is EarlyPhase.ABANDONED


@pytest.mark.parametrize(
    "event",
    [
        replace(EVENT, reschedulable=False),
        replace(EVENT, state="STARTED", started=NOW),
        replace(EVENT, start=NOW + 1800),
    ],
)
def test_events_that_can_not_be_moved_are_not(event: MaintenanceEvent) -> None:
    assert decided(event, settings=EARLY).memory.early == {}


def test_busy_drained_and_tied_nodes_are_left_alone() -> None:
    assert decided(EVENT, jobs=[SHORT], settings=EARLY).memory.early == {}
    assert decided(EVENT, settings=EARLY, nodes={"gpu-1": NodeUse("gpu", False)}).memory.early == {}
    assert decided(EVENT, settings=replace(EARLY, shadow=True)).memory.early == {}
    tied = replace(EVENT, token="rack-1")
    other = replace(tied, id=EVENT.id + "x", host="gpu-2")
    assert decided(tied, other, settings=EARLY).memory.early == {}
    assert EVENT.id in decided(tied, settings=EARLY).memory.early


def test_only_so_many_of_a_pool_are_away_at_once() -> None:
    events = [
        replace(EVENT, id=f"{EVENT.id}{number}", host=f"gpu-{number}", start=EVENT.start + number)
        for number in range(1, 8)
    ]
    assert len(decided(*events, settings=EARLY).memory.early) == 2
    works = replace(events[6], state="STARTED", started=NOW)
    assert len(decided(*events[:6], works, settings=EARLY).memory.early) == 1
    one = replace(EARLY, max_away_percent=1)
    assert len(decided(*events, settings=one).memory.early) == 1


# --- together -----


def test_passes_come_to_rest() -> None:
    """Whatever is announced and moved: after the acts were carried out, the next pass has nothing more to do."""
    dice = random.Random(31)
    for _ in range(300):
        now = NOW
        memory = MaintenanceMemory()
        held: dict[str, SlurmReservation] = {}
        settings = MaintenanceSettings(early=dice.random() < 0.5)
        events = {
            number: replace(
                EVENT, id=f"ocid1.instancemaintenanceevent.oc1..event{number:012d}", host=f"gpu-{number}",
                start=NOW + dice.uniform(-HOUR, 3 * DAY), window_s=dice.choice([0.0, HOUR]),
                reschedulable=dice.random() < 0.7,
            )
            for number in range(1, dice.randint(2, 6))
        }  # fmt: skip
        jobs = [RunningJob(str(n), "ada", frozenset({f"gpu-{n}"}), now + dice.uniform(0, 4 * DAY)) for n in (1, 3)]
        for _ in range(6):
            for number, event in list(events.items()):
                if dice.random() < 0.3:
                    events[number] = replace(event, start=max(now, event.start + dice.uniform(-DAY, DAY)))
                elif dice.random() < 0.1:
                    events[number] = replace(event, state=dice.choice(["CANCELED", "SUCCEEDED", "STARTED"]))
            for _ in range(4):
                outcome = decided(
                    *events.values(), reservations=list(held.values()), jobs=jobs, memory=memory, settings=settings,
                    now=now,
                )  # fmt: skip
                memory = outcome.memory
                for act in outcome.acts:
                    carry_out(act, held, now)
            assert not [act for act in outcome.acts if not isinstance(act, BeginEarly)], outcome.acts
            names = {policy.reservation_name(each.id) for each in events.values() if each.interrupts}
            assert set(held) == names
            now += dice.uniform(60, 6 * HOUR)


def carry_out(act: object, held: dict[str, SlurmReservation], now: float) -> None:
    """What Slurm does: it refuses a second reservation of a name, and another beginning of one that has begun."""
    if isinstance(act, Reserve):
        assert act.name not in held
        assert act.start >= now
        assert act.end > act.start
        held[act.name] = SlurmReservation(act.name, act.start, act.end, frozenset({act.node}), users="root")
    elif isinstance(act, Move):
        have = held[act.name]
        assert act.start is None or have.start > now
        held[act.name] = replace(have, start=have.start if act.start is None else act.start, end=act.end)
    elif isinstance(act, Delete):
        del held[act.name]
