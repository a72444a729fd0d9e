"""What the wish asks of the cloud: machines, and how much of which service limit they take. Pure arithmetic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpucluster import handover, shapes
from gpucluster.preflight.facts import LimitKey, Standing
from gpucluster.spec import ClusterSpec, Image
from gpucluster.spec.rules.network import BASTION_ADDRESSES, BUILDERS, MOUNT_TARGET_ADDRESSES

CONTROLLER = "controller"


@dataclass(frozen=True)
class Machine:
    """The controller, or the nodes of a pool.

    Args:
        name: `controller` or the pool's name.
        domain: availability domain; empty where nobody chose one and the region's are not known.
        count: how many are always there; `most` how many there may be.
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

    @property
    def place(self) -> str:
        """Where it stands in cluster.yml."""
        return self.name if self.name == CONTROLLER else f"pools.{self.name}"


def machines(spec: ClusterSpec, domains: Sequence[str] = ()) -> tuple[Machine, ...]:
    """The controller and the pools.

    Args:
        domains: of the region; the first is meant where none is named.
    """
    general = spec.cloud.availability_domain or next(iter(domains), "")
    one = spec.controller
    found = [Machine(CONTROLLER, one.shape, one.ocpus or 0, one.memory_gb or 0, one.image, general, 1, 1)]
    for name, pool in spec.pools.items():
        domain, reserved = pool.availability_domain or general, pool.capacity_reservation_id
        size = pool.ocpus or 0, pool.memory_gb or 0
        found.append(Machine(name, pool.shape, *size, pool.image, domain, pool.count, pool.max_count, reserved))
    return tuple(found)


def still_missing(machine: Machine, standing: Iterable[Standing]) -> int:
    """How many of the machines that are always there have yet to be launched."""
    there = [
        one
        for one in standing
        if not one.elastic
        and one.pool == ("" if machine.name == CONTROLLER else machine.name)
        and (one.shape, one.domain) == (machine.shape, machine.domain)
    ]
    return max(machine.count - len(there), 0)


def uses(shape: str, domain: str, ocpus: float, memory_gb: float) -> dict[LimitKey, float]:
    """How much of each service limit one instance takes. A shape that we do not know takes none that we know of."""
    known = shapes.catalogue().get(shape)
    if known is None:
        return {}
    found: dict[LimitKey, float] = {
        ("compute", known.limit_name, domain): known.limit_use(ocpus if known.flex else None)
    }
    if known.memory_limit_name:
        found[("compute", known.memory_limit_name, domain)] = float(memory_gb)
    return found


@dataclass(frozen=True)
class Demand:
    """What is to be added to a limit's use: for what is always there, and at most."""

    permanent: float
    most: float
    takers: tuple[str, ...]


def demands(wanted: Sequence[Machine], standing: Sequence[Standing]) -> Mapping[LimitKey, Demand]:
    """By limit, what the wish adds to its use. What stands already counts for the cluster, whatever it was made for."""
    permanent: defaultdict[LimitKey, float] = defaultdict(float)
    most: defaultdict[LimitKey, float] = defaultdict(float)
    takers: dict[LimitKey, list[str]] = {}
    for machine in wanted:
        # Who has reserved hosts has them counted already.
        if machine.reservation:
            continue
        for key, each in uses(machine.shape, machine.domain, machine.ocpus, machine.memory_gb).items():
            permanent[key] += each * machine.count
            most[key] += each * machine.most
            takers.setdefault(key, []).append(machine.place)
    for one in standing:
        for key, each in uses(one.shape, one.domain, one.ocpus, one.memory_gb).items():
            permanent[key] -= 0 if one.elastic else each
            most[key] -= each
    return {
        key: Demand(max(permanent[key], 0), max(most[key], permanent[key], 0), tuple(names))
        for key, names in takers.items()
    }


def things(spec: ClusterSpec, domain: str) -> dict[LimitKey, str]:
    """By limit, of what else one is made: a network, a bastion, a file system, a mount target.

    Args:
        domain: where storage is made; empty where that is not known, and its limits can't be, either.
    """
    made: dict[LimitKey, str] = {}
    if spec.network.vcn_id is None:
        made["vcn", "vcn-count", ""] = "VCN"
    if spec.network.access == "bastion":
        made["bastion", "bastion-count", ""] = "bastion"
    home = spec.storage.home
    if domain and home.enabled and home.server is None:
        made["filesystem", "mount-target-count", domain] = "mount target"
        if home.file_system_id is None:
            made["filesystem", "file-system-count", domain] = "file system"
    return made


def addresses(spec: ClusterSpec, subnet: str) -> tuple[int, int]:
    """How many addresses of a subnet (`public` or `private`) the cluster takes: (machines, all), both at most."""
    public = spec.network.access == "public"
    if subnet == "public":
        return 1, 1
    home = spec.storage.home
    nodes = sum(pool.max_count for pool in spec.pools.values()) + (0 if public else 1)
    storage = MOUNT_TARGET_ADDRESSES if home.enabled and home.server is None else 0
    builders = BUILDERS if spec.elastic_pools else 0
    return nodes, nodes + storage + builders + (0 if public else BASTION_ADDRESSES)


def host_names(spec: ClusterSpec, subnet: str) -> frozenset[str]:
    """The host names that the machines of a subnet get; those of elastic nodes are chosen when they come."""
    controller = frozenset({CONTROLLER})
    if subnet == "public":
        return controller
    nodes = {node for name, pool in spec.pools.items() for node in handover.permanent_names(name, pool)}
    return frozenset(nodes) | (frozenset() if spec.network.access == "public" else controller)
