"""Security rules of groups, and the services behind a service gateway, with the real SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def test_gateways_and_services(api: Api, vcn: Any) -> None:
    common = {"compartment_id": api.tenancy, "vcn_id": vcn.id}
    service = next(one for one in api.network.list_services().data if one.name.startswith("All "))
    nat = api.network.create_nat_gateway(models.CreateNatGatewayDetails(**common)).data
    details = models.CreateServiceGatewayDetails(
        **common, services=[models.ServiceIdRequestDetails(service_id=service.id)]
    )
    gateway = api.network.create_service_gateway(details).data
    assert gateway.services[0].service_name == service.name
    assert (nat.block_traffic, gateway.block_traffic) == (False, False)
    assert nat.nat_ip
    with refused(400, "InvalidParameter"):
        wrong = [models.ServiceIdRequestDetails(service_id="ocid1.service.local..none")]
        api.network.update_service_gateway(gateway.id, models.UpdateServiceGatewayDetails(services=wrong))
    api.network.delete_service_gateway(gateway.id)
    api.network.delete_nat_gateway(nat.id)


def test_rules_of_a_group_come_change_and_go(api: Api, vcn: Any) -> None:
    details = models.CreateNetworkSecurityGroupDetails(compartment_id=api.tenancy, vcn_id=vcn.id, display_name="g")
    group = api.network.create_network_security_group(details).data
    rule = models.AddSecurityRuleDetails(
        direction="INGRESS", protocol="6", source="10.77.0.0/16", source_type="CIDR_BLOCK"
    )
    added = api.network.add_network_security_group_security_rules(
        group.id, models.AddNetworkSecurityGroupSecurityRulesDetails(security_rules=[rule])
    ).data.security_rules[0]
    assert added.is_stateless is False
    change = models.UpdateSecurityRuleDetails(id=added.id, direction="INGRESS", protocol="17", source="10.77.0.0/16")
    api.network.update_network_security_group_security_rules(
        group.id, models.UpdateNetworkSecurityGroupSecurityRulesDetails(security_rules=[change])
    )
    rules = api.network.list_network_security_group_security_rules(group.id, direction="INGRESS").data
    assert [one.protocol for one in rules] == ["17"]
    assert api.network.list_network_security_group_security_rules(group.id, direction="EGRESS").data == []
    api.network.remove_network_security_group_security_rules(
        group.id, models.RemoveNetworkSecurityGroupSecurityRulesDetails(security_rule_ids=[added.id])
    )
    assert api.network.list_network_security_group_security_rules(group.id).data == []
    with refused(400, "InvalidParameter"):
        wrong = models.AddSecurityRuleDetails(direction="INGRESS", protocol="6", source="not a cidr")
        api.network.add_network_security_group_security_rules(
            group.id, models.AddNetworkSecurityGroupSecurityRulesDetails(security_rules=[wrong])
        )
    api.network.delete_network_security_group(group.id)
