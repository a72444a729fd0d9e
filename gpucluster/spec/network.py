"""Rules of the network: three networks that fit into each other, and from where ssh is let in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Network, IPv6Network, NetmaskValueError
from typing import Any

from gpucluster.spec.document import Path
from gpucluster.spec.draft import Draft, is_elastic
from gpucluster.spec.nodes import has_rdma, rdma_interfaces
from gpucluster.spec.wording import shown

#: Of every subnet OCI keeps three addresses: the first two and the last.
RESERVED_ADDRESSES = 3
#: A mount target takes three addresses of its subnet.
MOUNT_TARGET_ADDRESSES = 3
#: A bastion's private endpoint takes one.
BASTION_ADDRESSES = 1
#: Where a pool is elastic, its image is baked on an instance that is there for a while; one at a time.
BUILDERS = 1
#: OCI's limits for a VCN and for a subnet.
LARGEST_PREFIX, SMALLEST_PREFIX = 16, 30
#: No network larger than this may be let in by ssh: more than 16.7 million addresses are nobody's office.
LARGEST_SSH_PREFIX = 8

_UNUSABLE = {
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local, where the cloud's own services answer",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "0.0.0.0/8": "reserved",
}


def check_network(draft: Draft) -> None:
    """Note every fault of `network`."""
    section = draft.section("network")
    names = ("vcn_cidr", "public_subnet_cidr", "private_subnet_cidr")
    found = {name: _network_of(draft, ("network", name), section.get(name)) for name in names}
    for name, network in found.items():
        if network and not LARGEST_PREFIX <= network.prefixlen <= SMALLEST_PREFIX:
            what = "a VCN" if name == "vcn_cidr" else "a subnet"
            message = f"{what} is between /{LARGEST_PREFIX} and /{SMALLEST_PREFIX}; got /{network.prefixlen}"
            draft.fault(("network", name), message)
    vcn, public, private = (found[name] for name in names)
    if vcn:
        _usable(draft, ("network", "vcn_cidr"), vcn, "Take one of 10.0.0.0/8")
        for name, subnet in (("public_subnet_cidr", public), ("private_subnet_cidr", private)):
            if subnet and not subnet.subnet_of(vcn):
                draft.fault(("network", name), f"{subnet} lies outside of vcn_cidr {vcn}", f"Take a part of {vcn}")
    if public and private and public.overlaps(private):
        message = f"overlaps public_subnet_cidr {public}"
        draft.fault(("network", "private_subnet_cidr"), message, "Take another part of vcn_cidr")
    if private:
        _room(draft, private)
    _access(draft, section)
    _rdma(draft, section, vcn, private)
    _ssh_allowed(draft, section.get("ssh_allowed_cidrs"))


def overlapping_routes(vcn_cidr: str, routes: Iterable[str]) -> list[str]:
    """Which of the routes of a host (`10.1.0.0/16`, `10.0.0.7`, `default`) overlap the network.

    The default route overlaps nothing, and what is no IPv4 network is passed over.
    """
    vcn = IPv4Network(vcn_cidr)
    overlapping = []
    for route in routes:
        try:
            network = IPv4Network(route, strict=False)
        except ValueError:
            continue
        if network.prefixlen and network.overlaps(vcn):
            overlapping.append(route)
    return overlapping


def _network_of(draft: Draft, path: Path, text: Any) -> IPv4Network | None:
    if not isinstance(text, str):
        return None
    if ":" in text:
        draft.fault(path, f"must be an IPv4 network; got {shown(text)}", "IPv6 is not used here")
        return None
    if not re.fullmatch(r"[0-9.]+/[0-9]{1,2}", text):
        hint = f"Write {text}/32 for this one address" if re.fullmatch(r"[0-9]+(\.[0-9]+){3}", text) else ""
        draft.fault(path, f"must be a network with its prefix, such as 10.0.0.0/16; got {shown(text)}", hint)
        return None
    try:
        network = IPv4Network(text, strict=False)
    except (AddressValueError, NetmaskValueError):
        draft.fault(path, f"is not a network: {shown(text)}", "Four numbers up to 255, a slash, a prefix up to 32")
        return None
    if str(network.network_address) != text.partition("/")[0]:
        draft.fault(path, f"is an address within a network, not a network: {shown(text)}", f"Write {network}")
        return None
    return network


def _usable(draft: Draft, path: Path, network: IPv4Network, hint: str) -> None:
    for cidr, what in _UNUSABLE.items():
        if network.overlaps(IPv4Network(cidr)):
            draft.fault(path, f"overlaps {cidr} ({what})", hint)
            return


def _access(draft: Draft, section: dict[str, Any]) -> None:
    path: Path = ("network", "public_subnet_cidr")
    access, cidr = section.get("access"), section.get("public_subnet_cidr")
    if access == "public" and "public_subnet_cidr" in section and cidr is None:
        hint = "Add it, such as `public_subnet_cidr: 10.0.0.0/24`, or write `access: bastion`"
        draft.fault(path, "is missing: with access public the controller stands there", hint)
    elif access == "bastion" and cidr is not None:
        message = "has no meaning with access bastion: the controller stands in the private subnet"
        draft.fault(path, message, "Delete the line, or write `access: public`", key=True)


def _rdma(draft: Draft, section: dict[str, Any], vcn: IPv4Network | None, private: IPv4Network | None) -> None:
    """The range of RDMA interfaces; where no pool has such, only what was written is looked at."""
    path: Path = ("network", "rdma_cidr")
    pools = {name: pool for name, pool in draft.section("pools").items() if has_rdma(pool)}
    if not pools and not draft.written(path):
        return
    rdma = _network_of(draft, path, section.get("rdma_cidr"))
    if rdma is None:
        return
    _usable(draft, path, rdma, "Take one of 192.168.0.0/16 or 172.16.0.0/12")
    if vcn and rdma.overlaps(vcn):
        hint = "Take another range for one of the two, such as `rdma_cidr: 192.168.0.0/16` with a VCN of 10.0.0.0/8"
        draft.fault(path, f"{rdma} overlaps vcn_cidr {vcn}", hint)
    if private:
        _room_for_rdma(draft, rdma, private, pools)


def _room_for_rdma(draft: Draft, rdma: IPv4Network, private: IPv4Network, pools: dict[str, Any]) -> None:
    """Every RDMA interface has a block as large as the private subnet, for the address is that of the node in it."""
    for name, pool in pools.items():
        blocks = len(rdma_interfaces(pool["shape"]))
        needed = blocks * private.num_addresses
        if pool.get("rdma_addressing") == "cloud-init" and needed > rdma.num_addresses:
            message = (
                f"{rdma} has {rdma.num_addresses} addresses, {needed} are needed: pool {name} has {blocks} RDMA "
                f"interfaces, and each takes as many as private_subnet_cidr has ({private.num_addresses})"
            )
            prefix = 32 - (needed - 1).bit_length()
            draft.fault(("network", "rdma_cidr"), message, f"Take a /{prefix} or larger, or a smaller private subnet")
            return


def _room(draft: Draft, private: IPv4Network) -> None:
    counts = [pool.get("max_count") for pool in draft.section("pools").values() if isinstance(pool, dict)]
    nodes = sum(count for count in counts if isinstance(count, int))
    builders = BUILDERS if any(is_elastic(pool) for pool in draft.section("pools").values()) else 0
    bastion = BASTION_ADDRESSES if draft.section("network").get("access") == "bastion" else 0
    home = draft.section("storage", "home")
    target = 0 if home.get("server") or home.get("enabled") is False else MOUNT_TARGET_ADDRESSES
    needed = nodes + 1 + target + bastion + RESERVED_ADDRESSES + builders
    if needed > private.num_addresses:
        prefix = 32 - (needed - 1).bit_length()
        hint = f"Take a /{prefix} or larger, or lower max_count"
        if prefix < LARGEST_PREFIX:
            hint = "Lower max_count: no subnet is that large"
        draft.fault(
            ("network", "private_subnet_cidr"),
            f"{private} has {private.num_addresses} addresses, {needed} are needed: {nodes} nodes, 1 controller, "
            f"{f'{builders} to bake an image, ' if builders else ''}"
            f"{f'{target} for the mount target, ' if target else ''}"
            f"{f'{bastion} for the bastion, ' if bastion else ''}{RESERVED_ADDRESSES} kept by the cloud",
            hint,
        )


def _ssh_allowed(draft: Draft, cidrs: Any) -> None:
    for index, text in enumerate(cidrs or ()):
        path: Path = ("network", "ssh_allowed_cidrs", index)
        hint = "Name the networks that you log in from, such as 203.0.113.0/24"
        if text in ("0.0.0.0/0", "::/0") or (isinstance(text, str) and _is_all_of_ipv6(text)):
            draft.fault(path, f"{text} is the whole internet", hint)
            continue
        network = _network_of(draft, path, text)
        if network and network.prefixlen < LARGEST_SSH_PREFIX:
            draft.fault(path, f"{network} is too large: at most a /{LARGEST_SSH_PREFIX} may be let in", hint)


def _is_all_of_ipv6(text: str) -> bool:
    try:
        return IPv6Network(text, strict=False).prefixlen == 0
    except ValueError:
        return False
