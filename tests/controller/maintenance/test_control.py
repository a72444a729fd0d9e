"""What the health service does about maintenance, with files on the disk and a double of Slurm.

The double does not prove how slurmctld answers: tests/autoscaler/daemon/test_real_slurm.py does.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpucluster.controller.health import metrics
from gpucluster.controller.health.policy import SchedulerNode
from gpucluster.controller.maintenance import control, policy
from gpucluster.controller.maintenance.events import EVENTS, REQUESTS, EventList, MaintenanceEvent, read_requests
from gpucluster.controller.maintenance.policy import (
    MaintenanceSettings,
    Move,
    Reserve,
    RunningJob,
    SlurmReservation,
)
from gpucluster.node_agent.errors import Failed

NOW = 1_800_000_000.0
EVENT = MaintenanceEvent(
    id="ocid1.instancemaintenanceevent.oc1..aaaa111122223333", host="gpu-1", role="node", state="SCHEDULED",
    action="STOP", category="FLEXIBLE", start=NOW + 86400, reschedulable=True,
)  # fmt: skip
NAME = policy.reservation_name(EVENT.id)
JOB = RunningJob("7", "ada", frozenset({"gpu-1"}), math.inf)


@dataclass
class SlurmBooks:
    """A double of Slurm: reservations, jobs and lines in memory. `refuses`: what it answers to a reservation."""

    held: dict[str, SlurmReservation] = field(default_factory=dict)
    running: list[RunningJob] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    refuses: str = ""
    silent: str = ""

    def reservations(self) -> Sequence[SlurmReservation]:
        return list(self.held.values())

    def jobs(self) -> Sequence[RunningJob]:
        return self.running

    def reserve(self, request: Reserve) -> None:
        if self.refuses:
            raise Failed(f"Slurm refused: {self.refuses}")
        self.held[request.name] = SlurmReservation(
            request.name, request.start, request.end, frozenset({request.node}), users="root"
        )

    def move(self, request: Move) -> None:
        have = self.held[request.name]
        start = have.start if request.start is None else request.start
        self.held[request.name] = replace(have, start=start, end=request.end)

    def delete(self, name: str) -> None:
        self.held.pop(name, None)

    def notify(self, job: str, text: str) -> None:
        if self.silent:
            raise Failed(f"Slurm refused: {self.silent}")
        self.lines.append((job, text))


class Place:
    """A folder of the health service, one that it shares with the reader, and a clock."""

    def __init__(self, root: Path, settings: MaintenanceSettings | None = None) -> None:
        self.folder, self.exchange = root / "health", root / "exchange"
        for each in (self.folder, self.exchange / "events", self.exchange / "requests"):
            each.mkdir(parents=True)
        self.slurm = SlurmBooks()
        self.now = NOW
        self.said: list[str] = []
        self.settings = settings or MaintenanceSettings()

    def service(self) -> control.Maintenance:
        nodes = {"gpu-1": SchedulerNode("gpu-1", "gpu", frozenset({"IDLE"}))}
        return control.Maintenance(
            self.folder, self.slurm, lambda: nodes, self.settings, exchange=self.exchange,
            clock=lambda: self.now, wall=lambda: self.now, say=self.said.append,
        )  # fmt: skip

    def announce(self, *events: MaintenanceEvent, problem: str = "", refused: dict[str, str] | None = None) -> None:
        listing = EventList(self.now, events, refused or {}, problem)
        (self.exchange / EVENTS).write_text(listing.to_json())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_announcement_becomes_a_reservation_a_line_and_a_status(place: Place) -> None:
    place.slurm.running = [JOB]
    place.announce(EVENT)
    place.service().run()
    assert place.slurm.held[NAME].start == EVENT.start
    ((job, text),) = place.slurm.lines
    assert job == "7"
    assert control.messages_of_job(place.folder, "7") == [f"2027-01-15 08:00 UTC {text[len('gpucluster: ') :]}"]
    assert control.messages_of_job(place.folder, "8") == []
    content = control.status(place.folder)
    assert content is not None
    (row,) = content["events"]
    assert (row["reservation"], row["jobs"], row["problem"]) == (NAME, ["7"], "")
    (line,) = control.text_lines(content)
    assert line.startswith("maintenance of gpu-1: 2027-01-16")
    assert "it would end job 7" in line
    samples = {name: value for name, _, value in metrics.of_maintenance(content)}
    assert samples["gpucluster_maintenance_reserved"] == "1"
    assert samples["gpucluster_maintenance_jobs"] == "1"


def test_a_restart_repeats_nothing(place: Place) -> None:
    place.slurm.running = [JOB]
    place.announce(EVENT)
    place.service().run()
    place.slurm.held[NAME] = replace(place.slurm.held[NAME])
    before = dict(place.slurm.held)
    place.service().run()
    assert place.slurm.held == before
    assert len(place.slurm.lines) == 1


def test_without_a_list_nothing_is_changed(place: Place) -> None:
    place.slurm.held[NAME] = SlurmReservation(NAME, NOW + 60, NOW + 120, frozenset({"gpu-1"}))
    place.service().run()
    (place.exchange / EVENTS).write_text('{"at": 1, "events": [{}]}')
    place.service().run()
    assert NAME in place.slurm.held
    assert control.status(place.folder) is None


def test_a_reservation_that_slurm_refuses_is_reported_and_tried_again(place: Place) -> None:
    place.slurm.refuses = "Requested nodes are busy"
    place.announce(EVENT)
    service = place.service()
    service.run()
    service.run()
    assert [line for line in place.said if "nodes are busy" in line] == [
        f"{NAME}: Slurm refused: Requested nodes are busy"
    ]
    content = control.status(place.folder)
    assert content is not None
    assert "not reserved: Slurm refused" in control.text_lines(content)[0]
    values = {name: value for name, _, value in metrics.of_maintenance(content)}
    assert values["gpucluster_maintenance_reserved"] == "0"
    place.slurm.refuses = ""
    service.run()
    assert NAME in place.slurm.held


def test_what_slurm_did_not_write_is_said_again(place: Place) -> None:
    place.slurm.running, place.slurm.silent = [JOB], "Job is not running"
    place.announce(EVENT)
    place.service().run()
    assert control.messages_of_job(place.folder, "7") == []
    place.slurm.silent = ""
    place.service().run()
    assert len(place.slurm.lines) == 1


def test_in_shadow_mode_nothing_is_done(tmp_path: Path) -> None:
    place = Place(tmp_path, MaintenanceSettings(shadow=True, early=True))
    place.slurm.running = [JOB]
    place.announce(EVENT)
    place.service().run()
    assert (place.slurm.held, place.slurm.lines) == ({}, [])
    assert any(line.startswith("would be done: reservation ") for line in place.said)


def test_an_earlier_date_is_asked_for_in_the_shared_folder(tmp_path: Path) -> None:
    place = Place(tmp_path, MaintenanceSettings(early=True))
    place.announce(EVENT)
    service = place.service()
    service.run()
    assert place.slurm.held[NAME].start == NOW
    assert read_requests(place.exchange / REQUESTS) == {}
    place.now += 61
    service.run()
    asked = read_requests(place.exchange / REQUESTS)
    assert asked == {EVENT.id: place.now + policy.EARLY_AHEAD_S}
    # The reader of this file is another user.
    assert (place.exchange / REQUESTS).stat().st_mode & 0o777 == 0o644
    place.announce(EVENT, refused={EVENT.id: "409 IncorrectState"})
    service.run()
    assert place.slurm.held[NAME].start == EVENT.start
    content = control.status(place.folder)
    assert content is not None
    assert "earlier date: abandoned: the cloud refuses: 409" in control.text_lines(content)[0]


def test_a_reader_that_has_no_rights_is_named(place: Place) -> None:
    place.announce(problem="the cloud answered 404")
    place.service().run()
    content = control.status(place.folder)
    assert content is not None
    assert "can't be read" in control.text_lines(content)[0]


def test_it_passes_once_a_minute_and_when_the_list_was_written(place: Place) -> None:
    place.announce(EVENT)
    service = place.service()
    service.tick()
    place.slurm.held.clear()
    place.now += 30
    service.tick()
    assert place.slurm.held == {}
    place.now += 31
    service.tick()
    assert NAME in place.slurm.held
    # A word for the owner of a job does not wait for the next minute.
    place.announce(replace(EVENT, state="CANCELED"))
    os.utime(place.exchange / EVENTS, ns=(1, 1))
    service.tick()
    assert place.slurm.held == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"told": 3}', json.dumps({"early": {"x": {}}, "told": {}, "missing": {}})]
)
def test_a_damaged_memory_is_as_good_as_none(place: Place, text: str) -> None:
    (place.folder / control.MEMORY).write_text(text)
    place.announce(EVENT)
    place.service().run()
    assert NAME in place.slurm.held
