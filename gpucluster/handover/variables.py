"""The variables of the Terraform root module `terraform/cluster`, from the spec."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpucluster import shapes
from gpucluster.handover.kubernetes import has_kubernetes_engine, managed_labels, managed_user_data
from gpucluster.handover.names import LOGIN, login_names, permanent_names
from gpucluster.handover.outputs import ServiceRecord
from gpucluster.handover.shares import HOME_SHARE
from gpucluster.kubernetes.manifests.gpus import on_hosts
from gpucluster.oci import tags
from gpucluster.oci.image_names import version_filter
from gpucluster.oci.names import STATE_DEVICE, elastic_compartment
from gpucluster.rollout.record import RolloutRecord
from gpucluster.spec import (
    ClusterSpec,
    ControllerSpec,
    Image,
    LoginSpec,
    NetworkSpec,
    Platform,
    PoolSpec,
    export_path,
)
from gpucluster.systems import matrix

#: Add-ons of Kubernetes Engine that offer GPUs to pods.
_NVIDIA_PLUGIN = "NvidiaGpuPlugin"
_DEVICE_PLUGINS = (_NVIDIA_PLUGIN, "AmdGpuPlugin")

RDMA_PLUGINS = ("Compute HPC RDMA Authentication", "Compute HPC RDMA Auto-Configuration")


def tfvars(
    spec: ClusterSpec,
    *,
    tenancy_id: str,
    compartment_id: str,
    ssh_authorized_keys: Sequence[str],
    baked_images: Mapping[str, str],
    home_region: str = "",
    user_data: Mapping[str, str] | None = None,
    iam: Mapping[str, Any] | None = None,
    node_iam: Mapping[str, Any] | None = None,
    existing_images: Mapping[str, str] | None = None,
    login_keys: Mapping[str, str] | None = None,
    recorded: Mapping[str, Mapping[str, str]] | None = None,
    standing_compartment: str = "",
    cluster_id: str = "",
    origin: str = "",
    rollouts: Mapping[str, RolloutRecord] | None = None,
    controller_address: str = "",
    service: ServiceRecord | None = None,
    release: str = "",
    mount_targets: Collection[str] = (),
) -> dict[str, Any]:
    """The variables of the root module `terraform/cluster`.

    Args:
        baked_images: by pool, the OCID of the image of its elastic nodes; without one they boot from the image of the
            permanent nodes.
        home_region: the region in which dynamic groups and policies are created; empty: that of the cluster.
        user_data: the user data for cloud-init, by `controller`, `login` and the names of pools.
        iam: the dynamic group of the controller and its policies; None if none are created.
        node_iam: those of the instances that join a control plane of Kubernetes Engine.
        existing_images: the images of hosts that are adopted, by `controller`, `login` and `pool/<name>`.
        login_keys: the public halves of generated login keys, by user.
        recorded: what the state has already about the hosts: see `Identity.recorded`.
        standing_compartment: the OCID of the compartment of elastic nodes that an earlier cluster of this name, or
            a lost state, has left.
        cluster_id: the random identity of the cluster; empty if it has none.
        origin: who made the cluster, and where; empty if that is not known.
        rollouts: images that roll through pools, by pool: their nodes have images of their own.
        controller_address: the private address that a new controller takes; empty lets OCI choose.
        service: which of the two hosts is in service, with a standby.
        release: the version of gpucluster.
        mount_targets: the shares whose mount targets exist (`shares.mount_targets`): OCI makes each with 1 Gbps.
    """
    home, data = spec.storage.home, user_data or {}
    return {
        "cluster_name": spec.name,
        "cluster_id": cluster_id,
        "origin": origin,
        "release": release,
        "region": spec.cloud.region,
        "home_region": home_region or spec.cloud.region,
        "tenancy_id": tenancy_id,
        "compartment_id": compartment_id,
        "availability_domain": spec.cloud.availability_domain,
        "ssh_authorized_keys": list(ssh_authorized_keys),
        "network": _network(spec.network, spec.name),
        "controller": {
            **_machine(spec.controller, data.get("controller")),
            "private_ip": controller_address or None,
            "state_volume": _state_volume(spec.controller.state_volume_gb),
            "standby": spec.controller.standby,
        },
        "login": (
            {"names": list(login_names(spec)), **_machine(spec.login, data.get(LOGIN))} if spec.login.count else None
        ),
        "home": {
            "enabled": home.enabled,
            "export_path": home.export_path,
            "file_system_id": home.file_system_id,
            "server": home.server,
            "throughput_gbps": home.throughput_gbps if HOME_SHARE in mount_targets else None,
        },
        "shares": {
            name: {
                "export_path": export_path(name, share),
                "file_system_id": share.file_system_id,
                "server": share.server,
                "mount_target": share.mount_target,
                "read_only": share.read_only,
                "throughput_gbps": share.throughput_gbps if name in mount_targets else None,
            }
            for name, share in spec.storage.shares.items()
        },
        "elastic_compartment": _elastic_compartment(spec, standing_compartment),
        "oke": _oke(spec),
        "pools": {
            name: {
                **_pool_variables(name, pool, baked_images.get(name), data.get(name)),
                **_images_of_rollout(name, pool, (rollouts or {}).get(name)),
            }
            for name, pool in spec.host_pools.items()
        },
        "rollouts": {pool: record.to_json() for pool, record in (rollouts or {}).items()},
        "service": service.to_dict() if service and spec.controller.standby else {},
        "iam": dict(iam) if iam is not None else None,
        "node_iam": dict(node_iam) if node_iam is not None else None,
        "images": _images(spec),
        "existing_images": dict(existing_images or {}),
        "login_keys": dict(login_keys or {}),
        "recorded": {name: dict(values) for name, values in (recorded or {}).items()},
        "freeform_tags": {
            **spec.cloud.freeform_tags,
            tags.CLUSTER: spec.name,
            **({tags.IDENTITY: cluster_id} if cluster_id else {}),
        },
        "defined_tags": dict(spec.cloud.defined_tags),
        "elastic_tags": {spec.iam.tag: spec.name} if spec.iam.tag else {},
    }


def _state_volume(size_gb: int | None) -> dict[str, Any] | None:
    return None if size_gb is None else {"size_gb": size_gb, "device": STATE_DEVICE}


def _elastic_compartment(spec: ClusterSpec, standing: str) -> dict[str, str] | None:
    if spec.iam.creates_compartment:
        return {"ocid": standing} if standing else {"name": elastic_compartment(spec.name)}
    return {"ocid": spec.iam.elastic_compartment} if spec.iam.elastic_compartment else None


def _oke(spec: ClusterSpec) -> dict[str, Any] | None:
    """The control plane of Oracle Kubernetes Engine; None if the cluster has none."""
    if not has_kubernetes_engine(spec):
        return None
    kubernetes = spec.kubernetes
    # OKE installs NVIDIA's plugin with each cluster (docs.nvidia.com/aicr/integrator-guide/oke-gpu-setup). It stays for
    # the nodes that OKE manages, and leaves our hosts to ours.
    nvidia = any(pool.hardware.has_nvidia_gpus for pool in spec.pools.values())
    addons = {**({_NVIDIA_PLUGIN: None} if nvidia else {}), **kubernetes.oke.addons}
    return {
        "kubernetes_version": f"v{kubernetes.release}",
        "endpoint": kubernetes.oke.endpoint,
        "pod_cidr": kubernetes.pod_cidr,
        "service_cidr": kubernetes.service_cidr,
        "addons": addons,
        "addon_affinity": {name: json.dumps(on_hosts(ours=False)) for name in addons if name in _DEVICE_PLUGINS},
        "node_pools": {name: _node_pool(spec, name, pool) for name, pool in spec.managed_pools.items()},
    }


def _node_pool(spec: ClusterSpec, name: str, pool: PoolSpec) -> dict[str, Any]:
    """A pool whose nodes Kubernetes Engine makes."""
    return {
        "shape": pool.shape,
        "ocpus": pool.ocpus,
        "memory_gb": pool.memory_gb,
        "count": pool.count,
        "boot_volume_gb": pool.boot_volume_gb,
        "capacity_reservation_id": pool.capacity_reservation_id,
        "availability_domain": pool.availability_domain,
        "labels": managed_labels(name, pool, hardware_emulated=spec.cloud.traits.hardware_emulated),
        "user_data": managed_user_data(pool),
    }


def _machine(machine: ControllerSpec | LoginSpec, user_data: str | None) -> dict[str, Any]:
    return {
        "shape": machine.shape,
        "ocpus": machine.ocpus,
        "memory_gb": machine.memory_gb,
        "boot_volume_gb": machine.boot_volume_gb,
        "boot_volume_vpus_per_gb": machine.boot_volume_vpus_per_gb,
        "user_data": user_data,
    }


def _images(spec: ClusterSpec) -> dict[str, dict[str, Any]]:
    """The image of each host, as the variable `images` takes them: by `controller`, `login` and `pool/<name>`."""
    machines = {"controller": spec.controller, **({LOGIN: spec.login} if spec.login.count else {})}
    pools = {f"pool/{name}": pool for name, pool in {**spec.host_pools, **spec.managed_pools}.items()}
    return {user: _image(each.image, each.shape) for user, each in {**machines, **pools}.items()}


def _image(image: Image, shape: str) -> dict[str, Any]:
    hardware = shapes.get(shape)
    versions = version_filter(image.listing_version, amd=hardware.has_amd_gpus)
    return {
        "ocid": image.ocid,
        "name": image.name,
        "operating_system": image.operating_system,
        "version": image.version,
        "listing": image.listing,
        "listing_version": image.listing_version,
        # Without meaning for an image that comes from no listing.
        "listing_filter": asdict(versions),
        "make_compatible": image.make_compatible,
        # What of the shape decides which images OCI has for it.
        "variant": " ".join([hardware.architecture, *([hardware.gpu_vendor] if hardware.gpus else [])]),
    }


def _network(network: NetworkSpec, cluster: str) -> dict[str, Any]:
    return {
        "access": network.access,
        "vcn_cidr": network.vcn_cidr,
        "public_subnet_cidr": network.public_subnet_cidr,
        "private_subnet_cidr": network.private_subnet_cidr,
        "vcn_id": network.vcn_id,
        "public_subnet_id": network.public_subnet_id,
        "private_subnet_id": network.private_subnet_id,
        "ssh_allowed_cidrs": list(network.ssh_allowed_cidrs),
        "dns_label": cluster.replace("-", ""),
    }


def _platform(shape: str, platform: Platform) -> dict[str, str | bool | None] | None:
    """The firmware settings; None for shapes without such settings, or if none is set."""
    kind = shapes.get(shape).platform_config_type
    if kind is None or platform == Platform():
        return None
    return {"type": kind, "numa_nodes_per_socket": platform.numa_nodes_per_socket, "smt": platform.smt}


def _pool_variables(name: str, pool: PoolSpec, baked_image_id: str | None, user_data: str | None) -> dict[str, Any]:
    return {
        "kind": pool.kind,
        "shape": pool.shape,
        "ocpus": pool.ocpus,
        "memory_gb": pool.memory_gb,
        "count": pool.count,
        "max_count": pool.max_count,
        "node_names": list(permanent_names(name, pool)),
        "boot_volume_gb": pool.boot_volume_gb,
        "boot_volume_vpus_per_gb": pool.boot_volume_vpus_per_gb,
        "user_data": user_data,
        "platform": _platform(pool.shape, pool.platform),
        "capacity_reservation_id": pool.capacity_reservation_id,
        "memory_fabric_id": pool.memory_fabric_id,
        "rdma": pool.uses_rdma,
        "rdma_plugins": _rdma_plugins(pool),
        "disabled_plugins": list(
            matrix.disabled_plugins(
                pool.image.operating_system, pool.image.version, listing=pool.image.listing is not None
            )
        ),
        "availability_domain": pool.availability_domain,
        "baked_image_id": baked_image_id if pool.elastic else None,
    }


def _images_of_rollout(name: str, pool: PoolSpec, rollout: RolloutRecord | None) -> dict[str, Any]:
    """The images of single nodes, and that of new elastic ones until the new image is proven. A cluster network
    launches its members itself."""
    if rollout is None or not rollout.before or pool.launched_together:
        return {"node_images": {}, "launch_image_id": None}
    names, before = permanent_names(name, pool), Counter(rollout.before.values())
    return {
        "node_images": {node: image for node, image in rollout.images.items() if node in names},
        "launch_image_id": before.most_common(1)[0][0] if pool.elastic else None,
    }


def _rdma_plugins(pool: PoolSpec) -> list[str]:
    """The plugin for authentication is always needed; the one that assigns addresses must be off for fixed ones."""
    if not pool.uses_rdma:
        return []
    return list(RDMA_PLUGINS if pool.rdma_addressing == "plugin" else RDMA_PLUGINS[:1])
