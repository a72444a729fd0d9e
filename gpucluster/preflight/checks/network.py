"""Checks of the network: overlapping ranges, addresses for every machine, existing networks and file systems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import Literal

from gpucluster.errors import PreflightFinding as Finding
from gpucluster.preflight import requirements
from gpucluster.preflight.facts import Created, ExistingInstance, Facts, IngressRule, Subnet, Unknown, Vcn
from gpucluster.spec import ClusterSpec
from gpucluster.spec.rules.network import BASTION_ADDRESSES, MOUNT_TARGET_ADDRESSES, RESERVED_ADDRESSES
from gpucluster.text import count

#: Ranges of slirp4netns (rootless containers) and of Docker's bridge. Containers can't reach hosts in these ranges.
_CONTAINERS = {
    "10.0.2.0/24": "the network of rootless containers",
    "172.17.0.0/16": "the network of Docker's bridge",
}
_LISTED = 5


def overlap(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The ranges of the VCN, the RDMA interfaces and containers do not overlap."""
    network = spec.network
    ranges = {"network.vcn_cidr": network.vcn_cidr}
    if isinstance(facts.vcn, Vcn):
        others = [cidr for cidr in facts.vcn.cidrs if cidr != network.vcn_cidr]
        ranges |= {f"a range of the VCN {facts.vcn.name}": cidr for cidr in others}
    if any(pool.uses_rdma for pool in spec.pools.values()):
        for what, cidr in ranges.items():
            if _overlaps(cidr, network.rdma_cidr):
                reason = f"network.rdma_cidr {network.rdma_cidr} overlaps {what} {cidr}"
                action = "Use another network.rdma_cidr: with overlapping ranges nodes can't tell the networks apart"
                yield Finding("error", "overlap", reason, action)
    subnets = {"public_subnet_cidr": network.public_subnet_cidr, "private_subnet_cidr": network.private_subnet_cidr}
    for cidr, network_name in _CONTAINERS.items():
        overlapping = [
            f"network.{key} {subnet}" for key, subnet in subnets.items() if subnet and _overlaps(subnet, cidr)
        ]
        if overlapping:
            reason = f"{cidr}, {network_name}, overlaps {' and '.join(overlapping)}"
            action = "Such containers can't reach hosts in that range: use another range"
            yield Finding("warning", "overlap", reason, action)


def neighbours(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Other networks of the compartment with the same addresses."""
    if spec.network.vcn_id is not None or not isinstance(facts.vcns, tuple):
        return
    same = [
        vcn.name
        for vcn in facts.vcns
        if not vcn.ours and any(_overlaps(cidr, spec.network.vcn_cidr) for cidr in vcn.cidrs)
    ]
    if same:
        shown = ", ".join(same[:_LISTED]) + (", ..." if len(same) > _LISTED else "")
        reason = f"network.vcn_cidr {spec.network.vcn_cidr} overlaps other VCNs of the compartment: {shown}"
        yield Finding("note", "overlap", reason, "They can't be peered with this one; otherwise there is no problem")


def existing_vcn(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The existing VCN is available and has the range of the spec."""
    fact = facts.vcn
    if fact is None:
        return
    name = f"the VCN {spec.network.vcn_id}"
    if isinstance(fact, Unknown):
        yield from _refused(fact, "network", name, "network.vcn_id")
        return
    if fact.state != "AVAILABLE":
        yield Finding("error", "network", f"{name} is {fact.state}", "Set network.vcn_id to another")
    if spec.network.vcn_cidr not in fact.cidrs:
        reason = f"{name} has {', '.join(fact.cidrs) or 'no range'}, and network.vcn_cidr is {spec.network.vcn_cidr}"
        yield Finding("error", "network", reason, "Set network.vcn_cidr to the range that it has")
    if not fact.dns_label:
        yield _no_label(spec, name)


def _no_label(spec: ClusterSpec, text: str) -> Finding:
    """OCI refuses to launch elastic nodes there, as they have host names; other hosts are found in /etc/hosts."""
    level: Literal["error", "warning"] = "error" if spec.elastic_pools else "warning"
    action = "A label can't be added later: use one that was created with a DNS label"
    return Finding(level, "network", f"{text} has no DNS label, so OCI's DNS has no host names for it", action)


def existing_subnets(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The existing subnets are available, in the VCN, and have the ranges of the spec."""
    for name, fact in facts.subnets.items():
        public = name == "public"
        ocid = spec.network.public_subnet_id if public else spec.network.private_subnet_id
        cidr = spec.network.public_subnet_cidr if public else spec.network.private_subnet_cidr
        text = f"the {name} subnet {ocid}"
        if isinstance(fact, Unknown):
            yield from _refused(fact, "network", text, f"network.{name}_subnet_id")
            continue
        yield from _identity(spec, fact, text, f"network.{name}_subnet_cidr", cidr)
        yield from _public(fact, text) if public else _private(fact, text)
        yield from _ingress(spec, fact, text, public=public)
        yield from _names_in_use(spec, facts, fact, text, name)


def _identity(spec: ClusterSpec, subnet: Subnet, text: str, key: str, cidr: str | None) -> Iterator[Finding]:
    if subnet.state != "AVAILABLE":
        yield Finding("error", "network", f"{text} is {subnet.state}", "Use another")
    if subnet.vcn_id != spec.network.vcn_id:
        reason = f"{text} is in the VCN {subnet.vcn_id}, and network.vcn_id is {spec.network.vcn_id}"
        yield Finding("error", "network", reason, "Name subnets of that VCN")
    if subnet.cidr != cidr:
        yield Finding("error", "network", f"{text} has {subnet.cidr}, and {key} is {cidr}", f"Set it to {subnet.cidr}")
    if not subnet.dns_label:
        yield _no_label(spec, text)
    domains = {machine.domain for machine in requirements.machines(spec)} - {""}
    if subnet.domain and domains - {subnet.domain}:
        reason = f"{text} is in {subnet.domain} only, and machines are to be created in {', '.join(sorted(domains))}"
        yield Finding("error", "network", reason, "Use a regional subnet, or that domain")


def _public(subnet: Subnet, text: str) -> Iterator[Finding]:
    if subnet.private:
        reason = f"{text} prohibits public addresses, and the controller and login nodes need one"
        yield Finding("error", "network", reason, "Use another, or write `access: bastion` under network")
    elif isinstance(subnet.routes, tuple) and "internetgateway" not in subnet.routes:
        reason = f"{text} has no route to an internet gateway, so no user can log in to the controller"
        yield Finding("error", "network", reason, "Add the route, or write `access: bastion` under network")


def _private(subnet: Subnet, text: str) -> Iterator[Finding]:
    if not subnet.private:
        reason = f"{text} allows public addresses"
        yield Finding(
            "warning",
            "network",
            reason,
            "gpucluster assigns none to nodes; only a subnet that prohibits them guarantees it",
        )
    if not isinstance(subnet.routes, tuple):
        return
    if not {"natgateway", "drg", "privateip", "internetgateway"} & set(subnet.routes):
        reason = f"{text} has no route to a NAT gateway (nor to another gateway)"
        action = (
            "Add one, or provide package mirrors inside the network: nodes install packages of their operating system"
        )
        yield Finding("warning", "network", reason, action)
    if "servicegateway" not in subnet.routes:
        reason = f"{text} has no route to a service gateway"
        action = "Add one for All Services: the Oracle Cloud Agent and the controller use it"
        yield Finding("warning", "network", reason, action)


def _ingress(spec: ClusterSpec, subnet: Subnet, text: str, *, public: bool) -> Iterator[Finding]:
    """What the security lists allow. Network security groups may allow more, so this is only a warning."""
    if not isinstance(subnet.ingress, tuple):
        return
    if not any(rule.protocol == "all" and _covers(rule, spec.network.vcn_cidr) for rule in subnet.ingress):
        reason = f"the security lists of {text} do not allow all traffic from {spec.network.vcn_cidr}"
        action = "Add an ingress rule for all protocols: Slurm, NFS, LDAP and MPI use many ports"
        yield Finding("warning", "network", reason, action)
    if public:
        blocked = [
            cidr for cidr in spec.network.ssh_allowed_cidrs if not any(_ssh(rule, cidr) for rule in subnet.ingress)
        ]
        if blocked:
            reason = f"the security lists of {text} do not allow ssh from {', '.join(blocked[:_LISTED])}"
            yield Finding("warning", "network", reason, "Add an ingress rule for TCP port 22")


def _ssh(rule: IngressRule, cidr: str) -> bool:
    port = rule.ports is None or rule.ports[0] <= 22 <= rule.ports[1]  # noqa: PLR2004
    return rule.protocol in ("all", "6") and port and _covers(rule, cidr)


def _covers(rule: IngressRule, cidr: str) -> bool:
    outer, inner = _network(rule.source), _network(cidr)
    return outer is not None and inner is not None and inner.subnet_of(outer)


def _names_in_use(spec: ClusterSpec, facts: Facts, subnet: Subnet, text: str, name: str) -> Iterator[Finding]:
    own = {instance.name for instance in facts.instances} if isinstance(facts.instances, tuple) else set()
    new = requirements.host_names(spec, name) - own
    taken = sorted(new & {label.lower() for label in subnet.host_names})
    # If the cluster exists, these are its own names, even if its instances could not be listed.
    if taken and not own and not isinstance(facts.instances, Unknown):
        reason = f"host names are in use in {text}: {', '.join(taken[:_LISTED])}"
        yield Finding("error", "names", reason, "Rename the pool, or use a subnet without another cluster")


def addresses(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Each subnet has enough addresses for the highest number of machines."""
    cidrs = {"public": spec.network.public_subnet_cidr, "private": spec.network.private_subnet_cidr}
    for name, cidr in cidrs.items():
        subnet = _network(cidr or "")
        if subnet is None:
            continue
        fact = facts.subnets.get(name)
        used: tuple[str, ...] = ()
        if isinstance(fact, Subnet) and isinstance(fact.in_use, tuple):
            used = fact.in_use
        needed = requirements.addresses(spec, name)[1] - (_ours(facts, name, spec, subnet) if used else 0)
        free = subnet.num_addresses - RESERVED_ADDRESSES - len(used)
        if free < needed:
            in_use = f", {len(used)} are in use" if used else ""
            available = count(free, "free address", "free addresses")
            reason = f"the {name} subnet {cidr} has {available}{in_use}, and {needed} more are needed at most"
            yield Finding("error", "addresses", reason, "Use a larger subnet, or lower max_count")


def _ours(facts: Facts, name: str, spec: ClusterSpec, subnet: IPv4Network) -> int:
    """How many of the addresses in use belong to this cluster."""
    instances: tuple[ExistingInstance, ...] = facts.instances if isinstance(facts.instances, tuple) else ()
    public = spec.network.access == "public"
    entry = [instance for instance in instances if not instance.pool]
    if name == "public":
        return len(entry)
    target = MOUNT_TARGET_ADDRESSES * sum(_is_inside(address, subnet) for address in facts.mount_targets)
    bastion = BASTION_ADDRESSES if isinstance(facts.created, Created) and facts.created.bastions else 0
    return len(instances) - (len(entry) if public else 0) + target + bastion


def file_systems(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Existing file systems are active, and in the availability domain of their mount target."""
    for key, ocid in spec.storage.existing_file_systems.items():
        yield from _file_system(spec, facts, key, ocid)


def _file_system(spec: ClusterSpec, facts: Facts, key: str, ocid: str) -> Iterator[Finding]:
    fact = facts.file_systems.get(key)
    if fact is None:
        return
    name = f"the file system {ocid}"
    if isinstance(fact, Unknown):
        yield from _refused(fact, "storage", name, key)
        return
    if fact.state != "ACTIVE":
        yield Finding("error", "storage", f"{name} is {fact.state}", "Use another")
    domain = requirements.machines(spec, facts.domains if isinstance(facts.domains, tuple) else ())[0].domain
    if domain and fact.domain != domain:
        reason = f"{name} is in {fact.domain}, and its mount target would be in {domain}"
        yield Finding("error", "storage", reason, f"Write `availability_domain: {fact.domain}` under cloud")


# High performance mount targets that an availability domain may have, by Gbps, unless the tenancy asked for more (docs:
# Updating Mount Target Performance). The names of their limits are not published.
_USUAL_LIMITS = {20: 2, 40: 1, 80: 0}


def throughput(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """High performance mount targets, of which OCI allows few."""
    if not isinstance(facts.created, Created):
        return
    present = Counter(facts.created.throughputs)
    for gbps, wanted in sorted(Counter(spec.storage.high_throughputs).items()):
        usual = _USUAL_LIMITS[gbps]
        if wanted > max(usual, present[gbps]):
            many = f"{count(wanted, 'mount target')} of {gbps} Gbps"
            reason = f"{many}: OCI allows {usual or 'none'} in an availability domain"
            yield Finding("note", "limits", reason, "Request an increase of this limit, unless the tenancy has one")


def _refused(fact: Unknown, check: str, name: str, key: str) -> Iterator[Finding]:
    if fact.refused:
        reason = f"{name} does not exist, or this user may not see it"
        yield Finding("error", check, reason, f"Check {key} in cluster.yml. {fact.action}")


def _overlaps(first: str, second: str) -> bool:
    network, other = _network(first), _network(second)
    return network is not None and other is not None and network.overlaps(other)


def _network(text: str) -> IPv4Network | None:
    """The network; None for anything else: an IPv6 range, or the name of a service."""
    try:
        return IPv4Network(text, strict=False)
    except ValueError:
        return None


def _is_inside(address: str, subnet: IPv4Network) -> bool:
    try:
        return IPv4Address(address) in subnet
    except ValueError:
        return False
