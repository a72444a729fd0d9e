"""Core networking, with the real SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest
from oci.core import models

from tests.localcloud.api_harness import Api, refused, running


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("network"))) as api:
        yield api


@pytest.fixture
def vcn(api: Api) -> Iterator[Any]:
    vcn = api.vcn()
    yield vcn
    for subnet in api.network.list_subnets(api.tenancy, vcn_id=vcn.id).data:
        api.network.delete_subnet(subnet.id)
    api.network.delete_vcn(vcn.id)


def test_a_vcn_comes_with_its_defaults_and_takes_them_along(api: Api) -> None:
    vcn = api.vcn(name="alone")
    vcn = oci.wait_until(api.network, api.network.get_vcn(vcn.id), "lifecycle_state", "AVAILABLE").data
    assert vcn.cidr_block == "10.77.0.0/16"
    assert vcn.vcn_domain_name == "alone.oraclevcn.com"
    assert api.network.get_route_table(vcn.default_route_table_id).data.route_rules == []
    rules = api.network.get_security_list(vcn.default_security_list_id).data.ingress_security_rules
    assert rules[0].tcp_options.destination_port_range.min == 22
    assert api.network.get_dhcp_options(vcn.default_dhcp_options_id).data.vcn_id == vcn.id
    with refused(409, "Conflict"):
        api.network.delete_route_table(vcn.default_route_table_id)
    api.network.delete_vcn(vcn.id)
    assert api.network.get_vcn(vcn.id).data.lifecycle_state == "TERMINATED"
    assert vcn.id not in [other.id for other in api.network.list_vcns(api.tenancy).data]
    assert api.network.get_route_table(vcn.default_route_table_id).data.lifecycle_state == "TERMINATED"


def test_the_network_behind_a_vcn_comes_and_goes(api: Api) -> None:
    vcn = api.vcn(name="behind")
    network = api.home / "null" / "networks" / f"gpucluster-{vcn.id[-12:]}"
    assert network.exists()
    api.network.delete_vcn(vcn.id)
    assert not network.exists()


@pytest.mark.parametrize(
    ("cidr", "why"),
    [
        ("10.77.0.1/24", "host bits"),
        ("10.78.0.0/24", "not within"),
        ("10.77.5.0/24", "overlaps"),
        ("10.77.0.0/31", "between"),
        ("nonsense", "invalid"),
    ],
)
def test_a_wrong_subnet_is_refused(api: Api, vcn: Any, cidr: str, why: str) -> None:
    api.subnet(vcn, "10.77.4.0/22")
    with refused(400, "InvalidParameter") as said:
        api.subnet(vcn, cidr, dns_label="other")
    assert why in said[0]


def test_a_subnet_takes_defaults_and_keeps_its_two_prohibitions_equal(api: Api, vcn: Any) -> None:
    subnet = api.subnet(vcn, prohibit_public_ip_on_vnic=True)
    assert (subnet.prohibit_internet_ingress, subnet.prohibit_public_ip_on_vnic) == (True, True)
    assert subnet.route_table_id == vcn.default_route_table_id
    assert subnet.security_list_ids == [vcn.default_security_list_id]
    assert subnet.virtual_router_ip == "10.77.0.1"
    assert subnet.subnet_domain_name == "sub.net.oraclevcn.com"


def test_things_in_use_are_not_deleted(api: Api, vcn: Any) -> None:
    common = {"compartment_id": api.tenancy, "vcn_id": vcn.id}
    gateway = api.network.create_internet_gateway(
        models.CreateInternetGatewayDetails(**common, is_enabled=True, display_name="igw")
    ).data
    rule = models.RouteRule(destination="0.0.0.0/0", network_entity_id=gateway.id)
    table = api.network.create_route_table(models.CreateRouteTableDetails(**common, route_rules=[rule])).data
    assert table.route_rules[0].destination_type == "CIDR_BLOCK"
    subnet = api.subnet(vcn, route_table_id=table.id)
    for delete, ocid in (
        (api.network.delete_internet_gateway, gateway.id),
        (api.network.delete_route_table, table.id),
        (api.network.delete_vcn, vcn.id),
    ):
        with refused(409, "Conflict"):
            delete(ocid)
    api.network.delete_subnet(subnet.id)
    api.network.delete_route_table(table.id)
    with refused(409, "Conflict"):
        api.network.create_internet_gateway(models.CreateInternetGatewayDetails(**common, is_enabled=True))
    api.network.delete_internet_gateway(gateway.id)


def test_a_vcn_has_as_many_blocks_as_on_oci_and_instances_in_each(api: Api) -> None:
    details = models.CreateVcnDetails(
        compartment_id=api.tenancy, cidr_blocks=["10.81.0.0/24", "10.82.0.0/24"], dns_label="two"
    )
    vcn = api.network.create_vcn(details).data
    assert (vcn.cidr_block, vcn.cidr_blocks) == ("10.81.0.0/24", ["10.81.0.0/24", "10.82.0.0/24"])
    first, second = api.subnet(vcn, "10.81.0.0/25"), api.subnet(vcn, "10.82.0.128/25", dns_label="other")
    launched = [api.launch(subnet, name) for subnet, name in ((first, "one"), (second, "two"))]

    def engine(kind: str) -> list[dict[str, Any]]:
        files = (api.home / "null" / kind).iterdir()
        return [{"name": file.name, **json.loads(file.read_text())} for file in files]

    def blocks() -> dict[str, str]:
        return {each["name"]: each["cidr"] for each in engine("networks") if each["cidr"].startswith("10.8")}

    assert sorted(blocks().values()) == ["10.81.0.0/24", "10.82.0.0/24"]
    where = {each["ocid"]: blocks()[each["network"]] for each in engine("machines")}
    assert where == {launched[0].id: "10.81.0.0/24", launched[1].id: "10.82.0.0/24"}
    api.kill()
    api.start()
    assert sorted(blocks().values()) == ["10.81.0.0/24", "10.82.0.0/24"]
    with refused(400, "InvalidParameter"):
        api.subnet(vcn, "10.83.0.0/25")
    overlapping = models.CreateVcnDetails(compartment_id=api.tenancy, cidr_blocks=["10.84.0.0/16", "10.84.1.0/24"])
    with refused(400, "InvalidParameter"):
        api.network.create_vcn(overlapping)
    for instance in launched:
        api.compute.terminate_instance(instance.id)
        api.wait(api.compute.get_instance, instance.id, "TERMINATED")
    for subnet in (first, second):
        api.network.delete_subnet(subnet.id)
    api.network.delete_vcn(vcn.id)
    assert blocks() == {}
