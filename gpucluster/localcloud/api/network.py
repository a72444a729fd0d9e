"""Core networking: VCNs, subnets, gateways, route tables, security lists and groups, DHCP options.

Each CIDR block of a VCN is a network of the engine. Everything else is stored and shown but has no effect on this
machine: packets are neither routed by these route tables nor filtered by these rules.
"""

from __future__ import annotations

import ipaddress
from functools import partial
from typing import Any

from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.api import kinds, security
from gpucluster.localcloud.api.kinds import ResourceKind
from gpucluster.localcloud.compute.addresses import engine_networks
from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.names import new_ocid
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import CORE, ApiRoute, conflict, invalid

IPv4 = ipaddress.IPv4Network
_MOST_BLOCKS = 5  # OCI's limit (docs: Overview of VCNs and Subnets)


def _in_use(resource: Resource, by: Resource) -> Exception:
    return conflict(
        f"The {resource.kind} {resource.id} is referenced by the {by.kind} {by.id}."
        " You must remove the reference to proceed with this operation."
    )


# VCN


def _prepare_vcn(cloud: CloudState, body: Json) -> Json:
    blocks = body.get("cidrBlocks") or [body.pop("cidrBlock", None)]
    parsed = [security.cidr(block) for block in blocks]
    if len(parsed) > _MOST_BLOCKS:
        raise invalid(f"A VCN has at most {_MOST_BLOCKS} CIDR blocks")
    for number, block in enumerate(parsed):
        for other in parsed[:number]:
            if block.overlaps(other):
                raise invalid(f"The CIDR blocks {other} and {block} of the VCN overlap")
    label = body.get("dnsLabel")
    return {
        **body,
        "cidrBlock": str(parsed[0]),
        "cidrBlocks": [str(block) for block in parsed],
        **({"vcnDomainName": f"{label}.oraclevcn.com"} if label else {}),
    }


def _make_vcn(cloud: CloudState, vcn: Resource) -> None:
    if "defaultRouteTableId" not in vcn.body:
        _add_defaults(cloud, vcn)
    create_network(cloud, vcn)


def _add_defaults(cloud: CloudState, vcn: Resource) -> None:
    with cloud.store.transaction():
        common = {"compartmentId": vcn.body["compartmentId"], "vcnId": vcn.id}
        name = vcn.body["displayName"]
        ssh = {"protocol": "6", "source": "0.0.0.0/0", "tcpOptions": {"destinationPortRange": {"min": 22, "max": 22}}}
        defaults: dict[str, tuple[ResourceKind, Json]] = {
            "defaultRouteTableId": (ROUTE_TABLE, {"displayName": f"Default Route Table for {name}"}),
            "defaultSecurityListId": (
                SECURITY_LIST,
                {
                    "displayName": f"Default Security List for {name}",
                    "ingressSecurityRules": [ssh],
                    "egressSecurityRules": [{"protocol": "all", "destination": "0.0.0.0/0"}],
                },
            ),
            "defaultDhcpOptionsId": (DHCP_OPTIONS, {"displayName": f"Default DHCP Options for {name}"}),
        }
        members = {member: kinds.add(cloud, kind, {**common, **extra}).id for member, (kind, extra) in defaults.items()}
        cloud.update("vcn", vcn.id, **members)


def create_network(cloud: CloudState, vcn: Resource) -> None:
    """Create the engine's networks of a VCN, one for each CIDR block."""
    created: list[str] = []
    for name, block in engine_networks(vcn).items():
        try:
            cloud.engine.create_network(name, block, cloud.labels(vcn.id))
        except GpuClusterError as error:
            for other in created:
                cloud.engine.remove_network(other)
            _remove_defaults(cloud, vcn)
            raise invalid(f"This machine can't create the network {block}: {error}") from error
        created.append(name)
    cloud.networks_changed()


def _defaults(cloud: CloudState, vcn: Resource) -> list[Resource]:
    return [
        item
        for kind in (ROUTE_TABLE, SECURITY_LIST, DHCP_OPTIONS)
        for item in cloud.store.find(kind.name, vcnId=vcn.id)
        if item.body["displayName"].startswith("Default ")
        and item.id in (vcn.body.get(member) for member in _DEFAULT_MEMBERS)
    ]


_DEFAULT_MEMBERS = ("defaultRouteTableId", "defaultSecurityListId", "defaultDhcpOptionsId")


def _remove_defaults(cloud: CloudState, vcn: Resource) -> None:
    fresh = cloud.get("vcn", vcn.id)
    with cloud.store.transaction():
        for item in _defaults(cloud, fresh):
            cloud.set_state(item.kind, item.id, LifecycleState.TERMINATED, gone=True)


def _check_delete_vcn(cloud: CloudState, vcn: Resource) -> None:
    defaults = {vcn.body.get(member) for member in _DEFAULT_MEMBERS}
    for kind in (SUBNET, *_GATEWAYS, NSG, ROUTE_TABLE, SECURITY_LIST, DHCP_OPTIONS):
        for user in cloud.store.find(kind.name, vcnId=vcn.id):
            if user.id not in defaults:
                raise _in_use(vcn, user)


def _remove_vcn_network(cloud: CloudState, vcn: Resource) -> None:
    for name in engine_networks(vcn):
        cloud.engine.remove_network(name)
    cloud.drop_exports_dir(vcn.id)
    _remove_defaults(cloud, vcn)
    cloud.networks_changed()


# subnets


def _prepare_subnet(cloud: CloudState, body: Json) -> Json:
    vcn = cloud.related("vcn", body["vcnId"])
    block = security.cidr(body.get("cidrBlock") or next(iter(body.get("ipv4CidrBlocks") or []), None))
    if not any(block.subnet_of(IPv4(theirs)) for theirs in vcn.body["cidrBlocks"]):
        raise invalid(f"The requested CIDR {block} is not within the VCN's CIDR {' or '.join(vcn.body['cidrBlocks'])}")
    for other in cloud.store.find("subnet", vcnId=vcn.id):
        if block.overlaps(IPv4(other.body["cidrBlock"])):
            theirs = f"subnet {other.id} with CIDR {other.body['cidrBlock']}"
            raise invalid(f"The requested CIDR {block} is invalid: {theirs} overlaps with this CIDR")
        if body.get("dnsLabel") and body["dnsLabel"] == other.body.get("dnsLabel"):
            raise invalid(f"The DNS label {body['dnsLabel']} is already used by subnet {other.id}")
    if body.get("dnsLabel") and not vcn.body.get("dnsLabel"):
        raise invalid("A subnet's dnsLabel needs a VCN with a dnsLabel")
    private = bool(body.get("prohibitPublicIpOnVnic", body.get("prohibitInternetIngress", False)))
    full = {
        "dhcpOptionsId": vcn.body["defaultDhcpOptionsId"],
        "routeTableId": vcn.body["defaultRouteTableId"],
        "securityListIds": [vcn.body["defaultSecurityListId"]],
        **body,
        "cidrBlock": str(block),
        "ipv4CidrBlocks": [str(block)],
        "ipv6CidrBlocks": [],
        # On OCI these two are always equal: no VNIC of the subnet has a public address.
        "prohibitPublicIpOnVnic": private,
        "prohibitInternetIngress": private,
        "virtualRouterIp": str(block[1]),
        "virtualRouterMac": "00:00:17:00:00:00",
    }
    if body.get("dnsLabel"):
        full["subnetDomainName"] = f"{body['dnsLabel']}.{vcn.body['vcnDomainName']}"
    _check_subnet_refs(cloud, full)
    return full


def _check_subnet_refs(cloud: CloudState, body: Json) -> None:
    refs = [("routetable", body.get("routeTableId")), ("dhcpoptions", body.get("dhcpOptionsId"))]
    refs += [("securitylist", ocid) for ocid in body.get("securityListIds") or []]
    for kind, ocid in refs:
        if ocid is not None and cloud.related(kind, ocid).body["vcnId"] != body["vcnId"]:
            raise invalid(f"{kind} {ocid} is not in VCN {body['vcnId']}")


def _update_subnet(cloud: CloudState, subnet: Resource, changes: Json) -> Json:
    _check_subnet_refs(cloud, {"vcnId": subnet.body["vcnId"], **changes})
    if changes.get("cidrBlock", subnet.body["cidrBlock"]) != subnet.body["cidrBlock"]:
        raise invalid("The local cloud does not change the CIDR of a subnet")
    return changes


def _check_delete_subnet(cloud: CloudState, subnet: Resource) -> None:
    for address in cloud.store.find("privateip", subnetId=subnet.id):
        raise conflict(
            f"The Subnet {subnet.id} references the VNIC {address.body.get('vnicId') or address.id}."
            " You must remove the reference to proceed with this operation."
        )


def _not_used_by_subnets(member: str, cloud: CloudState, resource: Resource) -> None:
    for subnet in cloud.store.find("subnet", vcnId=resource.body["vcnId"]):
        value = subnet.body.get(member)
        if resource.id == value or (isinstance(value, list) and resource.id in value):
            raise _in_use(resource, subnet)
    vcn = cloud.get("vcn", resource.body["vcnId"])
    if resource.id in (vcn.body.get(name) for name in _DEFAULT_MEMBERS):
        raise conflict(f"The default {resource.kind} of a VCN can't be deleted; it is deleted with VCN {vcn.id}")


# gateways, tables, lists


def _in_vcn(cloud: CloudState, body: Json) -> Json:
    cloud.related("vcn", body["vcnId"])
    return body


def _prepare_internet_gateway(cloud: CloudState, body: Json) -> Json:
    others = cloud.store.find("internetgateway", vcnId=body["vcnId"])
    if others:
        # OCI allows one internet gateway for each VCN (docs: Internet Gateway).
        raise conflict(f"The VCN {body['vcnId']} already has an internet gateway: {others[0].id}")
    return _in_vcn(cloud, body)


def _prepare_nat_gateway(cloud: CloudState, body: Json) -> Json:
    return {**_in_vcn(cloud, body), "natIp": "203.0.113.250", "publicIpId": new_ocid("publicip")}


def _prepare_service_gateway(cloud: CloudState, body: Json) -> Json:
    return {**_in_vcn(cloud, body), "services": security.checked_services(body["services"])}


def _update_service_gateway(_cloud: CloudState, _resource: Resource, changes: Json) -> Json:
    return {**changes, "services": security.checked_services(changes["services"])} if "services" in changes else changes


def _not_routed_to(cloud: CloudState, gateway: Resource) -> None:
    for table in cloud.store.find("routetable", vcnId=gateway.body["vcnId"]):
        if any(rule.get("networkEntityId") == gateway.id for rule in table.body["routeRules"]):
            raise _in_use(gateway, table)


def _routes(cloud: CloudState, body: Json) -> Json:
    for rule in body.get("routeRules") or []:
        entity = str(rule.get("networkEntityId"))
        cloud.related(entity.partition(".")[2].partition(".")[0], entity)
        rule.setdefault("destinationType", "CIDR_BLOCK")
    return body


def _prepare_route_table(cloud: CloudState, body: Json) -> Json:
    return _routes(cloud, _in_vcn(cloud, body))


def _prepare_security_list(cloud: CloudState, body: Json) -> Json:
    return security.checked_lists(_in_vcn(cloud, body))


def _not_on_vnics(cloud: CloudState, group: Resource) -> None:
    for kind in ("vnic", "mounttarget"):
        for user in cloud.store.find(kind):
            if group.id in (user.body.get("nsgIds") or []):
                raise _in_use(group, user)


_IN_VCN: dict[str, Any] = {
    "required": ("compartmentId", "vcnId"),
    "filters": ("compartmentId", "vcnId", "displayName", "lifecycleState"),
}

VCN = ResourceKind(
    "vcn", f"{CORE}/vcns", "Vcn", "Vcns", "vcnId",
    fields=("cidrBlock", "cidrBlocks", "dnsLabel", "securityAttributes"),
    defaults={"securityAttributes": {}, "ipv6CidrBlocks": [], "ipv6PrivateCidrBlocks": [], "byoipv6CidrBlocks": [],
              "isZprOnly": False},
    updatable=("securityAttributes",), initial=LifecycleState.PROVISIONING,
    prepare=_prepare_vcn, create_backing=_make_vcn, check_delete=_check_delete_vcn, remove_backing=_remove_vcn_network,
)  # fmt: skip
SUBNET = ResourceKind(
    "subnet", f"{CORE}/subnets", "Subnet", "Subnets", "subnetId", **_IN_VCN,
    fields=("vcnId", "cidrBlock", "ipv4CidrBlocks", "dnsLabel", "dhcpOptionsId", "routeTableId", "securityListIds",
            "availabilityDomain", "prohibitPublicIpOnVnic", "prohibitInternetIngress"),
    updatable=("dhcpOptionsId", "routeTableId", "securityListIds", "cidrBlock"),
    prepare=_prepare_subnet, check_update=_update_subnet, check_delete=_check_delete_subnet,
)  # fmt: skip
INTERNET_GATEWAY = ResourceKind(
    "internetgateway", f"{CORE}/internetGateways", "InternetGateway", "InternetGateways", "igId", **_IN_VCN,
    fields=("vcnId", "isEnabled", "routeTableId"), defaults={"isEnabled": True},
    updatable=("isEnabled", "routeTableId"), prepare=_prepare_internet_gateway, check_delete=_not_routed_to,
)  # fmt: skip
NAT_GATEWAY = ResourceKind(
    "natgateway", f"{CORE}/natGateways", "NatGateway", "NatGateways", "natGatewayId", **_IN_VCN,
    fields=("vcnId", "blockTraffic", "routeTableId"), defaults={"blockTraffic": False},
    updatable=("blockTraffic", "routeTableId"), prepare=_prepare_nat_gateway, check_delete=_not_routed_to,
)  # fmt: skip
SERVICE_GATEWAY = ResourceKind(
    "servicegateway", f"{CORE}/serviceGateways", "ServiceGateway", "ServiceGateways", "serviceGatewayId",
    required=("compartmentId", "vcnId", "services"), filters=_IN_VCN["filters"],
    fields=("vcnId", "services", "routeTableId"), defaults={"blockTraffic": False},
    updatable=("services", "blockTraffic", "routeTableId"), prepare=_prepare_service_gateway,
    check_update=_update_service_gateway, check_delete=_not_routed_to,
)  # fmt: skip
ROUTE_TABLE = ResourceKind(
    "routetable", f"{CORE}/routeTables", "RouteTable", "RouteTables", "rtId", **_IN_VCN,
    fields=("vcnId", "routeRules"), defaults={"routeRules": []}, updatable=("routeRules",),
    prepare=_prepare_route_table, check_update=lambda cloud, _resource, changes: _routes(cloud, changes),
    check_delete=partial(_not_used_by_subnets, "routeTableId"),
)  # fmt: skip
SECURITY_LIST = ResourceKind(
    "securitylist", f"{CORE}/securityLists", "SecurityList", "SecurityLists", "securityListId", **_IN_VCN,
    fields=("vcnId", "ingressSecurityRules", "egressSecurityRules"),
    defaults={"ingressSecurityRules": [], "egressSecurityRules": []},
    updatable=("ingressSecurityRules", "egressSecurityRules"),
    prepare=_prepare_security_list, check_update=lambda _cloud, _resource, changes: security.checked_lists(changes),
    check_delete=partial(_not_used_by_subnets, "securityListIds"),
)  # fmt: skip
NSG = ResourceKind(
    "networksecuritygroup", f"{CORE}/networkSecurityGroups", "NetworkSecurityGroup", "NetworkSecurityGroups",
    "networkSecurityGroupId", **_IN_VCN, fields=("vcnId",), need_compartment=False,
    prepare=_in_vcn, check_delete=_not_on_vnics,
)  # fmt: skip
DHCP_OPTIONS = ResourceKind(
    "dhcpoptions", f"{CORE}/dhcps", "DhcpOptions", "DhcpOptions", "dhcpId", **_IN_VCN,
    fields=("vcnId", "options", "domainNameType"),
    defaults={"options": [{"type": "DomainNameServer", "serverType": "VcnLocalPlusInternet", "customDnsServers": []}]},
    updatable=("options", "domainNameType"), prepare=_in_vcn,
    check_delete=partial(_not_used_by_subnets, "dhcpOptionsId"),
)  # fmt: skip
_GATEWAYS = (INTERNET_GATEWAY, NAT_GATEWAY, SERVICE_GATEWAY)
KINDS = (VCN, SUBNET, *_GATEWAYS, ROUTE_TABLE, SECURITY_LIST, NSG, DHCP_OPTIONS)


def routes(cloud: CloudState) -> list[ApiRoute]:
    """All of core networking."""
    return [*(route for kind in KINDS for route in kinds.routes(cloud, kind)), *security.routes(cloud)]
