"""The rows of a launch, with the real SDK and an engine that launches nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.core import models

from tests.localcloud.api_harness import Api, refused, running
from tests.localcloud.compute.test_lifecycle import vnic_of
from tests.localcloud.elastic_controller import TAGS, Controller


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("instances"))) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


@pytest.fixture(scope="module")
def private(api: Api, subnet: Any) -> Any:
    vcn = api.network.get_vcn(subnet.vcn_id).data
    return api.subnet(vcn, "10.77.1.0/24", dns_label="prv", prohibit_public_ip_on_vnic=True)


def test_the_engine_gets_names_address_and_label(api: Api, private: Any) -> None:
    instance = api.launch(private, "Node-7")
    name = f"gpucluster-node-7-{instance.id[-12:]}"
    record = json.loads((api.home / "null" / "machines" / name).read_text())
    assert record == {
        "state": "running",
        "ocid": instance.id,
        "ip": vnic_of(api, instance).private_ip,
        "hostname": "node-7",
        "network": f"gpucluster-{private.vcn_id[-12:]}",
    }
    assert vnic_of(api, instance).public_ip is None
    api.compute.terminate_instance(instance.id)
    api.wait(api.compute.get_instance, instance.id, "TERMINATED")
    assert not (api.home / "null" / "machines" / name).exists()


def test_addresses_are_the_lowest_free_ones_and_come_back(api: Api, subnet: Any) -> None:
    vcn = api.network.get_vcn(subnet.vcn_id).data
    empty = api.subnet(vcn, "10.77.2.0/24", dns_label="low")
    first, second = api.launch(empty, "low1"), api.launch(empty, "low2")
    assert vnic_of(api, first).private_ip == "10.77.2.2"
    assert vnic_of(api, second).private_ip == "10.77.2.3"
    api.compute.terminate_instance(first.id)
    api.wait(api.compute.get_instance, first.id, "TERMINATED")
    third = api.launch(empty, "low3")
    assert vnic_of(api, third).private_ip == "10.77.2.2"
    fixed = api.launch(empty, "fixed", vnic={"private_ip": "10.77.2.99"})
    assert vnic_of(api, fixed).private_ip == "10.77.2.99"
    for wrong in ("10.77.2.99", "10.77.2.1", "10.77.2.255", "10.77.3.5", "x"):
        with refused(400, "InvalidParameter"):
            api.launch(empty, "wrong", vnic={"private_ip": wrong})


def test_a_host_name_is_taken_once(api: Api, private: Any) -> None:
    api.launch(private, "twin")
    with refused(400, "InvalidParameter") as said:
        api.launch(private, "other", vnic={"hostname_label": "TWIN"})
    assert "already in use" in said[0]


def test_what_a_launch_refuses(api: Api, subnet: Any) -> None:
    with refused(404, "NotAuthorizedOrNotFound"):
        api.launch(subnet, "bad", shape="BM.Nothing.1")
    with refused(400, "InvalidParameter"):
        api.launch(subnet, "bad", shape_config=None)
    with refused(400, "InvalidParameter"):
        api.launch(subnet, "bad", availability_domain="other:AD-1")
    with refused(400, "InvalidParameter"):
        api.launch(subnet, "bad", metadata={"user_data": "no base64!"})
    with refused(400, "InvalidParameter"):
        api.launch(subnet, "bad", freeform_tags={f"tag-{number}": "x" for number in range(11)})
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound"):
        api.launch(subnet, "bad", source_details=models.InstanceSourceViaImageDetails(image_id="ocid1.image.local..no"))
    assert api.compute.list_instances(api.tenancy, display_name="bad").data == []


@pytest.fixture(scope="module")
def configuration(api: Api, subnet: Any) -> Any:
    vnic = models.InstanceConfigurationCreateVnicDetails(subnet_id=subnet.id, assign_public_ip=False)
    return api.configuration(create_vnic_details=vnic, freeform_tags=TAGS)


@pytest.fixture(scope="module")
def controller(api: Api, subnet: Any, tmp_path_factory: pytest.TempPathFactory) -> Controller:
    return Controller(api, subnet, tmp_path_factory.mktemp("controller") / "config")


@pytest.mark.slow
def test_a_host_name_is_free_when_its_instance_is_gone(api: Api, controller: Controller, configuration: Any) -> None:
    first = controller.launch(configuration, "gpu-e3").data.id
    api.faults({"operation": "EndInstance", "until_removed": True})
    controller.compute.terminate_instance(first)
    with refused(400, "InvalidParameter") as said:
        controller.launch(configuration, "gpu-e3", generation=2)
    assert "already in use" in said[0]
    api.faults()
    api.wait(controller.compute.get_instance, first, "TERMINATED")
    controller.launch(configuration, "gpu-e3", generation=2)
