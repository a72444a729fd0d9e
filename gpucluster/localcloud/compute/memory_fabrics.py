"""GPU memory fabrics: racks whose hosts share an NVLink fabric, which a tenancy has as dedicated capacity.

By default there are none, as in a tenancy without such capacity. `<home>/memory_fabrics.json` is a list of them, read
at every request, so that a test can break a host, and repair it:

    [{"name": "rack-1", "shape": "BM.GPU.GB200.4"},
     {"name": "rack-2", "shape": "BM.GPU.GB300.4", "unhealthy": [4, 17], "state": "DEGRADED"}]

    name, shape          required; the OCID of a fabric follows from its name
    hosts                18 by default
    unhealthy            the numbers of the hosts, from 1 on, that are in repair
    health               HEALTHY (default) or UNHEALTHY
    state                PROVISIONING, UNAVAILABLE or DEGRADED. Without it a fabric is OCCUPIED by a GPU memory cluster,
                         or AVAILABLE, or UNAVAILABLE without a host that could be used
    availability_domain  the first one by default
    island, network_block, local_block   names, as in `placement`

Sources: Oracle's pages "GPU Memory Cluster and Memory Fabric" (18 hosts), "GPU Memory Fabric States" and "Creating GPU
Memory Clusters" (fabrics are in the root compartment); the SDK's docstrings of ComputeGpuMemoryFabric and ComputeHost.

A host of a terminated instance is free at once: here nothing has to be wiped (on OCI it is PROVISIONING for a while).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpucluster import shapes
from gpucluster.localcloud.compute import placement
from gpucluster.localcloud.compute.capacity import HOST
from gpucluster.localcloud.state.cloud import CloudState, timestamp
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.region import AVAILABILITY_DOMAINS
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import ApiError

FILE = "memory_fabrics.json"
#: The kind of the rows of GPU memory clusters.
MEMORY_CLUSTER = "computegpumemorycluster"
#: States in which OCI allows no GPU memory cluster, and which no cluster changes.
UNUSABLE = ("PROVISIONING", "UNAVAILABLE", "DEGRADED")
_HEALTHY, _UNHEALTHY = "HEALTHY", "UNHEALTHY"
_KNOWN = {
    "name", "shape", "hosts", "unhealthy", "health", "state", "availability_domain", "island", "network_block",
    "local_block",
}  # fmt: skip


@dataclass(frozen=True)
class DedicatedHost:
    """The host that an instance of a GPU memory cluster gets: its id, and its place as in `placement`."""

    id: str
    place: Json


@dataclass(frozen=True)
class Fabric:
    """One entry of the file."""

    name: str
    shape: str
    size: int
    unhealthy: frozenset[int]
    health: str
    fixed_state: str
    domain: str
    place: Mapping[str, str]

    @property
    def id(self) -> str:
        """Its OCID, which its hosts report as well."""
        return placement.ocid("memory_fabric", self.name)

    @cached_property
    def hosts(self) -> Mapping[str, int]:
        """The numbers of the hosts by their ids, in their order."""
        return {hashlib.sha256(f"{self.name}/{number}".encode()).hexdigest(): number for number in self._numbers}

    @property
    def healthy(self) -> int:
        """How many hosts work."""
        return sum(number not in self.unhealthy for number in self._numbers)

    @property
    def _numbers(self) -> range:
        return range(1, self.size + 1)


def fabrics(cloud: CloudState) -> tuple[Fabric, ...]:
    """The fabrics of the tenancy, in the order of the file.

    Raises:
        ApiError: the file can't be read. Without this error a test could pass because of a typo.
    """
    try:
        entries = json.loads((cloud.home / FILE).read_text(encoding="utf-8"))
        return tuple(_fabric(entry) for entry in entries)
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ApiError(500, "InternalError", f"{FILE} is not a list of fabrics: {error!r}") from error


def _fabric(entry: Mapping[str, Any]) -> Fabric:
    if unknown := set(entry) - _KNOWN:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    fabric = Fabric(
        name=str(entry["name"]),
        shape=str(entry["shape"]),
        size=int(entry.get("hosts", shapes.MEMORY_FABRIC_HOSTS)),
        unhealthy=frozenset(entry.get("unhealthy", ())),
        health=str(entry.get("health", _HEALTHY)),
        fixed_state=str(entry.get("state", "")),
        domain=str(entry.get("availability_domain", AVAILABILITY_DOMAINS[0])),
        place={
            "island": str(entry.get("island", "island")),
            "network_block": str(entry.get("network_block", "network-block")),
            "local_block": str(entry.get("local_block", entry["name"])),
            "memory_fabric": str(entry["name"]),
        },
    )
    shape = shapes.catalogue().get(fabric.shape)
    if shape is None or not shape.memory_fabric:
        raise ValueError(f"{fabric.shape} is not a shape whose hosts share an NVLink fabric")
    if fabric.fixed_state not in ("", *UNUSABLE) or fabric.health not in (_HEALTHY, _UNHEALTHY):
        raise ValueError(f"state {fabric.fixed_state}, health {fabric.health}")
    if not fabric.unhealthy <= set(fabric.hosts.values()) or fabric.domain not in AVAILABILITY_DOMAINS:
        raise ValueError(f"{fabric.name}: hosts, unhealthy, availability_domain")
    return fabric


def find(cloud: CloudState, ocid: object) -> Fabric | None:
    """The fabric with this OCID; None if the tenancy does not have it."""
    return next((fabric for fabric in fabrics(cloud) if fabric.id == ocid), None)


def occupied(cloud: CloudState, fabric: Fabric) -> dict[str, Resource]:
    """The instances on a fabric that are not TERMINATED, by the ids of their hosts."""
    rows = cloud.store.find("instance", shape=fabric.shape)
    return {row.hidden[HOST]: row for row in rows if row.hidden.get(HOST) in fabric.hosts}


def free_hosts(cloud: CloudState, fabric: Fabric) -> tuple[DedicatedHost, ...]:
    """The hosts that work and have no instance; call this in the transaction of a launch."""
    taken = occupied(cloud, fabric)
    free = (ocid for ocid, number in fabric.hosts.items() if ocid not in taken and number not in fabric.unhealthy)
    return tuple(DedicatedHost(ocid, dict(fabric.place)) for ocid in free)


def clusters_on(cloud: CloudState, fabric_id: str) -> list[Resource]:
    """The GPU memory clusters on a fabric."""
    return cloud.store.find(MEMORY_CLUSTER, gpuMemoryFabricId=fabric_id)


def state_of(cloud: CloudState, fabric: Fabric) -> str:
    """The lifecycle state of a fabric (docs: "GPU Memory Fabric States")."""
    if fabric.fixed_state:
        return fabric.fixed_state
    if clusters_on(cloud, fabric.id):
        return "OCCUPIED"
    return LifecycleState.AVAILABLE if free_hosts(cloud, fabric) else "UNAVAILABLE"


def fabric_view(cloud: CloudState, fabric: Fabric) -> Json:
    """A fabric as the API shows it."""
    return {
        "id": fabric.id,
        "displayName": fabric.name,
        "compartmentId": cloud.identity.tenancy,
        **_network_place(fabric, "compute{}Id"),
        "lifecycleState": state_of(cloud, fabric),
        "fabricHealth": fabric.health,
        "healthyHostCount": fabric.healthy,
        "availableHostCount": len(free_hosts(cloud, fabric)),
        "totalHostCount": fabric.size,
        "additionalData": {},
        "timeCreated": _since(cloud),
        "freeformTags": {},
        "definedTags": {},
        "systemTags": {},
    }


def host_views(cloud: CloudState, fabric: Fabric) -> list[Json]:
    """The hosts of a fabric as the API shows them."""
    taken, since = occupied(cloud, fabric), _since(cloud)
    return [
        {
            "id": placement.ocid("host", ocid),
            "displayName": f"{fabric.name}-{number}",
            "availabilityDomain": fabric.domain,
            "compartmentId": cloud.identity.tenancy,
            "faultDomain": taken[ocid].body["faultDomain"] if ocid in taken else None,
            **_network_place(fabric, "{}Id"),
            "gpuMemoryFabricId": fabric.id,
            "instanceId": taken[ocid].id if ocid in taken else None,
            "shape": fabric.shape,
            "health": _UNHEALTHY if number in fabric.unhealthy else _HEALTHY,
            "lifecycleState": _host_state(ocid in taken, number in fabric.unhealthy),
            "timeCreated": since,
            "timeUpdated": since,
            "freeformTags": {},
            "definedTags": {},
        }
        for ocid, number in fabric.hosts.items()
    ]


def _since(cloud: CloudState) -> str:
    """When the fabrics came to the tenancy, or were changed: the time of their file."""
    return timestamp((cloud.home / FILE).stat().st_mtime)


def _host_state(occupied_now: bool, unhealthy: bool) -> str:
    if occupied_now:
        return "OCCUPIED"
    return "REPAIR" if unhealthy else LifecycleState.AVAILABLE


def _network_place(fabric: Fabric, member: str) -> dict[str, str]:
    """Where a fabric is in the network; `member` is the form of the names."""
    names = {"HpcIsland": "island", "NetworkBlock": "network_block", "LocalBlock": "local_block"}
    found = {member.format(name): placement.ocid(kind, fabric.place[kind]) for name, kind in names.items()}
    return {name[0].lower() + name[1:]: value for name, value in found.items()}
