"""Labels and taints of a node, from its pool, its shape and its RDMA domain.

Everything here is in the form that kubelet may set for its own node: the admission plugin NodeRestriction refuses other
names below kubernetes.io.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpucluster.kubernetes.manifests import DOMAIN
from gpucluster.node_agent.rules.devices import GPU_RESOURCES, RDMA_RESOURCE, divided_resources
from gpucluster.node_agent.rules.labels import label_value
from gpucluster.shapes import Shape

POOL = f"{DOMAIN}/pool"
SHAPE = f"{DOMAIN}/shape"
ELASTIC = f"{DOMAIN}/elastic"
RDMA_DOMAIN = f"{DOMAIN}/rdma-domain"
RDMA_DEVICES = f"{DOMAIN}/rdma-devices"
GPU_VENDOR = f"{DOMAIN}/gpu-vendor"
GPU_TYPE = f"{DOMAIN}/gpu-type"
GPU_COUNT = f"{DOMAIN}/gpu-count"
#: What charts and programs of NVIDIA look for. Their GPU operator sets it, too; a device plugin alone does not.
NVIDIA_PRESENT = "nvidia.com/gpu.present"
#: The node offers GPUs (or RDMA devices) that it does not have: scheduling is real, the devices are not.
EMULATED = f"{DOMAIN}/emulated"

#: Well-known labels of Kubernetes.
ZONE = "topology.kubernetes.io/zone"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"


def node_labels(
    pool: str,
    shape: Shape,
    *,
    elastic: bool,
    zone: str = "",
    rdma_network: str | None = None,
    mig_parts: Sequence[str] = (),
    emulated: bool = False,
) -> dict[str, str]:
    """The labels of each node of a pool.

    Args:
        zone: its availability domain, such as `Uocm:PHX-AD-1`; empty if it is not known.
        rdma_network: the OCID of its cluster network or compute cluster; None if its nodes use no RDMA. Nodes with the
            same domain reach each other by RDMA, others do not.
        mig_parts: what each GPU is divided into (`node_agent.rules.mig`); empty if none is.
        emulated: its nodes have not the hardware of their shape.
    """
    labels = {POOL: pool, SHAPE: shape.name, INSTANCE_TYPE: shape.name, ELASTIC: str(elastic).lower()}
    if zone:
        labels[ZONE] = label_value(zone.rpartition(":")[2])
    if shape.gpus:
        labels |= {GPU_VENDOR: shape.gpu_vendor, GPU_TYPE: shape.gres_type or "", GPU_COUNT: str(shape.gpus)}
    if shape.has_nvidia_gpus:
        labels[NVIDIA_PRESENT] = "true"
    resources = divided_resources(mig_parts)
    labels |= {
        f"{DOMAIN}/{name.partition('/')[2]}": str(number)
        for name, number in resources.items()
        if name not in GPU_RESOURCES.values()
    }
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


def offered_devices(shape: Shape, *, virtual_functions: bool, mig_parts: Sequence[str] = ()) -> dict[str, str]:
    """The devices that a node of the shape offers to pods. Where it has not got them, its status gets this capacity.

    Args:
        virtual_functions: whether the cluster offers RDMA devices as a resource (`kubernetes.rdma: sr-iov`).
        mig_parts: as for `node_labels`.
    """
    devices = {name: str(number) for name, number in gpus_of_pods(shape, mig_parts).items()}
    if virtual_functions and shape.rdma:
        devices[RDMA_RESOURCE] = str(len(shape.rdma_devices))
    return devices


def gpus_of_pods(shape: Shape, mig_parts: Sequence[str] = ()) -> dict[str, int]:
    """What pods can have of a node's GPUs: the number by resource.

    Args:
        mig_parts: as for `node_labels`.
    """
    if mig_parts:
        return divided_resources(mig_parts)
    return {GPU_RESOURCES[shape.gpu_vendor]: shape.gpus} if shape.gpus else {}
