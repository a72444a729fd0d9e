"""Everything that gpucluster itself runs in a cluster for its hardware, as one list of objects: the set `system`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from gpucluster.controller.kubernetes.person_objects import POLICIES_UNTIL, PRIVILEGED
from gpucluster.kubernetes import images
from gpucluster.kubernetes import manifests as objects
from gpucluster.kubernetes.manifests import SYSTEM_NAMESPACE, Manifest, gpus, metadata, namespace, networks
from gpucluster.kubernetes.manifests.networks import RdmaAccess
from gpucluster.shapes import Shape

GpuSoftware = Literal["device-plugin", "operator", "dra-driver"]
#: The name of this set of objects for `gpucluster-agent kubernetes apply`.
SET = "system"
# Its pods have directories and devices of their hosts. Releases without these labels have PodSecurityPolicy.
_PRIVILEGED = {"pod-security.kubernetes.io/enforce": "privileged"}


def system(
    shapes: Iterable[Shape],
    rdma_shapes: Iterable[Shape],
    *,
    minor: int,
    software: GpuSoftware,
    access: RdmaAccess,
    rdma_cidr: str,
    engine: bool,
    emulated: bool,
    divided: bool = False,
) -> list[Manifest]:
    """The objects of a cluster.

    Args:
        shapes: of its pools.
        rdma_shapes: of the pools that use RDMA.
        minor: the minor number of its release.
        rdma_cidr: the addresses of RDMA interfaces in pods.
        engine: the control plane is that of Kubernetes Engine.
        emulated: its hosts have not the hardware of their shapes. Then no device plugin runs, which would find nothing:
            the status of the nodes has what they offer.
        divided: whether GPUs of a pool are divided.
    """
    manifests = [namespace(SYSTEM_NAMESPACE, _PRIVILEGED)]
    if minor <= POLICIES_UNTIL:
        manifests.append(_use_of_policy())
    vendors = {shape.gpu_vendor for shape in shapes if shape.gpus}
    rdma_shapes = tuple(rdma_shapes)
    if not emulated:
        # NVIDIA's operator has its own plugin, and its DRA driver suffers none; AMD's GPUs have no part in either.
        manifests += gpus.device_plugins(
            vendors - ({"nvidia"} if software != "device-plugin" else set()),
            minor,
            rdma=gpus.gives_rdma(access, rdma_shapes),
            engine=engine,
            divided=divided,
        )
        manifests += networks.networks(access, list({shape.name: shape for shape in rdma_shapes}.values()), rdma_cidr)
    return manifests


def _use_of_policy() -> Manifest:
    """Pods of this namespace may be privileged. The role and its policy come with the users of the directory."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": metadata(PRIVILEGED, SYSTEM_NAMESPACE),
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": PRIVILEGED},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": f"system:serviceaccounts:{SYSTEM_NAMESPACE}"}],
    }


def needed_images(
    manifests: Iterable[Manifest], vendors: Iterable[str], *, software: GpuSoftware, exporter: bool
) -> list[str]:
    """The images of these objects and of NVIDIA's operator or DRA driver, sorted: what the archive has beside those of
    kubeadm.

    Args:
        exporter: whether the operator runs its exporter.
    """
    of_chart = []
    if software == "operator" and "nvidia" in vendors:
        of_chart = gpus.operator_images(exporter=exporter)
    if software == "dra-driver" and "nvidia" in vendors:
        of_chart = [images.reference("dra-driver")]
    return sorted({*objects.images(manifests), *of_chart})
