"""What was asked before anything is created, and what could not be asked. `look` fills it in, `judge` reads it.

In every fact `None` means that nobody needed to know, and `Unknown` that nobody could tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Unknown:
    """What could not be asked.

    Args:
        check: the name of the check that needs it.
        what: as it stands in "could not read ...".
        reason: why not.
        status: of HTTP; 0 where there was no answer.
        action: what to do about it.
    """

    check: str
    what: str
    reason: str
    status: int = 0
    action: str = ""

    @property
    def refused(self) -> bool:
        """Not there, or not to be seen by this user: OCI says the same of both."""
        return self.status == 404  # noqa: PLR2004

    @property
    def busy(self) -> bool:
        """The cloud had no time, or was not well."""
        return self.status == 429 or self.status >= 500  # noqa: PLR2004


@dataclass(frozen=True)
class KeyFile:
    """The private half of the API key. `problem` says why it can't be used, empty if it can.

    Args:
        mode: permissions of the file.
        fingerprint: of the key in the file; empty where it could not be computed.
        expected: what the profile says.
    """

    path: Path
    expected: str
    problem: str = ""
    mode: int = 0o600
    fingerprint: str = ""


@dataclass(frozen=True)
class Answer:
    """What came of the first signed call.

    Args:
        status: of HTTP; 0 where there was no answer.
        message: what was said, or why nothing was.
        skew: seconds by which our clock is ahead of the cloud's; None where it told no time.
    """

    endpoint: str
    status: int
    message: str = ""
    skew: float | None = None

    @property
    def believed(self) -> bool:
        """The signature was accepted, whatever else was said."""
        return self.status not in (0, 401)


@dataclass(frozen=True)
class SshPair:
    """The operator's key pair.

    Args:
        public: the public key of ssh.public_key_file: type and key.
        derived: the public key that belongs to the private one; empty where that could not be read.
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
class Program:
    """The Terraform program. `problem` says why it can't be used, empty if it can; `action` what to do then."""

    problem: str = ""
    action: str = ""


@dataclass(frozen=True)
class Compartment:
    """A compartment as the cloud shows it."""

    name: str
    state: str


@dataclass(frozen=True)
class Standing:
    """An instance of this cluster that exists already. `pool` is empty for the controller.

    `elastic`: it comes and goes: an elastic node, or the builder of an image.
    """

    name: str
    shape: str
    domain: str
    ocpus: float = 0
    memory_gb: float = 0
    pool: str = ""
    elastic: bool = False


@dataclass(frozen=True)
class Limit:
    """What is left of a service limit for this compartment: the tenancy's limit and every quota looked at.

    Args:
        available: None where the cloud keeps no count.
        quota: of the compartment; None without one.
        used: in the compartment.
    """

    available: int | None
    used: int | None = None
    quota: float | None = None

    @property
    def left(self) -> int | None:
        """What may still be made; None where nobody knows."""
        if self.quota is None:
            return self.available
        under_quota = int(self.quota) - (self.used or 0)
        return under_quota if self.available is None else min(self.available, under_quota)


@dataclass(frozen=True)
class Capacity:
    """How many hosts were free; `count` is None where the cloud does not say how many."""

    status: str
    count: int | None = None


@dataclass(frozen=True)
class Reservation:
    """A capacity reservation: by shape, how many instances it has left."""

    state: str
    domain: str
    left: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Image:
    """The image of a machine.

    Args:
        id: empty where none was found.
        fits: whether the shape runs it; None where nobody knows.
        system, version: of the operating system, as the catalogue of images has them; empty where unknown.
        stand_in: what it really is, where it only stands in for the image that was asked for.
        listing: OCID of the marketplace listing; empty if it comes from none.
        listing_version: the version of that which was chosen; empty where there is none of that name.
        listing_versions: those that there are.
        terms: links to what apply accepts.
    """

    id: str
    name: str = ""
    state: str = "AVAILABLE"
    fits: bool | None = True
    system: str = ""
    version: str = ""
    stand_in: str = ""
    listing: str = ""
    listing_version: str = ""
    listing_versions: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Vcn:
    """A virtual cloud network. `ours`: this cluster made it."""

    id: str
    name: str
    cidrs: tuple[str, ...]
    dns_label: str = ""
    state: str = "AVAILABLE"
    ours: bool = False


@dataclass(frozen=True)
class Rule:
    """An ingress rule of a security list. `ports` is (lowest, highest), None for all."""

    protocol: str
    source: str
    ports: tuple[int, int] | None = None


@dataclass(frozen=True)
class Subnet:
    """An existing subnet. A part that could not be read is Unknown.

    Args:
        domain: of a subnet that lies in one availability domain; empty for a regional one.
        routes: kinds of what it routes to: `internetgateway`, `natgateway`, `servicegateway`, `drg`, `privateip`, ...
        ingress: rules of all its security lists.
        in_use: addresses that are taken, those of this cluster included.
        host_names: labels that are taken.
    """

    id: str
    vcn_id: str
    cidr: str
    dns_label: str = ""
    state: str = "AVAILABLE"
    private: bool = False
    domain: str = ""
    routes: tuple[str, ...] | Unknown = ()
    ingress: tuple[Rule, ...] | Unknown = ()
    in_use: tuple[str, ...] | Unknown = ()
    host_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileSystem:
    """An existing file system."""

    state: str
    domain: str


#: Service, name of the limit, and the domain that it counts in; empty for a limit of the region.
LimitKey = tuple[str, str, str]


@dataclass(frozen=True)
class Made:
    """How many of these this cluster has made already; also what a run made that failed half-way."""

    file_systems: int = 0
    mount_targets: int = 0
    bastions: int = 0


@dataclass(frozen=True)
class Facts:
    """Everything that is known before a run.

    Args:
        regions: to which the tenancy is subscribed; `home_region` is the one where IAM is written.
        domains: the availability domains of the region, in its order.
        shapes: what is offered, by domain.
        standing: the instances of this cluster.
        limits: by service, limit and domain.
        capacity: by domain and shape.
        images: by machine (`controller` or a pool).
        reservations: by pool.
        systems: the operating systems that our roles know, as `Ubuntu-24`.
        vcns: every network of the compartment; `vcn` the existing one that the wish names.
        made: this cluster's storage and bastion, by their tag.
        mount_target: the address of this cluster's mount target, where it stands.
    """

    key_file: KeyFile | None = None
    answer: Answer | None = None
    regions: tuple[str, ...] | Unknown | None = None
    home_region: str = ""
    compartment: Compartment | Unknown | None = None
    domains: tuple[str, ...] | Unknown | None = None
    shapes: Mapping[str, frozenset[str] | Unknown] = field(default_factory=dict)
    standing: tuple[Standing, ...] | Unknown | None = None
    limits: Mapping[LimitKey, Limit | Unknown] = field(default_factory=dict)
    capacity: Mapping[tuple[str, str], Capacity | Unknown] = field(default_factory=dict)
    images: Mapping[str, Image | Unknown] = field(default_factory=dict)
    reservations: Mapping[str, Reservation | Unknown] = field(default_factory=dict)
    systems: frozenset[str] = frozenset()
    vcns: tuple[Vcn, ...] | Unknown | None = None
    vcn: Vcn | Unknown | None = None
    subnets: Mapping[str, Subnet | Unknown] = field(default_factory=dict)
    file_system: FileSystem | Unknown | None = None
    made: Made | Unknown | None = None
    mount_target: str = ""
    ssh: SshPair | Unknown | None = None
    terraform: Program | None = None

    def unknown(self) -> Iterator[Unknown]:
        """Everything that could not be asked."""
        for one in fields(self):
            yield from _unknown_in(getattr(self, one.name))


def _unknown_in(value: Any) -> Iterator[Unknown]:
    if isinstance(value, Unknown):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _unknown_in(item)
    elif isinstance(value, Subnet):
        yield from (part for part in (value.routes, value.ingress, value.in_use) if isinstance(part, Unknown))
