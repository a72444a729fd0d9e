"""Maintenance events, with the real SDK: announced, moved, cancelled, under way and done; and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import oci
import pytest
from oci.core.models import UpdateInstanceMaintenanceEventDetails as Details

from gpucluster.localcloud import control
from gpucluster.localcloud.api import maintenance_events
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.server.home import open_authority, open_cloud
from tests.localcloud.api_harness import Api, refused, running
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("maintenance")) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


@pytest.fixture(autouse=True)
def _silent_again(api: Api) -> Iterator[None]:
    yield
    announce(api)
    api.compute.list_instance_maintenance_events(api.tenancy)


def announce(api: Api, *events: dict[str, Any]) -> None:
    (api.home / "maintenance.json").write_text(json.dumps(events))


def launched(api: Api, subnet: Any, name: str) -> Any:
    return api.launch(subnet, name)


def listed(api: Api, **filters: Any) -> list[Any]:
    return list(api.compute.list_instance_maintenance_events(api.tenancy, **filters).data)


def in_(hours: float) -> datetime:
    return (datetime.now(UTC) + timedelta(hours=hours)).replace(microsecond=0)


def test_an_announcement_is_listed_and_read_as_oci_has_it(api: Api, subnet: Any) -> None:
    instance = launched(api, subnet, "m-1")
    assert listed(api, instance_id=instance.id) == []
    announce(api, {"name": "a", "display_name": "m-1", "in": 86400, "start_window": "P1D", "correlation_token": "rack"})
    (event,) = listed(api, instance_id=instance.id)
    assert (event.instance_id, event.lifecycle_state, event.instance_action) == (
        instance.id, "SCHEDULED", "REBOOT_MIGRATION",
    )  # fmt: skip
    assert (event.start_window_duration, event.estimated_duration, event.can_reschedule) == ("P1D", "PT4H", True)
    assert abs((event.time_window_start - in_(24)).total_seconds()) < 60
    whole = api.compute.get_instance_maintenance_event(event.id).data
    assert whole.can_delete_local_storage is False
    assert listed(api, instance_id=instance.id, lifecycle_state="SCHEDULED", correlation_token="rack")
    for nothing in (
        {"lifecycle_state": "STARTED"},
        {"instance_action": "STOP"},
        {"time_window_start_less_than_or_equal_to": in_(1)},
        {"time_window_start_greater_than_or_equal_to": in_(48)},
    ):
        assert listed(api, instance_id=instance.id, **nothing) == []


def test_a_window_moves_and_an_event_is_cancelled(api: Api, subnet: Any) -> None:
    launched(api, subnet, "m-2")
    first, second = in_(5), in_(50)
    announce(api, {"name": "b", "display_name": "m-2", "time_window_start": first.isoformat()})
    (event,) = [each for each in listed(api) if each.display_name == "b"]
    assert event.time_window_start == first
    announce(api, {"name": "b", "display_name": "m-2", "time_window_start": second.isoformat()})
    assert api.compute.get_instance_maintenance_event(event.id).data.time_window_start == second
    announce(api)
    assert api.compute.get_instance_maintenance_event(event.id).data.lifecycle_state == "CANCELED"


def test_a_client_moves_it_and_the_machine_is_rebooted_then(api: Api, subnet: Any) -> None:
    instance = launched(api, subnet, "m-3")
    announce(
        api,
        {
            "name": "c",
            "display_name": "m-3",
            "in": 86400,
            "estimated_duration": "PT0S",
            "hard_due": in_(99).isoformat(),
        },
    )
    (event,) = [each for each in listed(api) if each.display_name == "c"]
    change = api.compute.update_instance_maintenance_event

    def moved() -> Any:
        # Refused where the window has begun before the request arrives.
        return change(event.id, Details(time_window_start=datetime.now(UTC) + timedelta(seconds=1)))

    answer = wait_for("the window is moved", moved, ignore=oci.exceptions.ServiceError)
    assert answer.headers["opc-work-request-id"]

    def now() -> Any:
        return api.compute.get_instance_maintenance_event(event.id).data

    api.wait(lambda _: api.compute.get_instance_maintenance_event(event.id), "", "SUCCEEDED")
    assert now().time_started is not None
    assert now().time_finished is not None
    api.wait(api.compute.get_instance, instance.id, "RUNNING")
    # What is over stays as it is, also when its announcement is gone.
    announce(api)
    assert now().lifecycle_state == "SUCCEEDED"
    with refused(409, "IncorrectState"):
        change(event.id, Details(time_window_start=in_(2)))


def test_a_stop_stops_the_machine_until_the_end(api: Api, subnet: Any) -> None:
    instance = launched(api, subnet, "m-4")
    announce(api, {"name": "d", "display_name": "m-4", "in": 0, "action": "STOP", "estimated_duration": "PT3600S"})
    (event,) = [each for each in listed(api) if each.display_name == "d"]
    assert event.lifecycle_state == "STARTED"
    api.wait(api.compute.get_instance, instance.id, "STOPPED")


@pytest.mark.parametrize(
    ("entry", "details", "refusal"),
    [
        ({"can_reschedule": False}, Details(time_window_start=in_(2)), (409, "IncorrectState")),
        ({}, Details(time_window_start=in_(-2)), (400, "InvalidParameter")),
        ({"hard_due": in_(30).isoformat()}, Details(time_window_start=in_(40)), (400, "InvalidParameter")),
    ],
)
def test_what_is_refused(
    api: Api, subnet: Any, entry: dict[str, Any], details: Any, refusal: tuple[int, str], request: pytest.FixtureRequest
) -> None:
    name = f"r-{abs(hash(request.node.name))}"
    launched(api, subnet, name)
    announce(api, {"name": name, "display_name": name, "in": 86400, **entry})
    (event,) = [each for each in listed(api) if each.display_name == name]
    with refused(*refusal):
        api.compute.update_instance_maintenance_event(event.id, details)
    with refused(412, "NoEtagMatch"):
        api.compute.update_instance_maintenance_event(event.id, Details(display_name="x"), if_match="1-1-1")
    api.compute.update_instance_maintenance_event(event.id, Details(display_name="x"))
    with refused(404, "NotAuthorizedOrNotFound"):
        api.compute.get_instance_maintenance_event(event.id + "x")


def test_a_file_that_is_wrong_makes_each_request_fail(api: Api) -> None:
    announce(api, {"name": "x", "display_name": "m-1"})
    with pytest.raises(oci.exceptions.ServiceError, match="is not a list of events"):
        listed(api)


@pytest.mark.slow
def test_two_requests_at_the_moment_of_a_reboot_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as api:
        own = api.launch(api.subnet(api.vcn()), "m-1").id
        announce(api, {"name": "e", "display_name": "m-1", "in": 0})
        control.stop(api.home)
    cloud = open_cloud(tmp_path, NullEngine(tmp_path / "null"), open_authority(tmp_path))
    find = cloud.store.find
    inner: list[str] = []

    def found(kind: str, **more: Any) -> Any:
        rows = find(kind, **more)
        if kind == maintenance_events.KIND and rows and not inner and not cloud.store._depth:
            inner.append("another request has found the same")
            maintenance_events._follow(cloud)
        return rows

    monkeypatch.setattr(cloud.store, "find", found)
    monkeypatch.setattr(cloud, "submit", lambda _what, job, *_more: job())
    try:
        maintenance_events._follow(cloud)
        requests = find("coreservicesworkrequest", gone=None)
        of_it = [row for row in requests if row.body["resources"][0]["identifier"] == own]
        assert [row.body["operationType"] for row in of_it] == ["LaunchInstance", "InstanceAction"]
        assert (len(inner), cloud.get("instance", own).state) == (1, "RUNNING")
    finally:
        cloud.close()
