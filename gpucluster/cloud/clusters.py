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

from gpucluster.cloud.client import Access, all_pages, refusals
from gpucluster.oci import tags
from gpucluster.oci.states import ENDED, LifecycleState

_WORKERS = 4


@dataclass(frozen=True)
class CloudContents:
    """What exists of one cluster.

    Args:
        compartment_id: where it was found; empty if nothing was.
        instances: their number by lifecycle state, such as {"RUNNING": 3}; elastic nodes and builders are among them.
        file_systems, networks: their number; existing ones that cluster.yml names are not counted.
    """

    name: str
    compartment_id: str = ""
    instances: Mapping[str, int] = field(default_factory=dict)
    file_systems: int = 0
    networks: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing of it was found."""
        return not (self.instances or self.file_systems or self.networks)

    def to_dict(self) -> dict[str, Any]:
        """The same values as JSON."""
        return asdict(self)


def in_compartment(access: Access) -> tuple[CloudContents, ...]:
    """Every cluster of which an instance, a file system or a network exists, by name.

    Raises:
        CloudError: the cloud refused, or can't be reached.
    """
    with refusals("listing the clusters of the compartment"), ThreadPoolExecutor(_WORKERS) as workers:
        listings = (_instances, _file_systems, _networks)
        instances, file_systems, networks = workers.map(lambda listing: _by_cluster(listing(access)), listings)
    return tuple(
        CloudContents(
            name,
            access.compartment_id,
            dict(sorted(Counter(instances.get(name, ())).items())),
            len(file_systems.get(name, ())),
            len(networks.get(name, ())),
        )
        for name in sorted({*instances, *file_systems, *networks})
    )


def _instances(access: Access) -> Iterator[Any]:
    compute = access.client("core", "ComputeClient")
    for place in dict.fromkeys((*access.compartments(), *_created(access))):
        yield from all_pages(compute.list_instances, place)


def _created(access: Access) -> Iterator[str]:
    """The compartments of elastic nodes that gpucluster created in this one. An operator who may not list compartments
    has created none."""
    try:
        listed = all_pages(access.client("identity", "IdentityClient").list_compartments, access.compartment_id)
    except Exception as error:
        if getattr(error, "status", None) in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.FORBIDDEN):
            return
        raise
    for each in listed:
        if tags.cluster(each.freeform_tags) and each.lifecycle_state == LifecycleState.ACTIVE:
            yield str(each.id)


def _networks(access: Access) -> Iterable[Any]:
    return all_pages(access.client("core", "VirtualNetworkClient").list_vcns, compartment_id=access.compartment_id)


def _file_systems(access: Access) -> Iterator[Any]:
    identity = access.client("identity", "IdentityClient")
    client = access.client("file_storage", "FileStorageClient")
    for domain in identity.list_availability_domains(access.compartment_id).data:
        yield from all_pages(client.list_file_systems, access.compartment_id, domain.name)


def _by_cluster(resources: Iterable[Any]) -> dict[str, list[str]]:
    """The states of the resources that exist, by the cluster that they have the tag of."""
    found: dict[str, list[str]] = {}
    for resource in resources:
        name, state = tags.cluster(resource.freeform_tags), str(resource.lifecycle_state)
        if name and state not in ENDED:
            found.setdefault(name, []).append(state)
    return found
