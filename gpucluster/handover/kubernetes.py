"""What Ansible's inventory says of Kubernetes: the variables of the cluster, labels and taints of each pool."""

from __future__ import annotations

from typing import Any

from gpucluster import shapes
from gpucluster.handover.outputs import Outputs
from gpucluster.kubernetes import labels
from gpucluster.kubernetes.system import needed_images, system
from gpucluster.spec import ClusterSpec, Pool


def kubernetes_variables(spec: ClusterSpec, *, hardware_emulated: bool) -> dict[str, Any]:
    """The variables of the whole cluster. Without Kubernetes they say what it would be, and no role reads them.

    Args:
        hardware_emulated: hosts have less hardware than their shape says (the local cloud).
    """
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
        **_objects(spec, hardware_emulated=hardware_emulated),
    }


def pool_variables(
    spec: ClusterSpec, name: str, pool: Pool, outputs: Outputs, *, hardware_emulated: bool
) -> dict[str, Any]:
    """The variables of the group of a pool: what its nodes say of themselves. Empty without Kubernetes.

    Args:
        hardware_emulated: as for `kubernetes_variables`. Then nodes also say resources that they do not have.
    """
    if spec.scheduler != "kubernetes":
        return {}
    output, shape = outputs.pools.get(name), shapes.get(pool.shape)
    network = (output.cluster_network_id or output.compute_cluster_id or "") if output else ""
    said = labels.node_labels(
        name,
        shape,
        elastic=False,
        zone=output.availability_domain if output else "",
        rdma_network=network if pool.uses_rdma else None,
        emulated=hardware_emulated,
    )
    functions = spec.kubernetes.rdma == "sr-iov"
    return {
        "kubernetes_node_labels": said,
        "kubernetes_node_taints": labels.node_taints(shape),
        "kubernetes_emulated_resources": labels.emulated_resources(shape, virtual_functions=functions)
        if hardware_emulated
        else {},
    }


def _objects(spec: ClusterSpec, *, hardware_emulated: bool) -> dict[str, Any]:
    """The objects that gpucluster runs for the hardware, and the images that they and NVIDIA's operator need."""
    if spec.scheduler != "kubernetes":
        return {"kubernetes_manifests": [], "kubernetes_images": []}
    found = [shapes.get(pool.shape) for pool in spec.pools.values()]
    manifests = system(
        found,
        [shapes.get(pool.shape) for pool in spec.pools.values() if pool.uses_rdma],
        minor=int(spec.kubernetes.release.split(".")[1]),
        software=spec.kubernetes.gpus,
        access=spec.kubernetes.rdma,
        emulated=hardware_emulated,
    )
    vendors = {shape.gpu_vendor for shape in found if shape.gpus} if not hardware_emulated else set()
    images = needed_images(
        manifests, vendors, software=spec.kubernetes.gpus, exporter=spec.monitoring.enabled and spec.nvidia.dcgm
    )
    return {"kubernetes_manifests": manifests, "kubernetes_images": images}
