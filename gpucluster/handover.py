"""The waist of the hourglass: the wish as Terraform's variables, Terraform's outputs as Ansible's inventory.

Pure functions, tested with files. The names of HCL variables and of Ansible groups are spelled here and nowhere else in
Python.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucluster import artifacts, shapes
from gpucluster.clouds import ControllerAccess
from gpucluster.errors import TerraformError
from gpucluster.instances import Member
from gpucluster.software import Software
from gpucluster.spec import ClusterSpec, Image, Network, Platform, Pool
from gpucluster.ssh import GATEWAY, Host

CONTRACT_VERSION = 1
CLUSTER_TAG = "gpucluster"
BUILDER_GROUP = "builder"
POLICY_VERSION = 1
# Raised when the roles make another node of the same wish: an image that was baked before would not fit the controller.
_NODE_CONFIGURATION = 2
# Seconds that Slurm gives a node to come and to go. Bare metal passes its firmware's tests before it boots.
_SLURM_POWER = {"resume_timeout": 1800, "suspend_timeout": 120}
_SLURM_POWER_EMULATED = {"resume_timeout": 300, "suspend_timeout": 20}
RDMA_PLUGINS = ("Compute HPC RDMA Authentication", "Compute HPC RDMA Auto-Configuration")


def pool_group(pool: str) -> str:
    """The Ansible group of a pool; Ansible's group names know no dash."""
    return "pool_" + pool.replace("-", "_")


def elastic_prefix(pool: str) -> str:
    """How the names of a pool's elastic nodes begin; a number follows."""
    return f"{pool}-e"


def elastic_names(pool: Pool) -> int:
    """How many names of elastic nodes Slurm knows of a pool: more than there may be nodes, for a name is not free again
    before its instance is gone."""
    return 2 * pool.elastic_count + 2 if pool.elastic else 0


def permanent_names(name: str, pool: Pool) -> tuple[str, ...]:
    """The names of the nodes of the pool `name` that are always there, in the order of their numbers.

    A name that was removed is not given again, or the number of another node would change.
    """
    removed = set(pool.removed_nodes)
    numbered = (f"{name}-{number}" for number in itertools.count(1))
    return tuple(itertools.islice((node for node in numbered if node not in removed), pool.count))


def builder_name(pool: str) -> str:
    """The name of the instance that a pool's image is baked on."""
    return f"{pool}-bake"


def _image(image: Image) -> dict[str, str | bool | None]:
    return {
        "ocid": image.ocid,
        "name": image.name,
        "operating_system": image.operating_system,
        "version": image.version,
        "listing": image.listing,
        "listing_version": image.listing_version,
        "make_compatible": image.make_compatible,
    }


def _network(network: Network, cluster: str) -> dict[str, Any]:
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
    """The settings of the firmware, for shapes that have such; None if nothing was said."""
    kind = shapes.get(shape).platform_config_type
    if kind is None or platform == Platform():
        return None
    return {"type": kind, "numa_nodes_per_socket": platform.numa_nodes_per_socket, "smt": platform.smt}


def _pool_variables(name: str, pool: Pool, baked_image_id: str | None, user_data: str | None) -> dict[str, Any]:
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
        "image": _image(pool.image),
        "user_data": user_data,
        "platform": _platform(pool.shape, pool.platform),
        "capacity_reservation_id": pool.capacity_reservation_id,
        "rdma": pool.uses_rdma,
        "rdma_plugins": _rdma_plugins(pool),
        "availability_domain": pool.availability_domain,
        "baked_image_id": baked_image_id if pool.elastic else None,
    }


def _rdma_plugins(pool: Pool) -> list[str]:
    """Fixed addresses stay as they are only if the plugin that gives others is off; authentication is always needed."""
    if not pool.uses_rdma:
        return []
    return list(RDMA_PLUGINS if pool.rdma_addressing == "plugin" else RDMA_PLUGINS[:1])


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
) -> dict[str, Any]:
    """The variables of the root `terraform/cluster`.

    Args:
        baked_images: the OCID of the image that a pool's elastic nodes boot from, by pool; without one they launch
            from the image that permanent nodes have.
        home_region: the region that dynamic groups and policies are written in; empty: that of the cluster.
        user_data: what cloud-init is told, by `controller` and the names of pools.
        iam: the dynamic group and its policies; None where none are made.
    """
    controller, home, data = spec.controller, spec.storage.home, user_data or {}
    return {
        "cluster_name": spec.name,
        "region": spec.cloud.region,
        "home_region": home_region or spec.cloud.region,
        "tenancy_id": tenancy_id,
        "compartment_id": compartment_id,
        "availability_domain": spec.cloud.availability_domain,
        "ssh_authorized_keys": list(ssh_authorized_keys),
        "network": _network(spec.network, spec.name),
        "controller": {
            "shape": controller.shape,
            "ocpus": controller.ocpus,
            "memory_gb": controller.memory_gb,
            "boot_volume_gb": controller.boot_volume_gb,
            "boot_volume_vpus_per_gb": controller.boot_volume_vpus_per_gb,
            "image": _image(controller.image),
            "user_data": data.get("controller"),
        },
        "home": {
            "enabled": home.enabled,
            "export_path": home.export_path,
            "file_system_id": home.file_system_id,
            "server": home.server,
        },
        "pools": {
            name: _pool_variables(name, pool, baked_images.get(name), data.get(name))
            for name, pool in spec.pools.items()
        },
        "iam": dict(iam) if iam is not None else None,
        "freeform_tags": {**spec.cloud.freeform_tags, CLUSTER_TAG: spec.name},
        "defined_tags": dict(spec.cloud.defined_tags),
    }


@dataclass(frozen=True)
class PoolOutput:
    """What Terraform made for a pool. `instances` is empty for a cluster network: its members come from the SDK.

    `image_id` is the image of the permanent nodes; the instance configuration launches from `baked_image_id`, if any.
    """

    availability_domain: str
    kind: str
    shape: str
    image_id: str
    baked_image_id: str | None
    instance_configuration_id: str | None
    compute_cluster_id: str | None
    cluster_network_id: str | None
    instances: tuple[Member, ...]


@dataclass(frozen=True)
class Outputs:
    """The root's output `cluster`, version 1.

    `bastion_id` is the bastion that the controller is reached through; None where it has a public address.
    `home_file_system_id` is empty where an existing server has the homes, as all of it is without a shared home.
    """

    name: str
    region: str
    compartment_id: str
    availability_domain: str
    controller: Member
    home_file_system_id: str
    home_server: str
    home_export_path: str
    pools: Mapping[str, PoolOutput]
    bastion_id: str | None = None

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
                home_file_system_id=cluster["home"]["file_system_id"] or "",
                home_server=cluster["home"]["mount_target_ip"] or "",
                home_export_path=cluster["home"]["export_path"] or "",
                pools={name: _pool_output(pool, cluster) for name, pool in cluster["pools"].items()},
                bastion_id=cluster.get("bastion_id"),
            )
        except (KeyError, TypeError) as error:
            raise TerraformError(f"the output `cluster` lacks {error}", hint="Run: gpucluster apply") from error


def _member(raw: Mapping[str, Any]) -> Member:
    return Member(raw["id"], raw["name"], raw["private_ip"], raw.get("public_ip") or "")


def _pool_output(raw: Mapping[str, Any], cluster: Mapping[str, Any]) -> PoolOutput:
    # What has a default came after the first release: a state that it wrote is read by the next apply.
    return PoolOutput(
        raw.get("availability_domain") or cluster["availability_domain"],
        raw["kind"],
        raw["shape"],
        raw.get("image_id") or "",
        raw.get("baked_image_id"),
        raw["instance_configuration_id"],
        raw["compute_cluster_id"],
        raw["cluster_network_id"],
        tuple(_member(instance) for instance in raw["instances"]),
    )


def node_fingerprint(spec: ClusterSpec, outputs: Outputs, pool: str) -> str:
    """Stands for everything that is in a pool's baked image and must still be so where it boots.

    A controller that was made anew has other keys and another directory; a share at another place has other homes.
    """
    facts = {
        "controller": [outputs.controller.id, outputs.controller.private_ip],
        "home": [outputs.home_server, outputs.home_export_path, spec.storage.home.mount_path],
        "slurm": spec.slurm.cluster_name,
        **_software_fingerprint(spec, spec.pools[pool]),
        "image": _image_fingerprint(spec.pools[pool].image),
        "shape": spec.pools[pool].shape,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _software_fingerprint(spec: ClusterSpec, pool: Pool) -> dict[str, Any]:
    """What roles install on a node, and how."""
    wanted = artifacts.wanted_by(spec, hardware_emulated=False)
    return {
        "configuration": _NODE_CONFIGURATION,
        "containers": spec.containers.model_dump(mode="json"),
        "nccl": _nccl(pool),
        "nvidia": spec.nvidia.model_dump(mode="json"),
        "privilege": [spec.users.privilege_group, spec.users.privilege_gid],
        "releases": {artifact.component: artifact.version for artifact in wanted},
        "storage": _storage(spec),
    }


def _image_fingerprint(image: Image) -> dict[str, str | None]:
    """What says which image it is. Only what was said, but for the first three: images that were baked before the
    others came still fit."""
    found = {"ocid": image.ocid, "operating_system": image.operating_system, "version": image.version}
    later = {"name": image.name, "listing": image.listing, "listing_version": image.listing_version}
    return {**found, **{key: value for key, value in later.items() if value is not None}}


@dataclass(frozen=True)
class Autoscaling:
    """What the autoscaler needs from this machine.

    Args:
        baked: the pools whose instance configuration launches from a baked image.
        wheels: the directory of Python packages for the controller.
    """

    access: ControllerAccess
    baked: frozenset[str] = field(default_factory=frozenset)
    wheels: Path | None = None


def autoscaler_policy(spec: ClusterSpec, outputs: Outputs, autoscaling: Autoscaling) -> dict[str, Any]:
    """What the autoscaler is told, as `gpucluster.autoscaler.policy` reads it."""
    limits = spec.autoscaler
    return {
        "version": POLICY_VERSION,
        "cluster": spec.name,
        "compartment_id": outputs.compartment_id,
        "region": outputs.region,
        "authentication": dict(autoscaling.access.authentication),
        "pools": {
            name: _pool_policy(name, pool, outputs.pools[name], name in autoscaling.baked)
            for name, pool in spec.elastic_pools.items()
        },
        "limits": {
            "max_nodes": limits.max_nodes,
            "max_launches_per_hour": limits.max_launches_per_hour,
            "max_cost_per_hour": limits.max_cost_per_hour,
        },
        "prices": dict(limits.prices),
        "times": dict(limits.times),
    }


def _pool_policy(name: str, pool: Pool, made: PoolOutput, baked: bool) -> dict[str, Any]:
    return {
        "partition": pool.partition,
        "prefix": elastic_prefix(name),
        "names": elastic_names(pool),
        "max_nodes": pool.elastic_count,
        "shape": pool.shape,
        "availability_domain": made.availability_domain,
        "instance_configuration_id": made.instance_configuration_id,
        "compute_cluster_id": made.compute_cluster_id,
        "baked": baked,
    }


Members = Mapping[str, Sequence[Member]]


def hosts(spec: ClusterSpec, outputs: Outputs, members: Members) -> tuple[Host, ...]:
    """Every host with its ssh route: the controller by its public address, if it has one; nodes through it."""
    controller = outputs.controller.name
    found = [
        Host(
            controller,
            outputs.controller.public_ip or outputs.controller.private_ip,
            spec.controller.image.login_user,
            outputs.controller.id,
            jump=GATEWAY if outputs.bastion_id else "",
        )
    ]
    for pool, nodes in members.items():
        user = spec.pools[pool].image.login_user
        found += [Host(node.name, node.private_ip, user, node.id, jump=controller) for node in nodes]
    return tuple(found)


def inventory(
    spec: ClusterSpec,
    outputs: Outputs,
    members: Members,
    *,
    person_keys: Mapping[str, Sequence[str]],
    hardware_emulated: bool,
    autoscaling: Autoscaling | None,
    software: Software,
) -> dict[str, Any]:
    """The whole Ansible inventory (its YAML form).

    Args:
        members: the permanent nodes of each pool; elastic ones come and go and stand in no inventory.
        autoscaling: None where no pool is elastic.
        person_keys: the public keys of each person, those that we generated included.
        hardware_emulated: hosts have less than their shape promises (the local cloud).
        software: the release files that hosts get.
    """
    addresses = [{"name": outputs.controller.name, "address": outputs.controller.private_ip}]
    addresses += [{"name": node.name, "address": node.private_ip} for nodes in members.values() for node in nodes]
    return {
        "all": {
            "vars": {
                **_variables(spec, outputs, members, addresses, person_keys),
                **_slurm_variables(spec, members, hardware_emulated),
                **_container_variables(spec, software),
                **_autoscaler_variables(spec, outputs, autoscaling),
            },
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


def builder_inventory(inventory: Mapping[str, Any], spec: ClusterSpec, pool: str, builder: Member) -> dict[str, Any]:
    """The inventory of a cluster with the instance that an image of a pool is baked on; no other nodes are in it."""
    every = inventory["all"]
    host = {"private_ip": builder.private_ip, "ansible_user": spec.pools[pool].image.login_user}
    children = {
        "controller": every["children"]["controller"],
        BUILDER_GROUP: {"hosts": {builder.name: host}},
        "compute": {"children": {pool_group(pool): {"hosts": {builder.name: {}}}}},
    }
    return {"all": {**every, "children": children}}


def _variables(
    spec: ClusterSpec,
    outputs: Outputs,
    members: Members,
    addresses: list[dict[str, str]],
    person_keys: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    home = spec.storage.home
    return {
        "ansible_python_interpreter": "/usr/bin/python3",
        "gpucluster_name": spec.name,
        "gpucluster_hosts": addresses,
        "timezone": spec.software.timezone,
        # Only an image that brings firewalld needs to hear of it; the cloud's own rules let the VCN in.
        "base_trusted_networks": [spec.network.vcn_cidr],
        "private_subnet_cidr": spec.network.private_subnet_cidr,
        # All three are null where there is no shared home, and no directory.
        "home_server": outputs.home_server if home.enabled else None,
        "home_export_path": outputs.home_export_path if home.enabled else None,
        "home_mount_path": home.mount_path if home.enabled else None,
        "users_group": spec.users.group,
        "users_gid": spec.users.gid,
        "users_privilege_group": spec.users.privilege_group,
        "users_privilege_gid": spec.users.privilege_gid,
        "users_first_uid": spec.users.first_uid,
        "users_people": [
            {
                "name": person.name,
                "full_name": person.full_name,
                "uid": person.uid,
                "group": person.group,
                "groups": list(person.groups),
                "ssh_keys": list(person_keys[person.name]),
                "shell": person.shell,
                "slurm_account": person.slurm_account,
            }
            for person in spec.users.people
        ],
    }


def primary_gids(spec: ClusterSpec) -> dict[str, int]:
    """The number of the primary group of each person in the file."""
    users = spec.users
    numbers = {users.group: users.gid, users.privilege_group: users.privilege_gid}
    return {person.name: numbers[person.group] for person in users.people}


def _slurm_variables(spec: ClusterSpec, members: Members, hardware_emulated: bool) -> dict[str, Any]:
    default = spec.slurm.default_partition
    return {
        "slurm_enabled": spec.slurm.enabled,
        "slurm_cluster_name": spec.slurm.cluster_name or spec.name,
        "slurm_accounting": spec.slurm.accounting,
        "slurm_extra_config": dict(spec.slurm.extra_config),
        "slurm_default_partition": default,
        "slurm_pools": [
            _slurm_pool(name, pool, members.get(name, ()), pool.partition == default)
            for name, pool in spec.pools.items()
        ],
        "slurm_partitions": [_slurm_partition(spec, name, pools) for name, pools in spec.partitions.items()],
        "slurm_power": _slurm_power(spec, hardware_emulated) if spec.elastic_pools else None,
        "slurm_hardware_emulated": hardware_emulated,
    }


def _slurm_pool(name: str, pool: Pool, nodes: Sequence[Member], default: bool) -> dict[str, Any]:
    shape = shapes.get(pool.shape)
    return {
        "name": name,
        "shape": pool.shape,
        "nodes": [node.name for node in nodes],
        "node": shapes.slurm_node(
            shape, ocpus=pool.ocpus, memory_gb=pool.memory_gb, smt=pool.platform.smt is not False
        ),
        "gpus": shape.gpus,
        "gres_type": shape.gres_type,
        "rdma": pool.uses_rdma,
        "nccl": _nccl(pool),
        "gpu_device_files": list(shape.gpu_device_files),
        "partition": pool.partition,
        "login_user": pool.image.login_user,
        "default": default,
        "elastic_nodes": f"{elastic_prefix(name)}[1-{elastic_names(pool)}]" if pool.elastic else "",
        "idle_timeout": pool.idle_timeout,
    }


def _nccl(pool: Pool) -> dict[str, str]:
    """NCCL's settings. A pool that is kept out of its shape's RDMA network must not be told its devices."""
    shape = pool.hardware
    return dict(shape.nccl_environment) if pool.uses_rdma or not shape.rdma else {}


def _slurm_partition(spec: ClusterSpec, name: str, pools: Sequence[str]) -> dict[str, Any]:
    mine = [spec.pools[pool] for pool in pools]
    elastic = sum(pool.elastic_count for pool in mine)
    return {
        "name": name,
        "pools": list(pools),
        "default": name == spec.slurm.default_partition,
        "max_nodes": sum(pool.count for pool in mine) + min(elastic, spec.autoscaler.max_nodes or elastic),
        "idle_timeout": next((pool.idle_timeout for pool in mine if pool.elastic), None),
    }


def _slurm_power(spec: ClusterSpec, hardware_emulated: bool) -> dict[str, int]:
    """Slurm counts permanent nodes as powered, too."""
    elastic = sum(pool.elastic_count for pool in spec.pools.values())
    allowed = min(elastic, spec.autoscaler.max_nodes or elastic)
    permanent = sum(pool.count for pool in spec.pools.values())
    times = _SLURM_POWER_EMULATED if hardware_emulated else _SLURM_POWER
    return {**times, "max_powered_nodes": permanent + allowed}


def _storage(spec: ClusterSpec) -> str:
    """Where containers lie on a host: on its own drives where it has some, for a share can't hold their files."""
    disk = spec.storage.local_disk
    return f"{disk.mount_path}/containers" if disk.enabled else "/var/lib/gpucluster/containers"


def _container_variables(spec: ClusterSpec, software: Software) -> dict[str, Any]:
    containers, nvidia = spec.containers, spec.nvidia
    return {
        "containers_runtimes": list(containers.runtimes),
        "containers_compression": containers.compression,
        "containers_pull": list(containers.pull),
        "containers_storage": _storage(spec),
        "pyxis_container_scope": containers.container_scope,
        "pyxis_squashfuse": containers.squashfuse,
        "software_files": [dict(file) for file in software.files],
        "software_directory": str(software.directory) if software.directory else None,
        "nvidia_driver": nvidia.driver,
        "nvidia_driver_branch": nvidia.driver_branch,
        "nvidia_replace_driver": nvidia.replace_driver,
        "nvidia_dcgm": nvidia.dcgm,
    }


def _autoscaler_variables(spec: ClusterSpec, outputs: Outputs, autoscaling: Autoscaling | None) -> dict[str, Any]:
    if autoscaling is None:
        return {"autoscaler_policy": None, "autoscaler_wheels": None, "autoscaler_credentials": None}
    credentials, wheels = autoscaling.access.credentials, autoscaling.wheels
    return {
        "autoscaler_policy": autoscaler_policy(spec, outputs, autoscaling),
        "autoscaler_wheels": str(wheels) if wheels else None,
        "autoscaler_credentials": str(credentials) if credentials else None,
    }
