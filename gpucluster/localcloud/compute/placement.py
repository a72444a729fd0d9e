"""Where the host of an instance with RDMA is in its network, as the metadata service reports it.

By default nowhere: hosts of on-demand capacity report nothing. `<home>/rdma_places.json` is a list of places, read at
each launch, as hosts of dedicated capacity have them:

    [{"island": "a", "network_block": "n", "local_block": "x", "hosts": 2},
     {"shape": "BM.GPU*", "network_block": "n", "rack": "r"}, {}]

A launch into a cluster network or a compute cluster gets the first place that is for its `shape` (a pattern) and has
fewer instances than `hosts` (without it: any number). A host that comes again has its place again. A place has

    island, network_block, local_block, memory_fabric   names; each stands for one OCID
    rack                 instead of local_block and island: a host without capacity topology, which reports
                         `networkBlockId` and `rackId`
    none of these        a host that reports nothing
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.store import Json
from gpucluster.localcloud.state.wire import ApiError

FILE = "rdma_places.json"
#: The member of an instance's hidden row with its place.
PLACE = "rdma_place"
_NAMES = ("island", "network_block", "local_block", "memory_fabric", "rack")
_KNOWN = {*_NAMES, "shape", "hosts"}
# The kinds in the OCIDs of oci-hpc-oke's page "Using RDMA Network Locality"; that of a memory fabric is the SDK's name.
_KINDS = {
    "island": "hpcisland",
    "network_block": "computenetworkblock",
    "local_block": "computelocalblock",
    "memory_fabric": "computegpumemoryfabric",
    "host": "computebaremetalhost",
}


def of_launch(cloud: CloudState, shape: str, host: str) -> Json:
    """The place of the host of a launch; call this in its transaction. Empty where the file names none.

    Args:
        host: the id of the host (`capacity.host_of_launch`).

    Raises:
        ApiError: the file can't be read. Without this error a test could pass because of a typo.
    """
    entries = _entries(cloud)
    rows = cloud.store.find("instance", shape=shape) if entries else []
    for row in rows:
        if row.hidden.get("host") == host:
            return dict(row.hidden.get(PLACE) or {})
    used = [row.hidden.get(PLACE) or {} for row in rows if row.gone_at is None]
    for entry in entries:
        place = {name: entry[name] for name in _NAMES if name in entry}
        if fnmatchcase(shape, entry.get("shape", "*")) and used.count(place) < entry.get("hosts", len(used) + 1):
            return place
    return {}


def _entries(cloud: CloudState) -> list[Mapping[str, Any]]:
    try:
        entries = json.loads((cloud.home / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise ApiError(500, "InternalError", f"{FILE}: {error}") from error
    if not isinstance(entries, list) or not all(isinstance(each, dict) and set(each) <= _KNOWN for each in entries):
        raise ApiError(500, "InternalError", f"{FILE} is not a list of places with the members {sorted(_KNOWN)}")
    return entries


def document(place: Mapping[str, str], host: str) -> Json:
    """What the metadata service reports of a place, beside the id of the host."""
    if "rack" in place:
        return {"networkBlockId": _hash(place.get("network_block", "")), "rackId": _hash(place["rack"])}
    if "local_block" not in place:
        return {}
    names = {
        "customerHPCIslandId": ("island", place.get("island", "")),
        "customerHostId": ("host", host),
        "customerLocalBlock": ("local_block", place["local_block"]),
        "customerNetworkBlock": ("network_block", place.get("network_block", "")),
        **({"customerGpuMemoryFabric": ("memory_fabric", fabric)} if (fabric := place.get("memory_fabric")) else {}),
    }
    return {"rdmaTopologyData": {key: ocid(kind, name) for key, (kind, name) in names.items()}}


def ocid(kind: str, name: str) -> str:
    """The OCID that stands for a name of the file."""
    return f"ocid1.{_KINDS[kind]}.oc1.local.{_hash(name)}"


def _hash(name: str) -> str:
    """Sixty characters, as the end of an OCID has."""
    return hashlib.sha256(name.encode()).hexdigest()[:60]
