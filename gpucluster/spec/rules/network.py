"""Rules of `network`: the ranges of the VCN, its subnets and the RDMA interfaces, and the networks for ssh."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Network, IPv6Network, NetmaskValueError
from typing import Any

from gpucluster.spec.defaults import is_elastic
from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext, usable
from gpucluster.spec.rules.nodes import has_rdma, rdma_interfaces
from gpucluster.text import count

#: OCI reserves three addresses of every subnet: the first two and the last.
RESERVED_ADDRESSES = 3
# What is tried first for a local cluster, and what others take by default: Podman, services and pods of Kubernetes.
_FIRST_TRIED = 77
_NOT_PROPOSED = frozenset({88, 96, 244})
#: A mount target uses three addresses of its subnet.
MOUNT_TARGET_ADDRESSES = 3
#: The private endpoint of a bastion uses one.
BASTION_ADDRESSES = 1
#: The image of an elastic pool is baked on a temporary instance; there is one at a time.
BUILDERS = 1
#: OCI's limits for a VCN and for a subnet.
LARGEST_PREFIX, SMALLEST_PREFIX = 16, 30
#: The largest network from which ssh may be allowed: 16.7 million addresses.
LARGEST_SSH_PREFIX = 8

RULES = (
    f"Both subnets are inside `vcn_cidr` and do not overlap; all three are between /{LARGEST_PREFIX} and "
    f"/{SMALLEST_PREFIX}.",
    "`private_subnet_cidr` has an address for every node at the pools' `max_count`, one for the controller, one for "
    "each login node with access bastion, "
    f"{MOUNT_TARGET_ADDRESSES} for the mount target of the home share (none with `storage.home.server`) and for each "
    "one of a share's own, "
    f"{BASTION_ADDRESSES} with access bastion, {BUILDERS} to bake images where a pool is elastic, and "
    f"{RESERVED_ADDRESSES} that the cloud reserves.",
    f"`ssh_allowed_cidrs` contains no network larger than /{LARGEST_SSH_PREFIX}, and no IPv6.",
    "With access `public` there is a `public_subnet_cidr`, with access `bastion` there is none.",
    "`rdma_cidr` and `vcn_cidr` do not overlap. With `rdma_addressing: cloud-init` it has, for each RDMA interface of "
    "a node, as many addresses as `private_subnet_cidr`.",
)

_UNUSABLE = {
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local, where the cloud's own services answer",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "0.0.0.0/8": "reserved",
}


def check(context: RuleContext) -> None:
    """Add every error of `network`."""
    section = context.section("network")
    names = ("vcn_cidr", "public_subnet_cidr", "private_subnet_cidr")
    by_name = {name: network_of(context, ("network", name), section.get(name)) for name in names}
    for name, network in by_name.items():
        if network and not LARGEST_PREFIX <= network.prefixlen <= SMALLEST_PREFIX:
            what = "a VCN" if name == "vcn_cidr" else "a subnet"
            message = f"{what} must be between /{LARGEST_PREFIX} and /{SMALLEST_PREFIX}; got /{network.prefixlen}"
            context.error(("network", name), message)
    vcn, public, private = (by_name[name] for name in names)
    if vcn:
        check_usable(context, ("network", "vcn_cidr"), vcn, "Use a part of 10.0.0.0/8")
        for name, subnet in (("public_subnet_cidr", public), ("private_subnet_cidr", private)):
            if subnet and not subnet.subnet_of(vcn):
                context.error(("network", name), f"{subnet} is outside of vcn_cidr {vcn}", f"Use a part of {vcn}")
    if public and private and public.overlaps(private):
        message = f"overlaps public_subnet_cidr {public}"
        context.error(("network", "private_subnet_cidr"), message, "Use another part of vcn_cidr")
    if private:
        _check_addresses(context, private)
    _check_access(context, section)
    _check_rdma(context, section, vcn, private)
    _check_ssh_allowed(context, section.get("ssh_allowed_cidrs"))


def overlapping_routes(vcn_cidr: str, routes: Iterable[str]) -> list[str]:
    """The routes of a host (`10.1.0.0/16`, `10.0.0.7`, `default`) that overlap the VCN.

    Each is named once: a network of Podman is a route as well. The default route does not count as overlapping, and
    anything but IPv4 networks is ignored.
    """
    vcn = IPv4Network(vcn_cidr)
    overlapping = []
    for route in dict.fromkeys(routes):
        try:
            network = IPv4Network(route, strict=False)
        except ValueError:
            continue
        if network.prefixlen and network.overlaps(vcn):
            overlapping.append(route)
    return overlapping


def free_network(routes: Iterable[str]) -> str | None:
    """A /16 for the network of a local cluster that overlaps none of these routes; None if there is none.

    Args:
        routes: as for `overlapping_routes`.
    """
    used = list(routes)
    for second in (*range(_FIRST_TRIED, 256), *range(1, _FIRST_TRIED)):
        network = f"10.{second}.0.0/16"
        if second not in _NOT_PROPOSED and not overlapping_routes(network, used):
            return network
    return None


def network_of(context: RuleContext, path: Path, text: Any) -> IPv4Network | None:
    """The network at `path`; None if it is not an IPv4 network, which is added to the errors."""
    if not isinstance(text, str):
        return None
    if ":" in text:
        context.error(path, f"must be an IPv4 network; got {shown(text)}", "IPv6 is not supported")
        return None
    if not re.fullmatch(r"[0-9.]+/[0-9]{1,2}", text):
        hint = f"Write {text}/32 for this one address" if re.fullmatch(r"[0-9]+(\.[0-9]+){3}", text) else ""
        context.error(path, f"must be a network with its prefix, such as 10.0.0.0/16; got {shown(text)}", hint)
        return None
    try:
        network = IPv4Network(text, strict=False)
    except (AddressValueError, NetmaskValueError):
        context.error(path, f"is not a network: {shown(text)}", "Four numbers up to 255, a slash, a prefix up to 32")
        return None
    if str(network.network_address) != text.partition("/")[0]:
        context.error(path, f"is an address inside a network, not a network: {shown(text)}", f"Write {network}")
        return None
    return network


def check_usable(context: RuleContext, path: Path, network: IPv4Network, hint: str) -> None:
    """Add an error if hosts can't have addresses of this network."""
    for cidr, what in _UNUSABLE.items():
        if network.overlaps(IPv4Network(cidr)):
            context.error(path, f"overlaps {cidr} ({what})", hint)
            return


def _check_access(context: RuleContext, section: dict[str, Any]) -> None:
    path: Path = ("network", "public_subnet_cidr")
    access, cidr = section.get("access"), section.get("public_subnet_cidr")
    if access == "public" and "public_subnet_cidr" in section and cidr is None:
        hint = "Add it, such as `public_subnet_cidr: 10.0.0.0/24`, or write `access: bastion`"
        context.error(path, "is missing: with access public it is the subnet of the controller", hint)
    elif access == "bastion" and cidr is not None:
        message = "has no meaning with access bastion: the controller is in the private subnet"
        context.error(path, message, "Delete the line, or write `access: public`", key=True)


def _check_rdma(
    context: RuleContext, section: dict[str, Any], vcn: IPv4Network | None, private: IPv4Network | None
) -> None:
    """The range of the RDMA interfaces; where no pool has RDMA, it is only checked if the file sets it."""
    path: Path = ("network", "rdma_cidr")
    pools = {name: pool for name, pool in context.section("pools").items() if has_rdma(pool)}
    if not pools and not context.written(path):
        return
    rdma = network_of(context, path, section.get("rdma_cidr"))
    if rdma is None:
        return
    check_usable(context, path, rdma, "Use a part of 192.168.0.0/16 or 172.16.0.0/12")
    if vcn and rdma.overlaps(vcn):
        hint = "Use another range for one of the two, such as `rdma_cidr: 192.168.0.0/16` with a VCN of 10.0.0.0/8"
        context.error(path, f"{rdma} overlaps vcn_cidr {vcn}", hint)
    if private:
        _check_rdma_addresses(context, rdma, private, pools)


def _check_rdma_addresses(context: RuleContext, rdma: IPv4Network, private: IPv4Network, pools: dict[str, Any]) -> None:
    """Every RDMA interface needs a block as large as the private subnet: it has the node's offset in that subnet."""
    for name, pool in pools.items():
        blocks = len(rdma_interfaces(pool["shape"]))
        needed = blocks * private.num_addresses
        if pool.get("rdma_addressing") == "cloud-init" and needed > rdma.num_addresses:
            message = (
                f"{rdma} has {rdma.num_addresses} addresses, {needed} are needed: pool {name} has "
                f"{count(blocks, 'RDMA interface')}, and each needs as many as private_subnet_cidr has "
                f"({private.num_addresses})"
            )
            prefix = 32 - (needed - 1).bit_length()
            context.error(("network", "rdma_cidr"), message, f"Use a /{prefix} or larger, or a smaller private subnet")
            return


def _mount_targets(context: RuleContext) -> int:
    home, shares = context.section("storage", "home"), context.section("storage", "shares")
    own = [share for share in shares.values() if isinstance(share, dict) and share.get("mount_target") == "own"]
    further = sum(share.get("server") is None for share in own)
    return further + (0 if home.get("server") or home.get("enabled") is False else 1)


def _named_targets(number: int) -> str:
    return "the mount target" if number == 1 else f"{number} mount targets"


def _check_addresses(context: RuleContext, private: IPv4Network) -> None:
    counts = [pool.get("max_count") for pool in context.section("pools").values() if isinstance(pool, dict)]
    nodes = sum(most for most in counts if isinstance(most, int))
    logins = context.section("login").get("count", 0) if context.section("network").get("access") == "bastion" else 0
    elastic = any(is_elastic(pool) for pool in context.section("pools").values())
    builders = BUILDERS if elastic else 0
    bastion = BASTION_ADDRESSES if context.section("network").get("access") == "bastion" else 0
    targets = _mount_targets(context)
    target = targets * MOUNT_TARGET_ADDRESSES
    needed = nodes + 1 + logins + target + bastion + RESERVED_ADDRESSES + builders
    if needed > private.num_addresses:
        prefix = 32 - (needed - 1).bit_length()
        field = "max_count" if elastic else "count"
        hint = f"Use a /{prefix} or larger, or lower {field}"
        if prefix < LARGEST_PREFIX:
            hint = f"Lower {field}: no subnet is large enough"
        named = count(logins, "login node")
        context.error(
            ("network", "private_subnet_cidr"),
            f"{private} has {private.num_addresses} addresses, {needed} are needed: {count(nodes, 'node')}, "
            f"1 controller, {f'{named}, ' if logins else ''}"
            f"{f'{builders} to bake an image, ' if builders else ''}"
            f"{f'{target} for {_named_targets(targets)}, ' if target else ''}"
            f"{f'{bastion} for the bastion, ' if bastion else ''}{RESERVED_ADDRESSES} reserved by the cloud",
            hint,
        )


def _check_ssh_allowed(context: RuleContext, cidrs: Any) -> None:
    for index, text in usable(cidrs):
        path: Path = ("network", "ssh_allowed_cidrs", index)
        hint = "Write the networks that you log in from, such as 203.0.113.0/24"
        if text in ("0.0.0.0/0", "::/0") or (isinstance(text, str) and _is_all_of_ipv6(text)):
            context.error(path, f"{text} is the whole internet", hint)
            continue
        network = network_of(context, path, text)
        if network and network.prefixlen < LARGEST_SSH_PREFIX:
            context.error(path, f"{network} is too large: at most a /{LARGEST_SSH_PREFIX} is allowed", hint)


def _is_all_of_ipv6(text: str) -> bool:
    try:
        return IPv6Network(text, strict=False).prefixlen == 0
    except ValueError:
        return False
