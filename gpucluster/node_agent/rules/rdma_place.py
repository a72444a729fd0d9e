"""The place of a host in its RDMA network, from OCI's metadata service, and the names of Slurm's switches for it.

Facts of OCI (docs of oci-hpc-oke: "Using RDMA Network Locality"; its labeler, templates/labeler-configmap.yaml): hosts
of one local block are nearest to each other, then those of one network block, then those of one HPC island. With a
capacity topology, `/opc/v2/host/` has them as `rdmaTopologyData`; on other shapes with RDMA it may have
`networkBlockId` and `rackId` instead, and Oracle takes the rack as the local block. Other hosts report neither. oci-hpc
writes the word None where a value is missing (playbooks/roles/http_server/tasks/main.yml).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: The members of that document that `place` reads.
MEMBERS = ("networkBlockId", "rackId", "rdmaTopologyData")
# As the labels of nodes in Kubernetes have it (`kubernetes/rdma_labels.py`): the end of an OCID is its own.
_END = 11
_MISSING = ("", "none", "null", "(null)")
#: The name that Slurm gives to the topology of topology.conf (`topology_g_init` of src/interfaces/topology.c).
TOPOLOGY = "default"


@dataclass(frozen=True)
class Place:
    """Where a host is in its RDMA network. Each is an id of OCI's, of any form.

    Args:
        island: the HPC island; empty where it is not reported.
        network_block, local_block: the parts of it, from far to near.
        memory_fabric: the NVLink domain of a GB200 or GB300; empty elsewhere.
    """

    island: str
    network_block: str
    local_block: str
    memory_fabric: str = ""


def place(document: Mapping[str, Any]) -> Place | None:
    """The place that a document of the metadata service reports; None where it does not report one. Pure.

    Args:
        document: the answer to `/opc/v2/host/`.
    """
    data = document.get("rdmaTopologyData")
    if isinstance(data, Mapping) and data:
        found = Place(
            _value(data.get("customerHPCIslandId")),
            _value(data.get("customerNetworkBlock")),
            _value(data.get("customerLocalBlock")),
            _value(data.get("customerGpuMemoryFabric")),
        )
    else:
        found = Place("", _value(document.get("networkBlockId")), _value(document.get("rackId")))
    return found if found.network_block and found.local_block else None


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value.strip().lower() not in _MISSING else ""


def _end(identifier: str) -> str:
    """The end of an id, of characters that mean nothing in Slurm's lists of names."""
    return re.sub(r"[^a-z0-9]", "", identifier.lower())[-_END:]


# A name of a pool has no underscore, so no other pool's switch has the same name.
def root_switch(pool: str) -> str:
    """The switch above all nodes of a pool: its RDMA network."""
    return f"rdma-{pool}"


def unplaced_switch(pool: str) -> str:
    """The leaf switch of those nodes of a pool whose place is not known."""
    return f"{root_switch(pool)}_unplaced"


def island_switch(pool: str, where: Place) -> str:
    """The switch of an HPC island."""
    return f"{root_switch(pool)}_isl-{_end(where.island)}"


def network_switch(pool: str, where: Place) -> str:
    """The switch of a network block."""
    return f"{root_switch(pool)}_nb-{_end(where.network_block)}"


def leaf_switch(pool: str, where: Place) -> str:
    """The leaf switch of a local block."""
    return f"{root_switch(pool)}_lb-{_end(where.local_block)}"


def path(pool: str, where: Place | None) -> str:
    """`Topology` of a node that joins a running cluster, for `scontrol update`. Pure.

    Slurm makes the switches that do not exist yet, below the first one, which has to exist and must not be a leaf with
    nodes (`topology_p_add_rm_node` and `switch_record_add_switch` of src/plugins/topology/tree).

    Args:
        where: None where it is not known.
    """
    below = (unplaced_switch(pool),) if where is None else (network_switch(pool, where), leaf_switch(pool, where))
    return ":".join((TOPOLOGY, root_switch(pool), *below))
