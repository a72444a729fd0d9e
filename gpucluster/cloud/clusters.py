"""The clusters in a compartment, found by their tags: what exists of each, whatever a state or a machine knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from gpucluster.cloud.client import Access, all_pages, refusals
from gpucluster.oci import tags
from gpucluster.oci.states import ENDED

_WORKERS = 4


@dataclass(frozen=True)
class CloudContents:
    """What exists of one cluster.

    Args:
        instances: their number by lifecycle state, such as {"RUNNING": 3}; elastic nodes and builders are among them.
        file_systems, networks: their number; existing ones that cluster.yml names are not counted.
    """

    name: str
    compartment_id: str
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


class Clusters:
    """Finds what has the tag of a cluster in one compartment. Reads only."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def all(self) -> tuple[CloudContents, ...]:
        """Every cluster of which an instance, a file system or a network exists, by name.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        with refusals("listing the clusters of the compartment"), ThreadPoolExecutor(_WORKERS) as workers:
            listings = (self._instances, self._file_systems, self._networks)
            instances, file_systems, networks = workers.map(_by_cluster, listings)
        names = sorted({*instances, *file_systems, *networks})
        return tuple(
            CloudContents(
                name,
                self._access.compartment_id,
                dict(sorted(Counter(instances.get(name, ())).items())),
                len(file_systems.get(name, ())),
                len(networks.get(name, ())),
            )
            for name in names
        )

    def one(self, name: str) -> CloudContents:
        """One cluster; empty if nothing of it exists.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        empty = CloudContents(name, self._access.compartment_id)
        return next((each for each in self.all() if each.name == name), empty)

    def _instances(self) -> Iterable[Any]:
        client = self._access.client("core", "ComputeClient")
        return all_pages(client.list_instances, self._access.compartment_id)

    def _networks(self) -> Iterable[Any]:
        client = self._access.client("core", "VirtualNetworkClient")
        return all_pages(client.list_vcns, compartment_id=self._access.compartment_id)

    def _file_systems(self) -> Iterator[Any]:
        identity = self._access.client("identity", "IdentityClient")
        client = self._access.client("file_storage", "FileStorageClient")
        for domain in identity.list_availability_domains(self._access.compartment_id).data:
            yield from all_pages(client.list_file_systems, self._access.compartment_id, domain.name)


def _by_cluster(listing: Callable[[], Iterable[Any]]) -> dict[str, list[str]]:
    """The states of the resources that exist, by the cluster that they have the tag of."""
    found: dict[str, list[str]] = {}
    for resource in listing():
        name, state = tags.cluster(resource.freeform_tags), str(resource.lifecycle_state)
        if name and state not in ENDED:
            found.setdefault(name, []).append(state)
    return found
