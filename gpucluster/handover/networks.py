"""The networks of a cluster: the addresses from which its own hosts connect to each other."""

from __future__ import annotations

from gpucluster.spec import ClusterSpec

#: What the agent's plugins give RDMA interfaces in Oracle's HPC images (oracle-quickstart/oci-hpc-images,
#: rdma_network.json).
_PLUGIN_RDMA_CIDR = "10.224.0.0/12"


def cluster_networks(spec: ClusterSpec) -> list[str]:
    """The subnets of the hosts, the networks of their RDMA interfaces and that of pods, which no host refuses."""
    network = spec.network
    addressings = {pool.rdma_addressing for pool in spec.pools.values() if pool.uses_rdma}
    cidrs = [network.public_subnet_cidr, network.private_subnet_cidr]
    cidrs.append(_PLUGIN_RDMA_CIDR if "plugin" in addressings else None)
    cidrs.append(network.rdma_cidr if "cloud-init" in addressings else None)
    cidrs.append(spec.kubernetes.pod_cidr if spec.scheduler == "kubernetes" else None)
    return [cidr for cidr in cidrs if cidr is not None]
