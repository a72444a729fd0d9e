"""What Ansible's inventory says of Kubernetes: the variables of the cluster, labels and taints of each pool."""

from __future__ import annotations

from typing import Any

from gpucluster import shapes
from gpucluster.handover.outputs import Outputs
from gpucluster.spec import ClusterSpec, Pool

#: Pods without a need for GPUs keep away from nodes that have them.
_GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def has_kubernetes_engine(spec: ClusterSpec) -> bool:
    """Whether the control plane is a cluster of Oracle Kubernetes Engine."""
    return spec.scheduler == "kubernetes" and spec.kubernetes.control_plane == "oke"


def kubernetes_variables(spec: ClusterSpec) -> dict[str, Any]:
    """The variables of the whole cluster. Without Kubernetes they say what it would be, and no role reads them."""
    section = spec.kubernetes
    return {
        "scheduler": spec.scheduler,
        "kubernetes_control_plane": section.control_plane,
        "kubernetes_release": section.release,
        "kubernetes_network": section.network,
        "kubernetes_pod_cidr": section.pod_cidr,
        "kubernetes_service_cidr": section.service_cidr,
        "kubernetes_gpus": section.gpus,
        "kubernetes_rdma": section.rdma,
        "kubernetes_user_quota": section.user_quota.model_dump(),
    }


def pool_variables(spec: ClusterSpec, name: str, pool: Pool, outputs: Outputs) -> dict[str, Any]:
    """The variables of the group of a pool: its labels and taints. Empty without Kubernetes."""
    if spec.scheduler != "kubernetes":
        return {}
    output = outputs.pools.get(name)
    zone = output.availability_domain if output else ""
    labels = {
        "gpucluster.io/pool": name,
        "gpucluster.io/shape": pool.shape,
        "gpucluster.io/elastic": "false",
        # OCI's names have a colon, which the value of a label can't have: `Uocm:PHX-AD-1`.
        **({"topology.kubernetes.io/zone": zone.rpartition(":")[2]} if zone else {}),
    }
    shape = shapes.get(pool.shape)
    return {"kubernetes_node_labels": labels, "kubernetes_node_taints": [_GPU_TAINT] if shape.has_nvidia_gpus else []}
