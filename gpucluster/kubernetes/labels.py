"""Labels and taints of a node, from its pool, its shape and its RDMA domain; labels of its place in the RDMA network.

Everything here is in the form that kubelet may set for its own node: the admission plugin NodeRestriction refuses other
names below kubernetes.io.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpucluster.kubernetes.manifests import DOMAIN
from gpucluster.shapes import Shape

POOL = f"{DOMAIN}/pool"
SHAPE = f"{DOMAIN}/shape"
ELASTIC = f"{DOMAIN}/elastic"
RDMA_DOMAIN = f"{DOMAIN}/rdma-domain"
RDMA_DEVICES = f"{DOMAIN}/rdma-devices"
GPU_VENDOR = f"{DOMAIN}/gpu-vendor"
GPU_TYPE = f"{DOMAIN}/gpu-type"
GPU_COUNT = f"{DOMAIN}/gpu-count"
#: The node offers GPUs (or RDMA devices) that it does not have: scheduling is real, the devices are not.
EMULATED = f"{DOMAIN}/emulated"

#: Well-known labels of Kubernetes.
ZONE = "topology.kubernetes.io/zone"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"

#: The resource that a pod asks for, by the maker of the GPUs.
GPU_RESOURCES: Mapping[str, str] = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
#: The resource of virtual functions, by oci-hpc-oke.
RDMA_RESOURCE = "nvidia.com/rdma-vf"

# OKE and oci-hpc-oke name these labels, and take the last 11 characters of each OCID (its labeler of v26.7.0). Kueue's
# scheduling by topology reads them, in the order of _TOPOLOGY without the host: from far to near.
_TOPOLOGY: Mapping[str, str] = {
    "oci.oraclecloud.com/rdma.hpc_island_id": "customerHPCIslandId",
    "oci.oraclecloud.com/rdma.network_block_id": "customerNetworkBlock",
    "oci.oraclecloud.com/rdma.local_block_id": "customerLocalBlock",
    "oci.oraclecloud.com/rdma.host_id": "customerHostId",
}
TOPOLOGY_LEVELS = (*(name for name in _TOPOLOGY if not name.endswith("host_id")), "kubernetes.io/hostname")
_OCID_END = 11
_LONGEST = 63
_EDGES = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$")


def node_labels(
    pool: str,
    shape: Shape,
    *,
    elastic: bool,
    zone: str = "",
    rdma_network: str | None = None,
    emulated: bool = False,
) -> dict[str, str]:
    """The labels of each node of a pool.

    Args:
        zone: its availability domain, such as `Uocm:PHX-AD-1`; empty if it is not known.
        rdma_network: the OCID of its cluster network or compute cluster; None if its nodes use no RDMA. Nodes with the
            same domain reach each other by RDMA, others do not.
        emulated: its nodes have not the hardware of their shape.
    """
    labels = {POOL: pool, SHAPE: shape.name, INSTANCE_TYPE: shape.name, ELASTIC: str(elastic).lower()}
    if zone:
        labels[ZONE] = label_value(zone.rpartition(":")[2])
    if shape.gpus:
        labels |= {GPU_VENDOR: shape.gpu_vendor, GPU_TYPE: shape.gres_type or "", GPU_COUNT: str(shape.gpus)}
    if rdma_network is not None:
        labels |= {RDMA_DOMAIN: rdma_domain(rdma_network) or pool, RDMA_DEVICES: str(len(shape.rdma_devices))}
    if emulated and (shape.gpus or rdma_network is not None):
        labels[EMULATED] = "true"
    return labels


def node_taints(shape: Shape) -> list[dict[str, str]]:
    """The taints of each node of a shape: pods without a need for GPUs keep away from nodes that have them."""
    if not shape.gpus:
        return []
    return [{"key": GPU_RESOURCES[shape.gpu_vendor], "value": "present", "effect": "NoSchedule"}]


def gpu_tolerations() -> list[dict[str, str]]:
    """What lets a pod run on nodes with GPUs."""
    return [{"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in GPU_RESOURCES.values()]


def rdma_domain(ocid: str) -> str:
    """The value of the label for an RDMA network: the end of its OCID, which tells networks of a tenancy apart."""
    return label_value(ocid.rpartition(".")[2])


def topology_labels(data: Mapping[str, Any]) -> dict[str, str]:
    """The labels of a host's place in the RDMA network. Empty where OCI does not say it: it does for dedicated pools.

    Args:
        data: the answer of the metadata service to `/opc/v2/host/rdmaTopologyData`.
    """
    return {
        label: label_value(str(data[key])[-_OCID_END:])
        for label, key in _TOPOLOGY.items()
        if isinstance(data.get(key), str) and data[key]
    }


def label_value(text: str) -> str:
    """The text as the value of a label: 63 characters of letters, digits, `-`, `_` and `.`, its end if it is longer."""
    return _EDGES.sub("", re.sub(r"[^-A-Za-z0-9_.]", "-", text)[-_LONGEST:])


def offered_devices(shape: Shape, *, virtual_functions: bool) -> dict[str, str]:
    """The devices that a node of the shape offers to pods. Where it has not got them, its status gets this capacity.

    Args:
        virtual_functions: whether the cluster offers RDMA devices as a resource (`kubernetes.rdma: sr-iov`).
    """
    found = {GPU_RESOURCES[shape.gpu_vendor]: str(shape.gpus)} if shape.gpus else {}
    if virtual_functions and shape.rdma:
        found[RDMA_RESOURCE] = str(len(shape.rdma_devices))
    return found
