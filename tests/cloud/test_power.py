"""An instance is stopped before its volume goes to another one: the API of a local cloud that launches nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.power import InstancePower
from gpucluster.events import Event
from tests.localcloud.api_harness import Api, running


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("power"))) as api:
        yield api


def test_an_instance_is_stopped_once_and_one_that_is_gone_is_left(api: Api) -> None:
    events: list[Event] = []
    power = InstancePower(CloudAccess(api.config, api.endpoint, api.tenancy), events.append)
    instance = api.launch(api.subnet(api.vcn()), "controller")
    power.stop(instance.id, "demo-controller")
    assert api.compute.get_instance(instance.id).data.lifecycle_state == "STOPPED"
    assert [(event.name, event.status) for event in events] == [("instance demo-controller", "stopping")]
    power.stop(instance.id, "demo-controller")
    api.compute.terminate_instance(instance.id)
    api.wait(api.compute.get_instance, instance.id, "TERMINATED")
    power.stop(instance.id, "demo-controller")
    power.stop("ocid1.instance.local..missing", "demo-controller")
    assert len(events) == 1
