"""The file of the events and that of the requests: written and read back, and what a damaged one is taken for."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.maintenance.events import DURATION_S, EventList, MaintenanceEvent, read_requests

NOW = 1_800_000_000.0
EVENT = MaintenanceEvent(
    id="ocid1.instancemaintenanceevent.oc1..aaaa111122223333", host="gpu-1", role="node", state="SCHEDULED",
    action="STOP", category="FLEXIBLE", start=NOW + 86400, window_s=3600.0,
)  # fmt: skip
#: What json.loads accepts as a number and no date has.
NO_DATES = ("NaN", "Infinity", "-Infinity", "1e999", "1e300", "9" * 400, "9" * 5000, '"soon"', "[]", "null")


def _load(file: Path, text: str) -> EventList | None:
    file.write_text(text)
    return EventList.load(file)


# --- an event -----


@pytest.mark.parametrize("state", ["SCHEDULED", "STARTED", "PROCESSING", "CANCELED", "SUCCEEDED", "FAILED", "", "NEW"])
def test_the_state_tells_what_is_ahead_and_what_is_under_way(state: str) -> None:
    event = replace(EVENT, state=state)
    assert event.is_open is (state in ("SCHEDULED", "STARTED", "PROCESSING"))
    assert event.under_way is (state in ("STARTED", "PROCESSING"))
    assert event.interrupts is event.is_open


def test_information_and_live_repairs_interrupt_nothing_and_an_unknown_action_does() -> None:
    assert not replace(EVENT, category="NOTIFICATION").interrupts
    assert not replace(EVENT, action="NONE").interrupts
    assert replace(EVENT, action="", category="").interrupts
    assert replace(EVENT, action="ROTATE").interrupts


def test_the_end_is_the_latest_one() -> None:
    assert EVENT.end == EVENT.start + EVENT.window_s + DURATION_S
    # Once it has begun, the window no longer counts; without the time of the beginning it is that of the window.
    assert replace(EVENT, state="STARTED", started=NOW).end == NOW + DURATION_S
    assert replace(EVENT, state="PROCESSING").end == EVENT.start + DURATION_S
    assert replace(EVENT, started=NOW).end == EVENT.end


def test_an_event_is_written_and_read_back() -> None:
    full = replace(EVENT, started=NOW, due=NOW + 9, reschedulable=True, reason="r", token="t", description="words")
    for event in (EVENT, full):
        assert MaintenanceEvent.from_dict(json.loads(json.dumps(event.to_dict()))) == event


@pytest.mark.parametrize("name", ["id", "host", "role", "start", "window_s", "duration_s"])
def test_an_event_without_one_of_these_is_none(name: str) -> None:
    with pytest.raises((KeyError, ValueError)):
        MaintenanceEvent.from_dict({key: value for key, value in EVENT.to_dict().items() if key != name})


@pytest.mark.parametrize(("name", "value"), [("id", ""), ("host", ""), ("role", ""), ("role", "root")])
def test_an_event_of_no_host_is_none(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="without an id or a host"):
        MaintenanceEvent.from_dict({**EVENT.to_dict(), name: value})


@pytest.mark.parametrize("name", ["start", "window_s", "duration_s", "started", "due"])
@pytest.mark.parametrize("text", NO_DATES)
def test_a_time_that_no_date_has_is_refused(name: str, text: str) -> None:
    if text == "null" and name in ("started", "due"):
        assert MaintenanceEvent.from_dict({**EVENT.to_dict(), name: None}) == EVENT
        return
    with pytest.raises((TypeError, ValueError)):
        MaintenanceEvent.from_dict({**EVENT.to_dict(), name: json.loads(text)})


def test_the_end_of_the_latest_event_is_a_date() -> None:
    latest = MaintenanceEvent.from_dict({**EVENT.to_dict(), "start": 8e10, "window_s": 8e10, "duration_s": 8e10})
    assert datetime.fromtimestamp(latest.end, timezone.utc).year < 10000


def test_odd_values_are_made_harmless() -> None:
    odd: dict[str, Any] = {"window_s": -5, "duration_s": -1, "reschedulable": "yes", "description": "x" * 9000}
    event = MaintenanceEvent.from_dict({**EVENT.to_dict(), **odd, "more": "than this release knows"})
    assert (event.window_s, event.duration_s, event.reschedulable) == (0.0, 0.0, False)
    assert len(event.description) == 500


# --- the file of the events -----


def test_a_list_is_written_and_read_back(tmp_path: Path) -> None:
    listing = EventList(NOW, (EVENT, replace(EVENT, id="x")), {"x": "why"}, "problem")
    assert _load(tmp_path / "events.json", listing.to_json()) == listing
    assert _load(tmp_path / "events.json", EventList(NOW).to_json()) == EventList(NOW)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "7", '"events"', "{}", '{"at": 1}', '{"events": []}', '{"at": 1, "events": 3}',
        '{"at": 1, "events": [{}]}', '{"at": 1, "events": ["x"]}', '{"at": 1, "events": [], "refused": ["x"]}',
        "[" * 100_000, *(f'{{"at": {number}, "events": []}}' for number in NO_DATES),
    ],
    ids=lambda text: text[:40],
)  # fmt: skip
def test_a_damaged_list_is_none(tmp_path: Path, text: str) -> None:
    assert _load(tmp_path / "events.json", text) is None


def test_one_event_that_is_wrong_makes_the_list_none(tmp_path: Path) -> None:
    """With the others alone, the reservation of this one would be deleted as one whose event is gone."""
    content = json.loads(EventList(NOW, (EVENT,)).to_json())
    content["events"].append({**EVENT.to_dict(), "start": float("nan")})
    assert _load(tmp_path / "events.json", json.dumps(content)) is None


def test_what_is_no_file_is_none_and_nothing_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "nowhere"):
        assert EventList.load(tmp_path / name) is None
        assert read_requests(tmp_path / name) == {}
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert EventList.load(tmp_path / "bytes") is None
    assert read_requests(tmp_path / "bytes") == {}


def test_long_texts_of_others_are_cut(tmp_path: Path) -> None:
    listing = _load(tmp_path / "events.json", EventList(NOW, (), {"x": "w" * 9000}, "p" * 9000).to_json())
    assert listing is not None
    assert (len(listing.refused["x"]), len(listing.problem)) == (500, 500)


# --- the file of the requests -----


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        ('{"x": 1800000000}', {"x": NOW}),
        ("{}", {}),
        ("", {}),
        ("[1]", {}),
        ("7", {}),
        ('{"x": {}}', {}),
        *((f'{{"x": {number}}}', {}) for number in NO_DATES),
    ],
    ids=lambda value: str(value)[:40],
)
def test_requests_are_read_and_damaged_ones_are_none(tmp_path: Path, text: str, requests: dict[str, float]) -> None:
    (tmp_path / "requests.json").write_text(text)
    assert read_requests(tmp_path / "requests.json") == requests
