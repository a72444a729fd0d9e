"""What a spec requires from the cloud: machines, addresses, and how much of which service limit they use. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpucluster import handover, shapes
from gpucluster.handover.kubernetes import has_kubernetes_engine
from gpucluster.preflight.facts import ExistingInstance, LimitKey
from gpucluster.spec import ClusterSpec, Image
from gpucluster.spec.rules.network import BASTION_ADDRESSES, BUILDERS, MOUNT_TARGET_ADDRESSES

CONTROLLER = "controller"


@dataclass(frozen=True)
class MachineGroup:
    """The controller, the login nodes, or the nodes of a pool.

    Args:
        name: `controller`, `login` or the pool's name.
        domain: availability domain; empty if the spec names none and those of the region are unknown.
        count: number of permanent machines; `most` includes elastic ones.
    """

    name: str
    shape: str
    ocpus: float
    memory_gb: float
    image: Image
    domain: str
    count: int
    most: int
    reservation: str | None = None
    login: bool = False
    memory_fabric: str | None = None

    @property
    def place(self) -> str:
        """Its path in cluster.yml."""
        return self.name if self.name == CONTROLLER or self.login else f"pools.{self.name}"


def machines(spec: ClusterSpec, domains: Sequence[str] = ()) -> tuple[MachineGroup, ...]:
    """The controller, the login nodes and the pools.

    Args:
        domains: of the region; machines without a domain in the spec are created in the first.
    """
    default = spec.cloud.availability_domain or next(iter(domains), "")
    controller = spec.controller
    size = controller.ocpus or 0, controller.memory_gb or 0
    hosts = 2 if controller.standby else 1
    groups = [MachineGroup(CONTROLLER, controller.shape, *size, controller.image, default, hosts, hosts)]
    login, count = spec.login, spec.login.count
    if count:
        size = login.ocpus or 0, login.memory_gb or 0
        groups.append(MachineGroup(handover.LOGIN, login.shape, *size, login.image, default, count, count, login=True))
    for name, pool in spec.pools.items():
        domain, reserved = pool.availability_domain or default, pool.capacity_reservation_id
        size = pool.ocpus or 0, pool.memory_gb or 0
        group = MachineGroup(name, pool.shape, *size, pool.image, domain, pool.count, pool.max_count, reserved)
        groups.append(replace(group, memory_fabric=pool.memory_fabric_id))
    return tuple(groups)


def still_missing(machine: MachineGroup, instances: Iterable[ExistingInstance]) -> int:
    """How many of the permanent machines have yet to be launched."""
    existing = [
        instance
        for instance in instances
        if not instance.elastic
        and instance.login is machine.login
        and instance.pool == ("" if machine.name == CONTROLLER or machine.login else machine.name)
        and (instance.shape, instance.domain) == (machine.shape, machine.domain)
    ]
    return max(machine.count - len(existing), 0)


def uses(shape: str, domain: str, ocpus: float, memory_gb: float) -> dict[LimitKey, float]:
    """How much of each service limit one instance uses; empty for an unknown shape."""
    facts = shapes.catalogue().get(shape)
    if facts is None:
        return {}
    result: dict[LimitKey, float] = {
        ("compute", facts.limit_name, domain): facts.limit_use(ocpus if facts.flex else None)
    }
    if facts.memory_limit_name:
        result[("compute", facts.memory_limit_name, domain)] = float(memory_gb)
    return result


@dataclass(frozen=True)
class Demand:
    """Additional use of a limit: by permanent machines, and with elastic ones. `users`: their paths in cluster.yml."""

    permanent: float
    most: float
    users: tuple[str, ...]


def demands(machines: Sequence[MachineGroup], instances: Sequence[ExistingInstance]) -> Mapping[LimitKey, Demand]:
    """The additional use of each limit. The limit already counts all existing instances, which are subtracted."""
    permanent: defaultdict[LimitKey, float] = defaultdict(float)
    most: defaultdict[LimitKey, float] = defaultdict(float)
    users: dict[LimitKey, list[str]] = {}
    for machine in machines:
        # The limit counts the hosts of a reservation already.
        if machine.reservation:
            continue
        for key, each in uses(machine.shape, machine.domain, machine.ocpus, machine.memory_gb).items():
            permanent[key] += each * machine.count
            most[key] += each * machine.most
            users.setdefault(key, []).append(machine.place)
    for instance in instances:
        for key, each in uses(instance.shape, instance.domain, instance.ocpus, instance.memory_gb).items():
            permanent[key] -= 0 if instance.elastic else each
            most[key] -= each
    return {
        key: Demand(max(permanent[key], 0), max(most[key], permanent[key], 0), tuple(names))
        for key, names in users.items()
    }


def counted_resources(spec: ClusterSpec, domain: str) -> dict[LimitKey, tuple[str, int]]:
    """The resources of which the cluster creates few, by their limit, and how many: VCN, bastion, file systems, mount
    targets.

    Args:
        domain: where storage is created; if it is empty, so is the part of the result about storage.
    """
    result: dict[LimitKey, tuple[str, int]] = {}
    if spec.network.vcn_id is None:
        result["vcn", "vcn-count", ""] = "VCN", 1
    if spec.network.access == "bastion":
        result["bastion", "bastion-count", ""] = "bastion", 1
    if domain and spec.storage.mount_targets:
        result["filesystem", "mount-target-count", domain] = "mount target", spec.storage.mount_targets
    if domain and spec.storage.created_file_systems:
        result["filesystem", "file-system-count", domain] = "file system", spec.storage.created_file_systems
    return result


def addresses(spec: ClusterSpec, subnet: str) -> tuple[int, int]:
    """Highest number of addresses of a subnet (`public` or `private`) in use: (by machines, in total)."""
    public = spec.network.access == "public"
    entry = 1 + spec.login.count
    endpoint = spec.kubernetes.oke.endpoint if has_kubernetes_engine(spec) else ""
    if subnet == "public":
        return entry, entry + (endpoint == "public")
    nodes = sum(pool.max_count for pool in spec.pools.values()) + (0 if public else entry)
    storage = MOUNT_TARGET_ADDRESSES * spec.storage.mount_targets
    builders = BUILDERS if spec.elastic_pools else 0
    return nodes, nodes + storage + builders + (0 if public else BASTION_ADDRESSES) + (endpoint == "private")


def host_names(spec: ClusterSpec, subnet: str) -> frozenset[str]:
    """The host names of the machines in a subnet, without elastic nodes."""
    entry = frozenset({CONTROLLER, *login_labels(spec)})
    if subnet == "public":
        return entry
    nodes = {node for name, pool in spec.pools.items() for node in handover.permanent_names(name, pool)}
    return frozenset(nodes) | (frozenset() if spec.network.access == "public" else entry)


def login_labels(spec: ClusterSpec) -> tuple[str, ...]:
    """The host names of the login nodes in DNS."""
    return tuple(name.removeprefix(f"{spec.name}-") for name in handover.login_names(spec))


def reaches_all(spec: ClusterSpec) -> bool:
    """Whether the controller's permissions are about every instance of a compartment that others may use."""
    return bool(spec.elastic_pools) and spec.cloud.traits.needs_compartment and spec.iam.tag is None
