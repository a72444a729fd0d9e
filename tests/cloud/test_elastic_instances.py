"""Elastic nodes and builders with the real SDK: found by their tags, removed, launched.

Their configurations as Terraform makes them: tests/terraform/test_tf_elastic.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest
from oci.core import models

from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.errors import CloudError
from gpucluster.events import Event, ignore
from tests.localcloud.api_harness import Api, running

pytestmark = pytest.mark.slow

NODE = {"gpucluster": "demo", "role": "compute", "pool": "gpu"}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running(tmp_path / "cloud") as api:
        yield api


@pytest.fixture
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


@pytest.fixture
def access(api: Api) -> CloudAccess:
    config = oci.config.from_file(str(api.home / "credentials" / "config"))
    return CloudAccess(config, api.endpoint, api.tenancy)


def alive(api: Api) -> set[str]:
    listed = api.compute.list_instances(api.tenancy).data
    return {each.display_name for each in listed if each.lifecycle_state not in ("TERMINATED", "TERMINATING")}


def test_nodes_of_the_cluster_are_found_by_name_and_removed_as_selected(
    api: Api, subnet: Any, access: CloudAccess
) -> None:
    for number in (10, 9):
        api.launch(subnet, f"gpu-e{number}", freeform_tags={**NODE, "node": f"gpu-e{number}"})
    api.launch(subnet, "permanent", freeform_tags=NODE)
    api.launch(subnet, "other", freeform_tags={**NODE, "gpucluster": "other", "node": "gpu-e1"})
    announced: list[Event] = []
    elastic = ElasticInstances(access, "demo", announced.append)
    assert [(each.node, each.pool, each.builder) for each in elastic.instances()] == [
        ("gpu-e9", "gpu", False),
        ("gpu-e10", "gpu", False),
    ]
    assert all(each.created > 0 for each in elastic.instances())
    assert elastic.remove(lambda each: each.node == "gpu-e10") == 1
    assert alive(api) == {"gpu-e9", "permanent", "other"}
    assert elastic.remove() == 1
    assert elastic.remove() == 0
    assert alive(api) == {"permanent", "other"}
    assert [event.status for event in announced] == ["deleting", "deleted"] * 2


def test_a_builder_is_launched_from_the_configuration_with_another_image(
    api: Api, subnet: Any, access: CloudAccess
) -> None:
    vnic = models.InstanceConfigurationCreateVnicDetails(subnet_id=subnet.id)
    configuration = api.configuration(create_vnic_details=vnic, freeform_tags={**NODE, "team": "a"})
    image = api.compute.list_images(api.tenancy, operating_system="Debian").data[-1].id
    elastic = ElasticInstances(access, "demo", ignore)
    ocid = elastic.launch_builder("gpu", "demo-gpu-builder", configuration.id, image)
    made = api.compute.get_instance(ocid).data
    assert (made.lifecycle_state, made.image_id, made.display_name) == ("RUNNING", image, "demo-gpu-builder")
    assert made.freeform_tags["team"] == "a"
    (found,) = elastic.instances()
    assert (found.id, found.node, found.pool, found.builder) == (ocid, "demo-gpu-builder", "gpu", True)


def test_a_builder_that_does_not_come_to_run_is_reported(api: Api, subnet: Any, access: CloudAccess) -> None:
    vnic = models.InstanceConfigurationCreateVnicDetails(subnet_id=subnet.id)
    configuration = api.configuration(create_vnic_details=vnic)
    fault = {"operation": "BootInstance", "status": 500, "code": "InternalError", "message": "Out of host capacity."}
    api.faults(fault)
    image = api.compute.list_images(api.tenancy).data[0].id
    with pytest.raises(CloudError, match="does not run"):
        ElasticInstances(access, "demo", ignore).launch_builder("gpu", "b", configuration.id, image)
