"""The facts that preflight knows before anything is created. `collect` fills them in, `evaluate` reads them.

`None` means that a fact was not needed, `Unknown` that it could not be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gpucluster.cloud.providers.interface import MachineGpus

# Statuses of HTTP.
NOT_FOUND = 404
UNAUTHENTICATED = 401
_TOO_MANY_REQUESTS = 429
_SERVER_ERROR = 500


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be read.

    Args:
        check: the name of the check that needs it.
        what: the object of "could not read ...".
        reason: why not.
        status: HTTP status; 0 if there was no answer.
        action: what to do about it.
    """

    check: str
    what: str
    reason: str
    status: int = 0
    action: str = ""

    @property
    def refused(self) -> bool:
        """It does not exist, or this user may not see it: OCI answers the same in both cases."""
        return self.status == NOT_FOUND

    @property
    def busy(self) -> bool:
        """The cloud throttled the request or failed; the same request may succeed later."""
        return self.status == _TOO_MANY_REQUESTS or self.status >= _SERVER_ERROR


@dataclass(frozen=True)
class KeyFile:
    """The private API key. `problem` states why it can't be used; empty if it can.

    Args:
        mode: permissions of the file.
        fingerprint: of the key in the file; empty if it could not be computed.
        expected: the fingerprint in the profile.
    """

    path: Path
    expected: str
    problem: str = ""
    mode: int = 0o600
    fingerprint: str = ""


@dataclass(frozen=True)
class FirstCall:
    """The result of the first signed call.

    Args:
        status: HTTP status; 0 if there was no answer.
        message: error message of the cloud, or why there was no answer.
        skew: seconds by which this machine's clock is ahead of the cloud's; None if the answer had no time.
    """

    endpoint: str
    status: int
    message: str = ""
    skew: float | None = None

    @property
    def authenticated(self) -> bool:
        """Whether the cloud accepted the signature, whatever else it answered."""
        return self.status not in (0, UNAUTHENTICATED)


@dataclass(frozen=True)
class SshPair:
    """The operator's key pair.

    Args:
        public: the public key of ssh.public_key_file: type and key.
        derived: the public key that belongs to the private one; empty if that could not be read.
        locked: the private key has a passphrase.
        exists: the private key is a file of this machine.
    """

    private: Path
    public: str
    exists: bool = True
    mode: int = 0o600
    derived: str = ""
    locked: bool = False


@dataclass(frozen=True)
class InstalledProgram:
    """The Terraform program. `problem` states why it can't be used, empty if it can; `action` is what to do then."""

    problem: str = ""
    action: str = ""


@dataclass(frozen=True)
class Compartment:
    """A compartment."""

    name: str
    state: str


@dataclass(frozen=True)
class ExistingInstance:
    """An existing instance of this cluster. `pool` is empty for the controller and for login nodes.

    `login`: it is a login node.
    `elastic`: it is temporary: an elastic node, or the instance on which an image is baked.
    """

    name: str
    shape: str
    domain: str
    ocpus: float = 0
    memory_gb: float = 0
    pool: str = ""
    elastic: bool = False
    login: bool = False


@dataclass(frozen=True)
class Limit:
    """What is left of a service limit for this compartment, under the tenancy's limit and all quotas.

    Args:
        available: None if the cloud does not report it.
        quota: of the compartment; None without one.
        used: in the compartment.
    """

    available: int | None
    used: int | None = None
    quota: float | None = None

    @property
    def left(self) -> int | None:
        """What may still be created; None if unknown."""
        if self.quota is None:
            return self.available
        under_quota = int(self.quota) - (self.used or 0)
        return under_quota if self.available is None else min(self.available, under_quota)


@dataclass(frozen=True)
class Capacity:
    """How many hosts were free; `count` is None if the cloud does not report a number."""

    status: str
    count: int | None = None


@dataclass(frozen=True)
class Reservation:
    """A capacity reservation; `left` is the number of unused instances by shape."""

    state: str
    domain: str
    left: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MemoryFabric:
    """A GPU memory fabric.

    Args:
        available: the number of hosts that work and have no instance.
        total: the number of all hosts.
    """

    state: str
    health: str
    available: int
    total: int


@dataclass(frozen=True)
class FoundImage:
    """The image that the cloud has for a machine.

    Args:
        id: empty if there is none.
        fits: whether it is compatible with the shape; None if unknown.
        system, version: of the operating system, as the list of images has them; empty if unknown.
        custom: a user of the tenancy made or imported it: it is in a compartment, and platform images are in none.
        stand_in: what the image really contains, if it only represents the image that was requested.
        listing: OCID of the marketplace listing; empty if it comes from none.
        listing_version: the chosen version of the listing; empty if it has none that fits.
        listing_versions: the versions that the listing has.
        terms: links to the terms that apply accepts.
    """

    id: str
    name: str = ""
    state: str = "AVAILABLE"
    fits: bool | None = True
    system: str = ""
    version: str = ""
    custom: bool = False
    stand_in: str = ""
    listing: str = ""
    listing_version: str = ""
    listing_versions: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Vcn:
    """A virtual cloud network. `ours`: this cluster created it."""

    id: str
    name: str
    cidrs: tuple[str, ...]
    dns_label: str = ""
    state: str = "AVAILABLE"
    ours: bool = False


@dataclass(frozen=True)
class IngressRule:
    """An ingress rule of a security list. `ports` is (lowest, highest), None for all."""

    protocol: str
    source: str
    ports: tuple[int, int] | None = None


@dataclass(frozen=True)
class Subnet:
    """An existing subnet. A part that could not be read is Unknown.

    Args:
        domain: availability domain of a subnet that is not regional; empty for a regional one.
        routes: kinds of its route targets: `internetgateway`, `natgateway`, `servicegateway`, `drg`, `privateip`, ...
        ingress: rules of all its security lists.
        in_use: addresses in use, including those of this cluster.
        host_names: host name labels in use.
    """

    id: str
    vcn_id: str
    cidr: str
    dns_label: str = ""
    state: str = "AVAILABLE"
    private: bool = False
    domain: str = ""
    routes: tuple[str, ...] | Unknown = ()
    ingress: tuple[IngressRule, ...] | Unknown = ()
    in_use: tuple[str, ...] | Unknown = ()
    host_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class KubernetesEngine:
    """What Kubernetes Engine offers.

    Args:
        offered: the releases, as it writes them: `v1.34.1`.
        running: the release of this cluster's control plane; empty if there is none.
    """

    offered: tuple[str, ...]
    running: str = ""


@dataclass(frozen=True)
class ExistingFileSystem:
    """An existing file system."""

    state: str
    domain: str


#: Service, name of the limit, and its availability domain; the last is empty for a limit of the region.
LimitKey = tuple[str, str, str]


@dataclass(frozen=True)
class Created:
    """How many of these this cluster has already created, also in a run that failed; and the throughput of each mount
    target, in Gbps."""

    file_systems: int = 0
    mount_targets: int = 0
    bastions: int = 0
    throughputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Facts:
    """Everything that is known before a run.

    Args:
        first_call: the first signed call, to the tenancy's list of regions.
        regions: to which the tenancy is subscribed; `home_region` is the one in which IAM is written.
        domains: the availability domains of the region, in its order.
        shapes: the shapes that are offered, by domain.
        instances: the existing instances of this cluster.
        strangers: the number of instances in the compartment that are not of this cluster.
        limits: by service, limit and domain.
        capacity: by domain and shape.
        images: by machine (`controller`, `login` or a pool).
        reservations: by pool.
        memory_fabrics: by pool.
        vcns: every network of the compartment; `vcn` is the existing one that the spec names.
        created: this cluster's storage and bastion, found by their tag.
        machine_gpus: of the machine that runs the local cloud, where instances get them.
        file_systems: those that exist, by their key in cluster.yml.
        mount_targets: the addresses of this cluster's mount targets, if they exist.
    """

    key_file: KeyFile | None = None
    first_call: FirstCall | None = None
    regions: tuple[str, ...] | Unknown | None = None
    home_region: str = ""
    compartment: Compartment | Unknown | None = None
    domains: tuple[str, ...] | Unknown | None = None
    shapes: Mapping[str, frozenset[str] | Unknown] = field(default_factory=dict)
    instances: tuple[ExistingInstance, ...] | Unknown | None = None
    strangers: int | Unknown | None = None
    limits: Mapping[LimitKey, Limit | Unknown] = field(default_factory=dict)
    capacity: Mapping[tuple[str, str], Capacity | Unknown] = field(default_factory=dict)
    images: Mapping[str, FoundImage | Unknown] = field(default_factory=dict)
    reservations: Mapping[str, Reservation | Unknown] = field(default_factory=dict)
    memory_fabrics: Mapping[str, MemoryFabric | Unknown] = field(default_factory=dict)
    vcns: tuple[Vcn, ...] | Unknown | None = None
    vcn: Vcn | Unknown | None = None
    subnets: Mapping[str, Subnet | Unknown] = field(default_factory=dict)
    file_systems: Mapping[str, ExistingFileSystem | Unknown] = field(default_factory=dict)
    kubernetes_engine: KubernetesEngine | Unknown | None = None
    created: Created | Unknown | None = None
    mount_targets: tuple[str, ...] = ()
    machine_gpus: MachineGpus | Unknown | None = None
    ssh: SshPair | Unknown | None = None
    terraform: InstalledProgram | None = None

    def unknown(self) -> Iterator[Unknown]:
        """Every fact that could not be read."""
        for item in fields(self):
            yield from _unknown_in(getattr(self, item.name))


def _unknown_in(value: Any) -> Iterator[Unknown]:
    if isinstance(value, Unknown):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _unknown_in(item)
    elif isinstance(value, Subnet):
        yield from (part for part in (value.routes, value.ingress, value.in_use) if isinstance(part, Unknown))
