"""The reader of maintenance: what becomes of OCI's JSON, and the real SDK against the local cloud's server.

The server enforces the statements that the product generates.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucluster.autoscaler.daemon import maintenance
from gpucluster.autoscaler.daemon.maintenance import EventReader, ReaderSettings, events
from gpucluster.autoscaler.daemon.oci import OciCloud
from gpucluster.autoscaler.policy import Authentication, Policy
from gpucluster.controller.maintenance.events import DURATION_S, EVENTS, REQUESTS, EventList
from gpucluster.errors import InputError
from gpucluster.handover import iam
from gpucluster.spec import ClusterSpec, loads
from tests.localcloud.api_harness import GPU_SHAPE, Api, running
from tests.localcloud.entitled import CLUSTER as TEXT
from tests.localcloud.entitled import Entitled

# Of Oracle's page "Managing Maintenance Events" and the example of an event in it.
RAW: dict[str, Any] = {
    "id": "ocid1.instancemaintenanceevent.oc1.phx.one", "instanceId": "ocid1.instance.oc1.phx.a",
    "lifecycleState": "SCHEDULED", "maintenanceCategory": "FLEXIBLE", "maintenanceReason": "HARDWARE_REPLACEMENT",
    "instanceAction": "STOP", "alternativeResolutionActions": ["REBOOT_MIGRATION", "TERMINATE"],
    "timeWindowStart": "2023-09-18T12:00:00.000Z", "startWindowDuration": "P1D", "estimatedDuration": "P5D",
    "timeHardDueDate": "2023-10-01T12:00:00.000Z", "canReschedule": True, "correlationToken": "",
    "description": "Oracle scheduled a required maintenance action for your instance.",
}  # fmt: skip
_NUMBERS = itertools.count(1)
HOSTS = {"ocid1.instance.oc1.phx.a": ("gpu-1", "node")}


def test_an_event_is_read_as_oci_writes_it() -> None:
    (event,) = events([RAW, {**RAW, "instanceId": "another"}], HOSTS)
    assert (event.host, event.role, event.action, event.reschedulable) == ("gpu-1", "node", "STOP", True)
    assert (event.start, event.window_s, event.duration_s) == (1695038400.0, 86400.0, 5 * 86400.0)
    assert event.due == 1696161600.0
    assert event.started is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("PT4H", 14400.0), ("PT1H30M", 5400.0), ("P1W", 604800.0), ("PT90S", 90.0), ("P1DT12H", 129600.0),
     (None, DURATION_S), ("", DURATION_S), ("P", DURATION_S), ("4 hours", DURATION_S)],
)  # fmt: skip
def test_durations(text: str | None, seconds: float) -> None:
    (event,) = events([{**RAW, "estimatedDuration": text}], HOSTS)
    assert event.duration_s == seconds


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"version": 2}'])
def test_settings_that_are_wrong_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "maintenance.json"
    with pytest.raises(InputError, match="can't read"):
        ReaderSettings.load(file)
    file.write_text(content)
    with pytest.raises(InputError, match="the settings lack or misspell"):
        ReaderSettings.load(file)


# --- with the cloud -----


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("maintenance")) as api:
        yield api


class Reading:
    """A cluster without elastic pools: a controller with the generated rights, a node, and the reader."""

    def __init__(self, api: Api, folder: Path, *, early: bool) -> None:
        self.api, self.folder = api, folder
        # A dynamic group is never deleted here.
        self.name = f"demo-{next(_NUMBERS)}"
        subnet = api.subnet(api.vcn())
        self.node = api.launch(subnet, "gpu-1")
        self.controller = api.launch(subnet, "controller")
        self.entitled = Entitled(api, self.controller.id, folder / "config", name=self.name).in_group()
        self.entitled.allow([each.text for each in self.policies(early=early).controller])
        for each in ("events", "requests"):
            (folder / each).mkdir()
        authentication = Authentication("api_key", config_file=str(self.entitled.config), endpoint=api.endpoint)
        policy = Policy(self.name, api.tenancy, "local-1", authentication, {})
        hosts = {self.node.id: ("gpu-1", "node"), self.controller.id: ("controller", "controller")}
        settings = ReaderSettings(policy, (api.tenancy,), hosts, elastic=False)
        self.reader = EventReader(settings, OciCloud(policy), folder, dict)

    def spec(self, *, early: bool) -> ClusterSpec:
        text = TEXT.format(name=self.name, shape=GPU_SHAPE).replace("max_count: ", "count: 2\n    max_count: 2 # ")
        return loads(text + f"maintenance: {{enabled: true, early: {json.dumps(early)}}}\n")

    def policies(self, *, early: bool) -> iam.Policies:
        spec = self.spec(early=early)
        assert not spec.elastic_pools
        return iam.policies(spec, compartment_id=self.api.tenancy, controller_id=self.controller.id)

    def announce(self, *entries: dict[str, Any]) -> None:
        (self.api.home / "maintenance.json").write_text(json.dumps(entries))

    def read(self) -> EventList:
        self.reader.run_once()
        listing = EventList.load(self.folder / EVENTS)
        assert listing is not None
        return listing


@pytest.fixture
def reading(api: Api, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Reading]:
    made = Reading(api, tmp_path, early=getattr(request, "param", True))
    yield made
    made.announce()
    api.compute.list_instance_maintenance_events(api.tenancy)
    made.entitled.allow([])
    for instance in (made.node, made.controller):
        api.compute.terminate_instance(instance.id)
        api.wait(api.compute.get_instance, instance.id, "TERMINATED")


def test_events_of_all_hosts_are_read_with_the_generated_rights_alone(reading: Reading) -> None:
    assert reading.read().events == ()
    reading.announce(
        {"name": "a", "instance_id": reading.node.id, "in": 86400},
        {"name": "b", "instance_id": reading.controller.id, "in": 3600, "action": "STOP"},
    )
    listing = reading.read()
    assert listing.problem == ""
    assert {(each.host, each.role, each.action) for each in listing.events} == {
        ("gpu-1", "node", "REBOOT_MIGRATION"), ("controller", "controller", "STOP"),
    }  # fmt: skip
    reading.announce()
    assert {each.state for each in reading.read().events} == {"CANCELED"}


def test_a_request_is_sent_once_and_the_window_follows(reading: Reading) -> None:
    reading.announce({"name": "a", "instance_id": reading.node.id, "in": 86400})
    (event,) = reading.read().events
    start = float(int(event.start) - 80000)
    (reading.folder / REQUESTS).write_text(json.dumps({event.id: start, "ocid1.another": start}))
    (moved,) = reading.read().events
    assert moved.start == start
    # The operator moves it back: the same request is not sent again.
    reading.reader.cloud.move_maintenance(event.id, event.start)
    assert reading.read().events[0].start == pytest.approx(event.start, abs=1)


@pytest.mark.parametrize("reading", [False], indirect=True)
def test_without_the_right_to_move_the_refusal_names_it(reading: Reading) -> None:
    reading.announce({"name": "a", "instance_id": reading.node.id, "in": 86400})
    (event,) = reading.read().events
    (reading.folder / REQUESTS).write_text(json.dumps({event.id: event.start - 80000}))
    listing = reading.read()
    assert listing.events[0].start == event.start
    assert "INSTANCE_MAINTENANCE_EVENT_UPDATE" in listing.refused[event.id]


def test_without_rights_the_last_list_stays_and_the_problem_is_named(reading: Reading) -> None:
    reading.announce({"name": "a", "instance_id": reading.node.id, "in": 86400})
    before = reading.read()
    reading.entitled.allow([])
    after = reading.read()
    assert after.events == before.events
    assert after.at == before.at
    assert "INSTANCE_MAINTENANCE_EVENT_INSPECT" in after.problem
    assert replace(after, problem="") == before


def test_the_settings_of_the_role_are_read(tmp_path: Path) -> None:
    file = tmp_path / "maintenance.json"
    content = {
        "version": maintenance.VERSION, "cluster": "demo", "identity": "i", "compartment_id": "c",
        "elastic_compartment_id": "e", "elastic": True, "region": "r",
        "authentication": {"method": "instance_principal"},
        "hosts": {"ocid1.instance.a": {"name": "gpu-1", "role": "node"}},
    }  # fmt: skip
    file.write_text(json.dumps(content))
    settings = ReaderSettings.load(file)
    assert settings.compartments == ("c", "e")
    assert settings.hosts == {"ocid1.instance.a": ("gpu-1", "node")}
    file.write_text(json.dumps({**content, "hosts": {"x": {"name": "y", "role": "king"}}}))
    with pytest.raises(InputError):
        ReaderSettings.load(file)
