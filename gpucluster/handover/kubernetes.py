"""The part of Ansible's inventory about Kubernetes: the variables of the cluster, labels and taints of each pool,
and the objects that gpucluster runs there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucluster import shapes
from gpucluster.cloud.members import PoolMember
from gpucluster.controller.kubernetes.person_objects import POLICIES_UNTIL, PRIVILEGED
from gpucluster.handover.outputs import OkeOutput, Outputs
from gpucluster.kubernetes import labels
from gpucluster.kubernetes.images import OperatorChart, operator_chart
from gpucluster.kubernetes.manifests import Manifest, autoscaler, gpus, images, networks, queues
from gpucluster.kubernetes.system import SET, needed_images, system
from gpucluster.spec import ClusterSpec, PoolSpec

_MANAGED_BOOT = """\
#!/bin/bash
set -euo pipefail
script=/var/run/gpucluster-oke-init.sh
curl --fail --silent --show-error --retry 10 --header 'Authorization: Bearer Oracle' \\
  http://169.254.169.254/opc/v2/instance/metadata/oke_init_script | base64 --decode >"$script"
bash "$script" --kubelet-extra-args '--register-with-taints={taints}'
"""

#: Where instances of the local cloud have the certificate of its API, which is not among those of the system.
_LOCAL_CLOUD_CA = "/run/localcloud/ca.pem"


def has_kubernetes_engine(spec: ClusterSpec) -> bool:
    """Whether the control plane is a cluster of Oracle Kubernetes Engine."""
    return spec.scheduler == "kubernetes" and spec.kubernetes.control_plane == "oke"


def kubernetes_variables(spec: ClusterSpec, outputs: Outputs, *, hardware_emulated: bool) -> dict[str, Any]:
    """The variables of the whole cluster. Without Kubernetes they describe what it would be, and no role reads them.
    `kubernetes_oke` is there with a control plane of Kubernetes Engine only.

    Args:
        hardware_emulated: as for `inventory`.
    """
    section = spec.kubernetes
    oke = outputs.oke if has_kubernetes_engine(spec) else None
    return {
        **({"kubernetes_oke": _oke_variable(oke, outputs.region, hardware_emulated=hardware_emulated)} if oke else {}),
        "scheduler": spec.scheduler,
        "kubernetes_control_plane": section.control_plane,
        "kubernetes_release": section.release,
        "kubernetes_network": section.network,
        "kubernetes_pod_cidr": section.pod_cidr,
        "kubernetes_service_cidr": section.service_cidr,
        "kubernetes_gpus": section.gpus,
        "kubernetes_rdma": section.rdma,
        "kubernetes_user_quota": section.user_quota.model_dump(),
        "kubernetes_kubeconfig_hours": section.kubeconfig_hours,
    }


def _oke_variable(oke: OkeOutput, region: str, *, hardware_emulated: bool) -> dict[str, str]:
    """How hosts of the cluster's network reach the control plane: by its private address, which every one has."""
    return {
        "id": oke.id,
        "region": region,
        "endpoint": f"https://{oke.private_endpoint}",
        "ca": oke.ca,
        "cloud_ca": _LOCAL_CLOUD_CA if hardware_emulated else "",
    }


def pool_variables(
    spec: ClusterSpec, name: str, pool: PoolSpec, outputs: Outputs, *, hardware_emulated: bool
) -> dict[str, Any]:
    """The variables of the group of a pool: its labels and taints, the images of gpucluster's objects. Empty without
    Kubernetes.

    Args:
        hardware_emulated: as for `inventory`.
    """
    if spec.scheduler != "kubernetes":
        return {}
    offered = _offered_devices(spec, pool)
    return {
        "kubernetes_node_labels": node_labels(name, pool, outputs, elastic=False, hardware_emulated=hardware_emulated),
        "kubernetes_node_taints": labels.node_taints(pool.hardware),
        "kubernetes_emulated_devices": offered if hardware_emulated else {},
        "kubernetes_system_images": _images(spec, hardware_emulated=hardware_emulated),
    }


def managed_labels(name: str, pool: PoolSpec, *, hardware_emulated: bool) -> dict[str, str]:
    """The labels of the nodes of a managed pool, without the well-known ones, which OKE sets itself."""
    all_labels = labels.node_labels(name, pool.hardware, elastic=False, emulated=hardware_emulated)
    return {key: value for key, value in all_labels.items() if key not in (labels.INSTANCE_TYPE, labels.ZONE)}


def managed_user_data(pool: PoolSpec) -> str | None:
    """The script of the first boot of a managed pool's nodes; None for OKE's own. A node pool has no setting for
    taints, so kubelet gets them from here (docs: "Using Custom Cloud-init Initialization Scripts").
    """
    taints = labels.node_taints(pool.hardware)
    if not taints:
        return None
    text = ",".join(f"{taint['key']}={taint['value']}:{taint['effect']}" for taint in taints)
    return _MANAGED_BOOT.format(taints=text)


def node_labels(
    name: str, pool: PoolSpec, outputs: Outputs, *, elastic: bool, hardware_emulated: bool
) -> dict[str, str]:
    """The labels with which the permanent or the elastic nodes of a pool register.

    Args:
        hardware_emulated: as for `inventory`.
    """
    output = outputs.pools.get(name)
    network = (output.cluster_network_id or output.compute_cluster_id or "") if output else ""
    return labels.node_labels(
        name,
        pool.hardware,
        elastic=elastic,
        zone=output.availability_domain if output else "",
        rdma_network=network if pool.uses_rdma else None,
        mig_parts=pool.mig_parts,
        emulated=hardware_emulated,
    )


def _offered_devices(spec: ClusterSpec, pool: PoolSpec) -> dict[str, str]:
    functions = offers_functions(spec, pool)
    return labels.offered_devices(pool.hardware, virtual_functions=functions, mig_parts=pool.mig_parts)


def offers_functions(spec: ClusterSpec, pool: PoolSpec) -> bool:
    """Whether nodes of a pool offer virtual functions of their RDMA devices as a resource."""
    return spec.kubernetes.rdma == "sr-iov" and pool.uses_rdma


def node_names(spec: ClusterSpec, members: Mapping[str, Sequence[PoolMember]]) -> dict[str, str]:
    """The name of each permanent node in Kubernetes: OKE knows a node by its address."""
    by_address = has_kubernetes_engine(spec)
    return {node.name: node.private_ip if by_address else node.name for nodes in members.values() for node in nodes}


def pod_needs(spec: ClusterSpec, pool: PoolSpec, *, hardware_emulated: bool) -> dict[str, Any]:
    """What a pod needs to see all RDMA devices of a node: {annotations, container, volumes}. No rights to use them.

    Args:
        hardware_emulated: as for `inventory`. Then nodes have no files of devices, and a mount of them would make them.
    """
    needs = networks.pod_rdma(spec.kubernetes.rdma, pool.hardware, privileged=True)
    kept = ("resources",) if hardware_emulated else ("resources", "volumeMounts")
    return {
        "annotations": dict(needs.annotations),
        "container": {key: needs.container[key] for key in kept if key in needs.container},
        "volumes": [] if hardware_emulated else [dict(each) for each in needs.volumes],
    }


def controller_variables(
    spec: ClusterSpec, outputs: Outputs, members: Mapping[str, Sequence[PoolMember]], *, hardware_emulated: bool
) -> dict[str, Any]:
    """The variables of the controller: what the program there lets the cluster have, and its images. Empty without
    Kubernetes.

    Args:
        members: the permanent nodes of each pool.
        hardware_emulated: as for `inventory`.
    """
    if spec.scheduler != "kubernetes":
        return {}
    pools = []
    for name, nodes in members.items():
        pool = spec.pools[name]
        variables = pool_variables(spec, name, pool, outputs, hardware_emulated=hardware_emulated)
        pools.append(
            {
                "nodes": [node.name for node in nodes],
                "labels": variables["kubernetes_node_labels"],
                "taints": variables["kubernetes_node_taints"],
                "emulated": variables["kubernetes_emulated_devices"],
            }
        )
    manifests = system_manifests(spec, hardware_emulated=hardware_emulated)
    return {
        "kubernetes_system": {"set": SET, "manifests": manifests, "pools": pools},
        "kubernetes_autoscaler": {
            "set": autoscaler.SET,
            "account": autoscaler.ACCOUNT,
            "rules": _autoscaler_rules(spec),
        },
        "kubernetes_system_images": _images(spec, hardware_emulated=hardware_emulated),
    }


def _autoscaler_rules(spec: ClusterSpec) -> list[dict[str, Any]]:
    """The rights of the autoscaler; nothing where no pool is elastic."""
    if not spec.elastic_pools:
        return []
    return autoscaler.rules(privileged_policy=PRIVILEGED if minor_release(spec) <= POLICIES_UNTIL else None)


def _images(spec: ClusterSpec, *, hardware_emulated: bool) -> list[str]:
    """The images that each host must have for these objects. Those of an operator are its administrator's matter."""
    return images(system_manifests(spec, hardware_emulated=hardware_emulated))


def system_manifests(spec: ClusterSpec, *, hardware_emulated: bool) -> list[Manifest]:
    """The objects that gpucluster itself runs in a cluster for its hardware.

    Args:
        hardware_emulated: hosts have less hardware than their shape has (the local cloud).
    """
    return system(
        [pool.hardware for pool in spec.pools.values()],
        [pool.hardware for pool in spec.pools.values() if pool.uses_rdma],
        minor=minor_release(spec),
        software=spec.kubernetes.gpus,
        access=spec.kubernetes.rdma,
        rdma_cidr=spec.network.rdma_cidr,
        engine=has_kubernetes_engine(spec),
        emulated=hardware_emulated,
        divided=divides_gpus(spec),
    )


def divides_gpus(spec: ClusterSpec) -> bool:
    """Whether GPUs of a pool are divided (MIG)."""
    return any(pool.gpus.mig for pool in spec.pools.values())


def system_images(spec: ClusterSpec, *, hardware_emulated: bool) -> list[str]:
    """The images of these objects, for the archive: beside those that kubeadm and the network of pods need."""
    vendors = {pool.hardware.gpu_vendor for pool in spec.pools.values() if pool.hardware.gpus}
    return needed_images(
        system_manifests(spec, hardware_emulated=hardware_emulated),
        vendors,
        software=spec.kubernetes.gpus,
        exporter=not spec.monitoring.enabled,
    )


def minor_release(spec: ClusterSpec) -> int:
    """The minor number of the cluster's release, 36 of 1.36.4."""
    return int(spec.kubernetes.release.split(".")[1])


def operator_charts(spec: ClusterSpec) -> list[OperatorChart]:
    """The charts that an administrator installs for this cluster, with their values."""
    charts = []
    if spec.kubernetes.gpus == "operator" and any(pool.hardware.has_nvidia_gpus for pool in spec.pools.values()):
        values = gpus.operator_values(
            minor_release(spec),
            exporter=not spec.monitoring.enabled,
            rdma=gpus.gives_rdma(
                spec.kubernetes.rdma, (pool.hardware for pool in spec.pools.values() if pool.uses_rdma)
            ),
            divided=divides_gpus(spec),
        )
        charts.append(operator_chart("gpu-operator", "gpu-operator", values))
    if spec.claiming_pools:
        values = gpus.dra_driver_values(engine=has_kubernetes_engine(spec))
        charts.append(operator_chart("dra-driver", "dra-driver-nvidia-gpu", values))
    if spec.kubernetes.rdma == "sr-iov" and any(pool.uses_rdma for pool in spec.pools.values()):
        values = networks.network_operator_values()
        charts.append(operator_chart("network-operator", networks.OPERATOR_NAMESPACE, values))
    return charts


def queue_objects(spec: ClusterSpec, namespaces: Sequence[str], *, hardware_emulated: bool) -> list[Manifest]:
    """The objects of Kueue for this cluster's pools; see `manifests.queues`."""
    return queues.queues(
        [
            queues.QueuedPool(
                name,
                max(pool.count, pool.max_count),
                offered(spec, pool),
                gpus=bool(pool.hardware.gpus),
                # OCI tells the place of real hosts.
                placed=pool.uses_rdma and not hardware_emulated,
            )
            for name, pool in spec.pools.items()
        ],
        namespaces,
    )


def offered(spec: ClusterSpec, pool: PoolSpec) -> dict[str, int]:
    """What a node of the pool offers by its shape: resource -> bytes, threads, or devices."""
    machine = shapes.slurm_node(
        pool.hardware, ocpus=pool.ocpus, memory_gb=pool.memory_gb, smt=pool.platform.smt is not False
    )
    sockets, cores, threads = (int(machine[key] or 0) for key in ("Sockets", "CoresPerSocket", "ThreadsPerCore"))
    devices = _offered_devices(spec, pool)
    return {
        "cpu": sockets * cores * threads,
        "memory": int(machine["RealMemory"] or 0) * 2**20,
        **{name: int(number) for name, number in devices.items()},
    }
