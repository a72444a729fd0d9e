"""Addresses of subnets and VCNs."""

from __future__ import annotations

import ipaddress
import socket
import time

from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.names import network_name
from gpucluster.localcloud.state.store import Resource
from gpucluster.localcloud.state.wire import ApiError, invalid

# OCI reserves the first two addresses of a subnet and the last one (docs: Reserved IP Addresses).
_RESERVED_LOW = 2


def take_private(cloud: CloudState, subnet: Resource, owner: str, fixed_address: str | None = None) -> str:
    """Reserve `fixed_address`, or the lowest free address of a subnet."""
    block = ipaddress.IPv4Network(subnet.body["cidrBlock"])
    if fixed_address is not None:
        _check_wanted(block, fixed_address)
        if not cloud.store.take_address(subnet.id, fixed_address, owner):
            raise invalid(f"IP address {fixed_address} is already in use in subnet {subnet.id}")
        return fixed_address
    taken = cloud.store.taken_addresses(subnet.id)
    first = int(block.network_address)
    for number in range(first + _RESERVED_LOW, first + block.num_addresses - 1):
        address = socket.inet_ntoa(number.to_bytes(4, "big"))  # the module ipaddress needs seconds for a large subnet
        if address not in taken and cloud.store.take_address(subnet.id, address, owner):
            return address
    raise ApiError(400, "LimitExceeded", f"Subnet {subnet.id} has no free private IP address")


def _check_wanted(block: ipaddress.IPv4Network, text: str) -> None:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError as error:
        raise invalid(f"The private IP {text} is invalid: {error}") from error
    number = int(address) - int(block.network_address)
    if address not in block or number < _RESERVED_LOW or address == block.broadcast_address:
        raise invalid(f"The private IP {text} is not an address that may be used in {block}")


def release(cloud: CloudState, owner: str) -> None:
    """Release the addresses of a mount target or a bastion, and its VNIC."""
    with cloud.store.transaction():
        for row in cloud.store.find("privateip"):
            if row.hidden.get("owner") == owner:
                row.gone_at = time.time()
                cloud.store.save(row)
        cloud.store.release_addresses(owner)


def engine_networks(vcn: Resource) -> dict[str, str]:
    """The CIDR blocks of a VCN by the engine's names: each block is a network of its own there."""
    first = network_name(vcn.id)
    return {f"{first}-{number}" if number else first: block for number, block in enumerate(vcn.body["cidrBlocks"])}


def engine_network(vcn: Resource, address: str) -> tuple[str, str]:
    """The engine's network that has an address, and the address of this host in it."""
    for name, block in engine_networks(vcn).items():
        if ipaddress.IPv4Address(address) in ipaddress.IPv4Network(block):
            return name, gateway_address(block)
    raise ValueError(f"{address} is not in {vcn.id}")


def gateway_address(block: str) -> str:
    """The address of this host in a CIDR block of a VCN: the first one."""
    return str(ipaddress.IPv4Network(block)[1])
