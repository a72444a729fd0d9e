"""Names that Kubernetes has for devices, and for the networks that go with them."""

from __future__ import annotations

from collections.abc import Mapping

#: The resource that a pod asks for, by the maker of the GPUs.
GPU_RESOURCES: Mapping[str, str] = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
#: The resource of virtual functions, by oci-hpc-oke.
RDMA_RESOURCE = "nvidia.com/rdma-vf"
#: The annotation of a pod with the further networks that it takes, by Multus.
NETWORKS = "k8s.v1.cni.cncf.io/networks"
