"""Names that Kubernetes has for devices, and for the networks that go with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpucluster.node_agent.rules import mig

#: The resource that a pod asks for, by the maker of the GPUs.
GPU_RESOURCES: Mapping[str, str] = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
#: The resource of virtual functions, by oci-hpc-oke.
RDMA_RESOURCE = "nvidia.com/rdma-vf"
#: The annotation of a pod with the further networks that it takes, by Multus.
NETWORKS = "k8s.v1.cni.cncf.io/networks"
#: The name of NVIDIA's DRA driver, and of the class of its whole GPUs (its chart, templates/deviceclass-gpu.yaml).
GPU_DRIVER = GPU_CLASS = "gpu.nvidia.com"
#: What a quota calls the devices of a class (Kubernetes, core/v1: ResourceClaimsPerClass).
CLASS_QUOTA = "{}.deviceclass.resource.k8s.io/devices"
_INSTANCE = "nvidia.com/mig-"


def instance_resource(profile: str) -> str:
    """The resource of the instances of a divided GPU: `nvidia.com/mig-1g.10gb`, by NVIDIA's device plugin with the MIG
    strategy `mixed` (k8s-device-plugin v0.20.0, internal/rm/rm.go: `+` becomes a dot)."""
    return _INSTANCE + mig.gres_type(profile)


def is_of_nvidia_gpus(resource: str) -> bool:
    """Whether it is that of whole GPUs of NVIDIA's, or of instances."""
    return resource == GPU_RESOURCES["nvidia"] or resource.startswith(_INSTANCE)


def divided_resources(parts: Sequence[str]) -> dict[str, int]:
    """What a node with divided GPUs offers: the number by resource, whole GPUs first.

    Args:
        parts: `NodeExpectation.mig`.
    """
    whole = sum(not words for words in parts)
    numbers = {GPU_RESOURCES["nvidia"]: whole} if whole else {}
    names = [instance_resource(each.profile) for words in parts for each in mig.parse(words)]
    return numbers | {name: names.count(name) for name in sorted(set(names))}
