"""Instance configurations with the real SDK: launches from them, and what a launch overrides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from oci.core import models

from tests.localcloud.api_harness import GPU_SHAPE, Api, refused, running
from tests.localcloud.elastic_controller import TAGS, Controller

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("configurations") / "cloud") as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


@pytest.fixture(scope="module")
def configuration(api: Api, subnet: Any) -> Any:
    vnic = models.InstanceConfigurationCreateVnicDetails(subnet_id=subnet.id, assign_public_ip=False)
    return api.configuration(create_vnic_details=vnic, freeform_tags=TAGS)


@pytest.fixture(scope="module")
def controller(api: Api, subnet: Any, tmp_path_factory: pytest.TempPathFactory) -> Controller:
    return Controller(api, subnet, tmp_path_factory.mktemp("controller") / "config")


def test_a_node_is_launched_from_its_pools_configuration(
    api: Api, controller: Controller, configuration: Any, subnet: Any
) -> None:
    known = controller.management.get_instance_configuration(configuration.id).data.instance_details.launch_details
    metadata = {**known.metadata, "extra": "1"}
    reply = controller.launch(configuration, "gpu-e1", metadata=metadata)
    instance = api.wait(controller.compute.get_instance, reply.data.id, "RUNNING")
    assert instance.display_name == "gpu-e1"
    assert instance.freeform_tags == {**TAGS, "node": "gpu-e1", "generation": "1"}
    assert instance.metadata == metadata
    assert instance.shape == GPU_SHAPE
    attachment = controller.compute.list_vnic_attachments(api.tenancy, instance_id=instance.id).data[0]
    vnic = controller.network.get_vnic(attachment.vnic_id).data
    assert (vnic.hostname_label, vnic.public_ip, vnic.subnet_id) == ("gpu-e1", None, subnet.id)
    requests = controller.work.list_work_requests(api.tenancy, resource_id=instance.id).data
    assert [(one.operation_type, one.status) for one in requests] == [("LaunchInstance", "SUCCEEDED")]
    assert requests[0].id == reply.headers["opc-work-request-id"]
    assert controller.work.list_work_request_errors(requests[0].id).data == []


def test_a_launch_from_a_configuration_is_overridden_by_the_callers_details(api: Api) -> None:
    subnet = api.subnet(api.vcn(), prohibit_public_ip_on_vnic=True)
    configuration = api.configuration()
    overrides = models.ComputeInstanceDetails(
        launch_details=models.InstanceConfigurationLaunchInstanceDetails(
            display_name="elastic-1",
            freeform_tags={"pool": "compute"},
            create_vnic_details=models.InstanceConfigurationCreateVnicDetails(
                subnet_id=subnet.id, hostname_label="elastic-1"
            ),
        )
    )
    launched = api.management.launch_instance_configuration(configuration.id, overrides).data
    instance = api.wait(api.compute.get_instance, launched.id, "RUNNING")
    assert instance.display_name == "elastic-1"
    assert instance.freeform_tags == {"pool": "compute"}
    assert instance.metadata == {"ssh_authorized_keys": "ssh-ed25519 AAAA one"}
    assert instance.instance_configuration_id == configuration.id
    attachment = api.compute.list_vnic_attachments(api.tenancy, instance_id=instance.id).data[0]
    vnic = api.network.get_vnic(attachment.vnic_id).data
    assert (vnic.hostname_label, vnic.public_ip) == ("elastic-1", None)


def test_a_configuration_in_use_stays(api: Api, subnet: Any) -> None:
    configuration = api.configuration()
    network = api.cluster_network(configuration, subnet, 1)
    api.wait(api.management.get_cluster_network, network.id, "RUNNING")
    with refused(409, "Conflict") as said:
        api.management.delete_instance_configuration(configuration.id)
    assert said == [f"The Instance Configuration {configuration.id} is associated to one or more Instance Pools."]
    api.management.terminate_cluster_network(network.id)
    api.wait(api.management.get_cluster_network, network.id, "TERMINATED")
    api.management.delete_instance_configuration(configuration.id)
