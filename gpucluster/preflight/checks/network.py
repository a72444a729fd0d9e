"""Rules on the network: ranges that must not meet, room for every machine, existing networks and file systems."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import Literal

from gpucluster.errors import PreflightFinding as Finding
from gpucluster.preflight import requirements
from gpucluster.preflight.facts import Facts, Made, Rule, Standing, Subnet, Unknown, Vcn
from gpucluster.spec import ClusterSpec
from gpucluster.spec.rules.network import BASTION_ADDRESSES, MOUNT_TARGET_ADDRESSES, RESERVED_ADDRESSES

#: What containers without root are given by slirp4netns, and Docker's bridge. Hosts there can't be reached from inside.
_CONTAINERS = {
    "10.0.2.0/24": "the network of rootless containers",
    "172.17.0.0/16": "the network of Docker's bridge",
}
_LISTED = 5


def overlap(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Ranges that must not meet."""
    network = spec.network
    ranges = {"network.vcn_cidr": network.vcn_cidr}
    if isinstance(facts.vcn, Vcn):
        others = [cidr for cidr in facts.vcn.cidrs if cidr != network.vcn_cidr]
        ranges |= {f"a range of the VCN {facts.vcn.name}": cidr for cidr in others}
    if any(pool.uses_rdma for pool in spec.pools.values()):
        for what, cidr in ranges.items():
            if _meet(cidr, network.rdma_cidr):
                reason = f"network.rdma_cidr {network.rdma_cidr} overlaps {what} {cidr}"
                action = "Take another network.rdma_cidr: nodes would look for one in the other"
                yield Finding("error", "overlap", reason, action)
    subnets = {"public_subnet_cidr": network.public_subnet_cidr, "private_subnet_cidr": network.private_subnet_cidr}
    for taken, whose in _CONTAINERS.items():
        met = [f"network.{key} {subnet}" for key, subnet in subnets.items() if subnet and _meet(subnet, taken)]
        if met:
            reason = f"{' and '.join(met)} overlap{'' if met[1:] else 's'} {taken}, {whose}"
            action = "From inside such containers the hosts there can't be reached: take another range"
            yield Finding("warning", "overlap", reason, action)


def neighbours(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Other networks of the compartment with the same addresses."""
    if spec.network.vcn_id is not None or not isinstance(facts.vcns, tuple):
        return
    same = [
        one.name for one in facts.vcns if not one.ours and any(_meet(cidr, spec.network.vcn_cidr) for cidr in one.cidrs)
    ]
    if same:
        shown = ", ".join(same[:_LISTED]) + (", ..." if len(same) > _LISTED else "")
        reason = f"network.vcn_cidr {spec.network.vcn_cidr} overlaps other VCNs of the compartment: {shown}"
        yield Finding("note", "overlap", reason, "They can never be peered with this one; else it does no harm")


def existing_vcn(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The network that the file names is there and is what the file says."""
    found = facts.vcn
    if found is None:
        return
    name = f"the VCN {spec.network.vcn_id}"
    if isinstance(found, Unknown):
        yield from _refused(found, "network", name, "network.vcn_id")
        return
    if found.state != "AVAILABLE":
        yield Finding("error", "network", f"{name} is {found.state}", "Take another in network.vcn_id")
    if spec.network.vcn_cidr not in found.cidrs:
        reason = f"{name} has {', '.join(found.cidrs) or 'no range'}, and network.vcn_cidr is {spec.network.vcn_cidr}"
        yield Finding("error", "network", reason, "Write what it has into network.vcn_cidr")
    if not found.dns_label:
        yield _no_label(spec, name)


def _no_label(spec: ClusterSpec, text: str) -> Finding:
    """Elastic nodes are launched with host names, which OCI refuses there; all others are looked up in /etc/hosts."""
    level: Literal["error", "warning"] = "error" if spec.elastic_pools else "warning"
    action = "A label can't be added later: take one that was made with a DNS label"
    return Finding(level, "network", f"{text} has no DNS label, so OCI's DNS knows no hosts in it", action)


def existing_subnets(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The subnets that the file names are there, in that network, and are what the file says."""
    for name, found in facts.subnets.items():
        public = name == "public"
        ocid = spec.network.public_subnet_id if public else spec.network.private_subnet_id
        cidr = spec.network.public_subnet_cidr if public else spec.network.private_subnet_cidr
        text = f"the {name} subnet {ocid}"
        if isinstance(found, Unknown):
            yield from _refused(found, "network", text, f"network.{name}_subnet_id")
            continue
        yield from _identity(spec, found, text, f"network.{name}_subnet_cidr", cidr)
        yield from _public(found, text) if public else _private(found, text)
        yield from _ingress(spec, found, text, public=public)
        yield from _names_taken(spec, facts, found, text, name)


def _identity(spec: ClusterSpec, found: Subnet, text: str, key: str, cidr: str | None) -> Iterator[Finding]:
    if found.state != "AVAILABLE":
        yield Finding("error", "network", f"{text} is {found.state}", "Take another")
    if found.vcn_id != spec.network.vcn_id:
        reason = f"{text} is in the VCN {found.vcn_id}, and network.vcn_id is {spec.network.vcn_id}"
        yield Finding("error", "network", reason, "Name the VCN and the subnets of one network")
    if found.cidr != cidr:
        yield Finding("error", "network", f"{text} has {found.cidr}, and {key} is {cidr}", f"Write {found.cidr} there")
    if not found.dns_label:
        yield _no_label(spec, text)
    domains = {machine.domain for machine in requirements.machines(spec)} - {""}
    if found.domain and domains - {found.domain}:
        reason = f"{text} lies in {found.domain} alone, and machines are wanted in {', '.join(sorted(domains))}"
        yield Finding("error", "network", reason, "Take a regional subnet, or that domain")


def _public(found: Subnet, text: str) -> Iterator[Finding]:
    if found.private:
        reason = f"{text} prohibits public addresses, and the controller needs one"
        yield Finding("error", "network", reason, "Take another, or write `access: bastion` under network")
    elif isinstance(found.routes, tuple) and "internetgateway" not in found.routes:
        reason = f"{text} has no route to an internet gateway, so nobody can log in to the controller"
        yield Finding("error", "network", reason, "Add the route, or write `access: bastion` under network")


def _private(found: Subnet, text: str) -> Iterator[Finding]:
    if not found.private:
        reason = f"{text} allows public addresses"
        yield Finding("warning", "network", reason, "Nodes get none; a subnet that prohibits them is sure of it")
    if not isinstance(found.routes, tuple):
        return
    if not {"natgateway", "drg", "privateip", "internetgateway"} & set(found.routes):
        reason = f"{text} has no route to a NAT gateway (nor to anything else outside)"
        action = "Add it, or have mirrors of the operating system's packages inside: nodes install from them"
        yield Finding("warning", "network", reason, action)
    if "servicegateway" not in found.routes:
        reason = f"{text} has no route to a service gateway"
        action = "Add one for All Services: the Oracle Cloud Agent, and the controller's calls, take it"
        yield Finding("warning", "network", reason, action)


def _ingress(spec: ClusterSpec, found: Subnet, text: str, *, public: bool) -> Iterator[Finding]:
    """What security lists let in; network security groups may let in more, so this only warns."""
    if not isinstance(found.ingress, tuple):
        return
    if not any(rule.protocol == "all" and _covers(rule, spec.network.vcn_cidr) for rule in found.ingress):
        reason = f"the security lists of {text} do not let everything in from {spec.network.vcn_cidr}"
        action = "Add an ingress rule for all protocols: Slurm, NFS, LDAP and MPI choose many ports"
        yield Finding("warning", "network", reason, action)
    if public:
        shut = [cidr for cidr in spec.network.ssh_allowed_cidrs if not any(_ssh(rule, cidr) for rule in found.ingress)]
        if shut:
            reason = f"the security lists of {text} do not let ssh in from {', '.join(shut[:_LISTED])}"
            yield Finding("warning", "network", reason, "Add an ingress rule for TCP port 22")


def _ssh(rule: Rule, cidr: str) -> bool:
    port = rule.ports is None or rule.ports[0] <= 22 <= rule.ports[1]  # noqa: PLR2004
    return rule.protocol in ("all", "6") and port and _covers(rule, cidr)


def _covers(rule: Rule, cidr: str) -> bool:
    outer, inner = _network(rule.source), _network(cidr)
    return outer is not None and inner is not None and inner.subnet_of(outer)


def _names_taken(spec: ClusterSpec, facts: Facts, found: Subnet, text: str, name: str) -> Iterator[Finding]:
    standing = {one.name for one in facts.standing} if isinstance(facts.standing, tuple) else set()
    wanted = requirements.host_names(spec, name) - standing
    taken = sorted(wanted & {label.lower() for label in found.host_names})
    # A cluster that stands has its own names, whether or not its instances could be listed.
    if taken and not standing and not isinstance(facts.standing, Unknown):
        reason = f"host names are taken in {text}: {', '.join(taken[:_LISTED])}"
        yield Finding("error", "names", reason, "Rename the pool, or take a subnet without another cluster")


def addresses(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Each subnet has an address for every machine there may ever be."""
    cidrs = {"public": spec.network.public_subnet_cidr, "private": spec.network.private_subnet_cidr}
    for name, cidr in cidrs.items():
        subnet = _network(cidr or "")
        if subnet is None:
            continue
        found = facts.subnets.get(name)
        used: tuple[str, ...] = ()
        if isinstance(found, Subnet) and isinstance(found.in_use, tuple):
            used = found.in_use
        needed = requirements.addresses(spec, name)[1] - (_ours(facts, name, spec, subnet) if used else 0)
        free = subnet.num_addresses - RESERVED_ADDRESSES - len(used)
        if free < needed:
            taken = f", {len(used)} are in use" if used else ""
            reason = f"the {name} subnet {cidr} has {free} free addresses{taken}, and {needed} more are needed at most"
            yield Finding("error", "addresses", reason, "Take a larger subnet, or lower max_count")


def _ours(facts: Facts, name: str, spec: ClusterSpec, subnet: IPv4Network) -> int:
    """How many of the addresses in use are this cluster's: they need no further one."""
    standing: tuple[Standing, ...] = facts.standing if isinstance(facts.standing, tuple) else ()
    public = spec.network.access == "public"
    controllers = [one for one in standing if not one.pool]
    if name == "public":
        return len(controllers)
    target = MOUNT_TARGET_ADDRESSES if _inside(facts.mount_target, subnet) and not spec.storage.home.server else 0
    bastion = BASTION_ADDRESSES if isinstance(facts.made, Made) and facts.made.bastions else 0
    return len(standing) - (len(controllers) if public else 0) + target + bastion


def file_system(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """An existing file system is there, and where a mount target can reach it."""
    found = facts.file_system
    if found is None:
        return
    name = f"the file system {spec.storage.home.file_system_id}"
    if isinstance(found, Unknown):
        yield from _refused(found, "storage", name, "storage.home.file_system_id")
        return
    if found.state != "ACTIVE":
        yield Finding("error", "storage", f"{name} is {found.state}", "Take another")
    domain = requirements.machines(spec, facts.domains if isinstance(facts.domains, tuple) else ())[0].domain
    if domain and found.domain != domain:
        reason = f"{name} is in {found.domain}, and its mount target would be in {domain}"
        yield Finding("error", "storage", reason, f"Write `availability_domain: {found.domain}` under cloud")


def _refused(found: Unknown, check: str, name: str, key: str) -> Iterator[Finding]:
    if found.refused:
        reason = f"{name} is not there, or not to be seen by this user"
        yield Finding("error", check, reason, f"Check {key} in cluster.yml. {found.action}")


def _meet(one: str, other: str) -> bool:
    first, second = _network(one), _network(other)
    return first is not None and second is not None and first.overlaps(second)


def _network(text: str) -> IPv4Network | None:
    """None for what is none: an IPv6 range, or the name of a service."""
    try:
        return IPv4Network(text, strict=False)
    except ValueError:
        return None


def _inside(address: str, subnet: IPv4Network) -> bool:
    try:
        return IPv4Address(address) in subnet
    except ValueError:
        return False
