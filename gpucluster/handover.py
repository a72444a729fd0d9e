"""The waist of the hourglass: the wish as Terraform's variables, Terraform's outputs as Ansible's inventory.

Pure functions, tested with files. The names of HCL variables and of Ansible groups are spelled here and nowhere else in
Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucluster import shapes
from gpucluster.errors import TerraformError
from gpucluster.instances import Member
from gpucluster.spec import ClusterSpec, Image, Pool
from gpucluster.ssh import Host

CONTRACT_VERSION = 1
CLUSTER_TAG = "gpucluster"
RDMA_PLUGINS = ("Compute HPC RDMA Authentication", "Compute HPC RDMA Auto-Configuration")


def pool_group(pool: str) -> str:
    """The Ansible group of a pool; Ansible's group names know no dash."""
    return "pool_" + pool.replace("-", "_")


def _image(image: Image) -> dict[str, str | None]:
    return {"ocid": image.ocid, "operating_system": image.operating_system, "version": image.version}


def _pool_variables(pool: Pool) -> dict[str, Any]:
    rdma = bool(shapes.get(pool.shape).rdma_devices)
    return {
        "kind": pool.kind,
        "shape": pool.shape,
        "ocpus": pool.ocpus,
        "memory_gb": pool.memory_gb,
        "count": pool.count,
        "max_count": pool.max_count,
        "boot_volume_gb": pool.boot_volume_gb,
        "image": _image(pool.image),
        "rdma": rdma,
        "rdma_plugins": list(RDMA_PLUGINS) if rdma else [],
    }


def tfvars(
    spec: ClusterSpec, *, tenancy_id: str, compartment_id: str, ssh_authorized_keys: Sequence[str]
) -> dict[str, Any]:
    """The variables of the root `terraform/cluster`."""
    network, controller = spec.network, spec.controller
    return {
        "cluster_name": spec.name,
        "region": spec.cloud.region,
        "tenancy_id": tenancy_id,
        "compartment_id": compartment_id,
        "availability_domain": spec.cloud.availability_domain,
        "ssh_authorized_keys": list(ssh_authorized_keys),
        "network": {
            "vcn_cidr": str(network.vcn_cidr),
            "public_subnet_cidr": str(network.public_subnet_cidr),
            "private_subnet_cidr": str(network.private_subnet_cidr),
            "ssh_allowed_cidrs": [str(cidr) for cidr in network.ssh_allowed_cidrs],
            "dns_label": spec.name.replace("-", ""),
        },
        "controller": {
            "shape": controller.shape,
            "ocpus": controller.ocpus,
            "memory_gb": controller.memory_gb,
            "boot_volume_gb": controller.boot_volume_gb,
            "image": _image(controller.image),
        },
        "home": {"export_path": spec.storage.home.export_path},
        "pools": {name: _pool_variables(pool) for name, pool in spec.pools.items()},
        "freeform_tags": {CLUSTER_TAG: spec.name},
    }


@dataclass(frozen=True)
class PoolOutput:
    """What Terraform made for a pool. `instances` is empty for a cluster network: its members come from the SDK."""

    kind: str
    shape: str
    instance_configuration_id: str | None
    compute_cluster_id: str | None
    cluster_network_id: str | None
    instances: tuple[Member, ...]


@dataclass(frozen=True)
class Outputs:
    """The root's output `cluster`, version 1."""

    name: str
    region: str
    compartment_id: str
    availability_domain: str
    controller: Member
    home_file_system_id: str
    home_server: str
    home_export_path: str
    pools: Mapping[str, PoolOutput]

    @classmethod
    def parse(cls, outputs: Mapping[str, Any]) -> Outputs:
        """Read `terraform output -json`, values only.

        Raises:
            TerraformError: there is no such output, or it is of another version.
        """
        cluster = outputs.get("cluster")
        if not isinstance(cluster, Mapping):
            raise TerraformError("the state holds no cluster", hint="Run: gpucluster apply")
        version = cluster.get("contract_version")
        if version != CONTRACT_VERSION:
            raise TerraformError(
                f"the state speaks version {version} of the output contract, this gpucluster {CONTRACT_VERSION}",
                hint="Run apply with the gpucluster that belongs to it",
            )
        try:
            return cls(
                name=cluster["name"],
                region=cluster["region"],
                compartment_id=cluster["compartment_id"],
                availability_domain=cluster["availability_domain"],
                controller=_member(cluster["controller"]),
                home_file_system_id=cluster["home"]["file_system_id"],
                home_server=cluster["home"]["mount_target_ip"],
                home_export_path=cluster["home"]["export_path"],
                pools={name: _pool_output(pool) for name, pool in cluster["pools"].items()},
            )
        except (KeyError, TypeError) as error:
            raise TerraformError(f"the output `cluster` lacks {error}", hint="Run: gpucluster apply") from error


def _member(raw: Mapping[str, Any]) -> Member:
    return Member(raw["id"], raw["name"], raw["private_ip"], raw.get("public_ip") or "")


def _pool_output(raw: Mapping[str, Any]) -> PoolOutput:
    return PoolOutput(
        raw["kind"],
        raw["shape"],
        raw["instance_configuration_id"],
        raw["compute_cluster_id"],
        raw["cluster_network_id"],
        tuple(_member(instance) for instance in raw["instances"]),
    )


Members = Mapping[str, Sequence[Member]]


def hosts(spec: ClusterSpec, outputs: Outputs, members: Members) -> tuple[Host, ...]:
    """Every host with its ssh route: the controller by its public address, nodes through it."""
    bastion = outputs.controller.name
    found = [
        Host(
            bastion,
            outputs.controller.public_ip or outputs.controller.private_ip,
            spec.controller.image.login_user,
            outputs.controller.id,
        )
    ]
    for pool, nodes in members.items():
        user = spec.pools[pool].image.login_user
        found += [Host(node.name, node.private_ip, user, node.id, jump=bastion) for node in nodes]
    return tuple(found)


def inventory(
    spec: ClusterSpec,
    outputs: Outputs,
    members: Members,
    *,
    person_keys: Mapping[str, Sequence[str]],
    hardware_emulated: bool,
) -> dict[str, Any]:
    """The whole Ansible inventory (its YAML form).

    Args:
        members: the running nodes of each pool.
        person_keys: the public keys of each person, those that we generated included.
        hardware_emulated: hosts have less than their shape promises (the local cloud).
    """
    addresses = [{"name": outputs.controller.name, "address": outputs.controller.private_ip}]
    addresses += [{"name": node.name, "address": node.private_ip} for nodes in members.values() for node in nodes]
    return {
        "all": {
            "vars": _variables(spec, outputs, members, addresses, person_keys, hardware_emulated),
            "children": {
                "controller": {
                    "hosts": {
                        outputs.controller.name: {
                            "private_ip": outputs.controller.private_ip,
                            "ansible_user": spec.controller.image.login_user,
                        }
                    }
                },
                "compute": {
                    "children": {
                        pool_group(pool): {
                            "hosts": {
                                node.name: {
                                    "private_ip": node.private_ip,
                                    "ansible_user": spec.pools[pool].image.login_user,
                                }
                                for node in nodes
                            }
                        }
                        for pool, nodes in members.items()
                    }
                },
            },
        }
    }


def _variables(
    spec: ClusterSpec,
    outputs: Outputs,
    members: Members,
    addresses: list[dict[str, str]],
    person_keys: Mapping[str, Sequence[str]],
    hardware_emulated: bool,
) -> dict[str, Any]:
    default = spec.slurm.default_partition
    return {
        "ansible_python_interpreter": "/usr/bin/python3",
        "gpucluster_name": spec.name,
        "gpucluster_hosts": addresses,
        "timezone": spec.software.timezone,
        # Only an image that brings firewalld needs to hear of it; the cloud's own rules let the VCN in.
        "base_trusted_networks": [spec.network.vcn_cidr],
        "home_server": outputs.home_server,
        "home_export_path": outputs.home_export_path,
        "home_mount_path": spec.storage.home.mount_path,
        "users_group": spec.users.group,
        "users_gid": spec.users.gid,
        "users_first_uid": spec.users.first_uid,
        "users_people": [
            {
                "name": person.name,
                "full_name": person.full_name,
                "uid": person.uid,
                "ssh_keys": list(person_keys[person.name]),
            }
            for person in spec.users.people
        ],
        "slurm_cluster_name": spec.slurm.cluster_name or spec.name,
        "slurm_accounting": spec.slurm.accounting,
        "slurm_extra_config": dict(spec.slurm.extra_config),
        "slurm_default_partition": default,
        "slurm_pools": [
            _slurm_pool(name, pool, members.get(name, ()), name == default) for name, pool in spec.pools.items()
        ],
        "slurm_hardware_emulated": hardware_emulated,
    }


def _slurm_pool(name: str, pool: Pool, nodes: Sequence[Member], default: bool) -> dict[str, Any]:
    shape = shapes.get(pool.shape)
    return {
        "name": name,
        "nodes": [node.name for node in nodes],
        "node": shapes.slurm_node(shape, ocpus=pool.ocpus, memory_gb=pool.memory_gb),
        "gpus": shape.gpus,
        "gres_type": shape.gres_type,
        "gpu_device_files": list(shape.gpu_device_files),
        "default": default,
        "idle_timeout": pool.idle_timeout,
    }
