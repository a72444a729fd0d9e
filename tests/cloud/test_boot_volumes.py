"""Boot volumes that are replaced in place, against the API of the local cloud, with an engine that starts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from oci.core import models

from gpucluster.cloud.boot_volumes import BootedFrom, BootVolumes, NewVolume
from gpucluster.cloud.client import CloudAccess
from gpucluster.errors import CloudError
from gpucluster.events import ignore
from tests.localcloud.api_harness import Api, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("volumes") / "cloud") as api:
        yield api


@pytest.fixture
def api(shared: Api) -> Iterator[Api]:
    yield shared
    shared.faults()


@pytest.fixture(scope="module")
def subnet(shared: Api) -> Any:
    return shared.subnet(shared.vcn())


@pytest.fixture
def nodes(api: Api, subnet: Any) -> Iterator[dict[str, str]]:
    """Two instances: the name of each by its OCID."""
    made = {api.launch(subnet, name).id: name for name in ("n1", "n2")}
    yield made
    for ocid in made:
        if api.compute.get_instance(ocid).data.lifecycle_state != "TERMINATED":
            api.compute.terminate_instance(ocid)
    for ocid in made:  # until then its host name is in use, and the next test needs it
        api.wait(api.compute.get_instance, ocid, "TERMINATED")


@pytest.fixture
def volumes(api: Api) -> BootVolumes:
    return BootVolumes(CloudAccess(api.config, api.endpoint, api.tenancy), ignore)


@pytest.fixture
def image(api: Api) -> str:
    listed = api.compute.list_images(api.tenancy, operating_system="Debian", operating_system_version="12").data
    return str(listed[0].id)


def test_several_are_replaced_and_those_that_have_the_image_are_left(
    api: Api, volumes: BootVolumes, nodes: dict[str, str], image: str
) -> None:
    assert volumes.replace(nodes, image) == dict.fromkeys(nodes, NewVolume())
    assert volumes.sources(nodes) == dict.fromkeys(nodes, BootedFrom(image, "RUNNING"))
    api.faults({"operation": "UpdateInstance", "status": 500})
    assert volumes.replace(nodes, image) == dict.fromkeys(nodes, NewVolume())


def test_one_that_is_changed_already_is_awaited(
    api: Api, volumes: BootVolumes, nodes: dict[str, str], image: str
) -> None:
    """The run before was killed after its request."""
    api.faults({"operation": "ReplaceBootVolume", "delay": 1})
    first = next(iter(nodes))
    details = models.UpdateInstanceDetails(source_details=models.UpdateInstanceSourceViaImageDetails(image_id=image))
    api.compute.update_instance(first, details)
    assert volumes.replace({first: nodes[first]}, image) == {first: NewVolume()}


def test_a_refusal_and_a_rollback_are_told_apart(
    api: Api, volumes: BootVolumes, nodes: dict[str, str], image: str
) -> None:
    other = api.named_image("Oracle-Linux-9.7-2026.06.15-0").id
    for volume in volumes.replace(nodes, other).values():
        assert "same distribution" in volume.refused
    api.faults({"operation": "ReplaceBootVolume", "message": "The volume failed."})
    for volume in volumes.replace(nodes, image).values():
        assert "The volume failed (work request" in volume.failed
    api.faults({"operation": "UpdateInstance", "status": 503})
    with pytest.raises(CloudError, match="503"):
        volumes.replace(nodes, image)


def test_a_stopped_or_lost_instance_is_an_error_and_no_change(
    api: Api, volumes: BootVolumes, nodes: dict[str, str], image: str
) -> None:
    first, second = nodes
    api.compute.instance_action(first, "STOP")
    api.wait(api.compute.get_instance, first, "STOPPED")
    with pytest.raises(CloudError, match="n1 is STOPPED"):
        volumes.replace({first: "n1"}, image)
    api.compute.terminate_instance(second)
    api.wait(api.compute.get_instance, second, "TERMINATED")
    with pytest.raises(CloudError, match="n2 is TERMINATED"):
        volumes.replace({second: "n2"}, image)
    assert second not in volumes.sources(nodes)


def test_an_image_that_is_gone_is_an_error(volumes: BootVolumes, image: str) -> None:
    assert volumes.check_image(image) == "Debian"
    with pytest.raises(CloudError, match="does not exist any more"):
        volumes.check_image("ocid1.image.oc1..gone")
