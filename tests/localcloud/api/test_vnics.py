"""VNICs, addresses and boot volumes of instances, with the real SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.core import models

from tests.localcloud.api_harness import Api, refused, running


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


def test_a_subnet_without_public_addresses_gives_none(api: Api, private: Any) -> None:
    with refused(400, "InvalidParameter"):
        api.launch(private, "pub", vnic={"assign_public_ip": True})


def test_a_boot_volume_can_be_kept(api: Api, private: Any) -> None:
    instance = api.launch(private, "keeper")
    found = api.compute.list_boot_volume_attachments(instance.availability_domain, api.tenancy, instance_id=instance.id)
    volume = found.data[0].boot_volume_id
    with refused(409, "IncorrectState"):
        api.block.delete_boot_volume(volume)
    api.compute.terminate_instance(instance.id, preserve_boot_volume=True)
    api.wait(api.compute.get_instance, instance.id, "TERMINATED")
    assert api.block.get_boot_volume(volume).data.lifecycle_state == "AVAILABLE"
    api.block.delete_boot_volume(volume)
    assert api.block.get_boot_volume(volume).data.lifecycle_state == "TERMINATED"


def test_an_occupied_subnet_stays(api: Api, private: Any) -> None:
    api.launch(private, "holder")
    with refused(409, "Conflict") as said:
        api.network.delete_subnet(private.id)
    assert "references the VNIC" in said[0]


def vnic_of(api: Api, instance: Any) -> str:
    (attachment,) = api.compute.list_vnic_attachments(api.tenancy, instance_id=instance.id).data
    return str(attachment.vnic_id)


def test_a_secondary_address_moves_to_another_vnic_of_its_subnet_and_ends_with_it(api: Api, subnet: Any) -> None:
    one, two = (api.launch(subnet, name) for name in ("first", "second"))
    here, there = vnic_of(api, one), vnic_of(api, two)
    made = api.network.create_private_ip(models.CreatePrivateIpDetails(vnic_id=here, display_name="service")).data
    assert (made.is_primary, made.subnet_id, made.vnic_id) == (False, subnet.id, here)
    moved = api.network.update_private_ip(made.id, models.UpdatePrivateIpDetails(vnic_id=there)).data
    assert (moved.vnic_id, moved.ip_address, moved.display_name) == (there, made.ip_address, "service")
    again = models.CreatePrivateIpDetails(vnic_id=here, ip_address=made.ip_address)
    with refused(400, "InvalidParameter"):
        api.network.create_private_ip(again)
    api.compute.terminate_instance(one.id)
    api.wait(api.compute.get_instance, one.id, "TERMINATED")
    assert api.network.get_private_ip(made.id).data.vnic_id == there
    api.compute.terminate_instance(two.id)
    api.wait(api.compute.get_instance, two.id, "TERMINATED")
    assert not api.network.list_private_ips(subnet_id=subnet.id, ip_address=made.ip_address).data
    three = api.launch(subnet, "third")
    again.vnic_id = vnic_of(api, three)
    address = api.network.create_private_ip(again).data
    api.network.delete_private_ip(address.id)
    assert not api.network.list_private_ips(subnet_id=subnet.id, ip_address=made.ip_address).data


def test_what_is_refused_of_secondary_addresses(api: Api, subnet: Any, private: Any) -> None:
    here, there = vnic_of(api, api.launch(subnet, "here")), vnic_of(api, api.launch(private, "there"))
    (primary,) = api.network.list_private_ips(vnic_id=here).data
    with refused(400, "InvalidParameter") as said:
        api.network.update_private_ip(primary.id, models.UpdatePrivateIpDetails(display_name="x"))
    assert "primary" in said[0]
    with refused(400, "InvalidParameter"):
        api.network.delete_private_ip(primary.id)
    made = api.network.create_private_ip(models.CreatePrivateIpDetails(vnic_id=here)).data
    with refused(400, "InvalidParameter") as said:
        api.network.update_private_ip(made.id, models.UpdatePrivateIpDetails(vnic_id=there))
    assert "subnet" in said[0]
    with refused(400, "InvalidParameter"):
        api.network.create_private_ip(models.CreatePrivateIpDetails(vnic_id=here, ip_address="10.99.9.9"))
