"""VNICs, addresses and boot volumes of instances, with the real SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
