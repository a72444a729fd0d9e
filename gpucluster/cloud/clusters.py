"""The clusters in a compartment, found by their tags: what exists of each, whatever a state or a machine knows.

Elastic nodes may be in a compartment of their own. One that gpucluster created has the tag of its cluster.
"""

from __future__ import annotations

import http
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from gpucluster.cloud.client import CloudAccess, all_pages, refusals, unless_refused
from gpucluster.oci import tags
from gpucluster.oci.states import ENDED, LifecycleState

_WORKERS = 4


@dataclass(frozen=True)
class Sighting:
    """A resource with the tag of a cluster, and what its tags state about the owner of the cluster.

    Args:
        kind: instance, file_system or vcn.
        identity: the random identity of the cluster; empty if its tags do not state it.
        origin: who made the cluster, and where; empty if the resource does not state it.
        created: when, in RFC 3339; creator: by whom, by a tag default of the tenancy; both may be empty.
        address_range: of a VCN.
    """

    cluster: str
    kind: str
    id: str
    name: str
    state: str = ""
    identity: str = ""
    origin: str = ""
    created: str = ""
    creator: str = ""
    address_range: str = ""
    controller: bool = False

    @property
    def carries_lock(self) -> bool:
        """Whether its tag can name the run that holds the cluster: a network, or a controller in an existing one."""
        return self.kind == "vcn" or self.controller


@dataclass(frozen=True)
class CloudContents:
    """What exists of one cluster.

    Args:
        compartment_id: where it was found; empty if nothing was.
        instances: their number by lifecycle state, such as {"RUNNING": 3}; elastic nodes and builders are among them.
        file_systems, networks: their number; existing ones that cluster.yml names are not counted.
        ids: the identities that these resources name; empty if none names one. More than one:
            several clusters have this name.
    """

    name: str
    compartment_id: str = ""
    instances: Mapping[str, int] = field(default_factory=dict)
    file_systems: int = 0
    networks: int = 0
    ids: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing of it was found."""
        return not (self.instances or self.file_systems or self.networks)

    def to_dict(self) -> dict[str, Any]:
        """The same values as JSON."""
        return asdict(self)


def in_compartment(access: CloudAccess) -> tuple[CloudContents, ...]:
    """Every cluster of which an instance, a file system or a network exists, by name.

    Raises:
        CloudError: the cloud refused, or can't be reached.
    """
    all_sightings = sightings(access)
    return tuple(
        _contents(name, access.compartment_id, [each for each in all_sightings if each.cluster == name])
        for name in sorted({each.cluster for each in all_sightings})
    )


def _contents(name: str, compartment_id: str, resources: Iterable[Sighting]) -> CloudContents:
    of_kind: dict[str, list[Sighting]] = {"instance": [], "file_system": [], "vcn": []}
    for each in resources:
        of_kind[each.kind].append(each)
    everything = [each for listed in of_kind.values() for each in listed]
    return CloudContents(
        name,
        compartment_id,
        dict(sorted(Counter(each.state for each in of_kind["instance"]).items())),
        len(of_kind["file_system"]),
        len(of_kind["vcn"]),
        tuple(sorted({each.identity for each in everything if each.identity})),
    )


def sightings(access: CloudAccess) -> tuple[Sighting, ...]:
    """The instances, file systems and networks of all clusters that exist or are being deleted.

    Raises:
        CloudError: the cloud refused, or can't be reached.
    """
    with refusals("listing the clusters of the compartment"), ThreadPoolExecutor(_WORKERS) as workers:
        listings = {"instance": _instances, "file_system": _file_systems, "vcn": _networks}
        listed = workers.map(lambda kind: [_sighting(kind, each) for each in listings[kind](access)], listings)
        return tuple(each for resources in listed for each in resources if each.cluster and each.state not in ENDED)


def _sighting(kind: str, resource: Any) -> Sighting:
    resource_tags, created = resource.freeform_tags, getattr(resource, "time_created", None)
    name = tags.cluster(resource_tags)
    by = (getattr(resource, "defined_tags", None) or {}).get("Oracle-Tags") or {}
    return Sighting(
        name,
        kind,
        str(resource.id),
        str(resource.display_name or ""),
        str(resource.lifecycle_state),
        tags.identity(resource_tags),
        tags.origin(resource_tags),
        created.isoformat() if created else "",
        str(by.get("CreatedBy") or ""),
        ", ".join(getattr(resource, "cidr_blocks", None) or ()),
        controller=tags.controller(resource_tags, name),
    )


def _instances(access: CloudAccess) -> Iterator[Any]:
    compute = access.client("core", "ComputeClient")
    for place in dict.fromkeys((*access.compartments(), *_created(access))):
        yield from all_pages(compute.list_instances, place)


def _created(access: CloudAccess) -> Iterator[str]:
    """The compartments of elastic nodes that gpucluster created in this one. An operator who may not list compartments
    has created none."""
    call = access.client("identity", "IdentityClient").list_compartments
    refused = (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.FORBIDDEN)
    for each in unless_refused(lambda: all_pages(call, access.compartment_id), *refused) or ():
        if tags.cluster(each.freeform_tags) and each.lifecycle_state == LifecycleState.ACTIVE:
            yield str(each.id)


def _networks(access: CloudAccess) -> Iterable[Any]:
    return all_pages(access.client("core", "VirtualNetworkClient").list_vcns, compartment_id=access.compartment_id)


def _file_systems(access: CloudAccess) -> Iterator[Any]:
    identity = access.client("identity", "IdentityClient")
    client = access.client("file_storage", "FileStorageClient")
    for domain in identity.list_availability_domains(access.compartment_id).data:
        yield from all_pages(client.list_file_systems, access.compartment_id, domain.name)
