"""Ansible's inventory, and how ssh reaches every host."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpucluster import shapes
from gpucluster.artifacts.releases import ReleaseSet
from gpucluster.cloud.members import PoolMember
from gpucluster.handover.autoscaling import Autoscaling, autoscaler_policy, maintenance_reader
from gpucluster.handover.billing import billed_hosts
from gpucluster.handover.expectations import node_expectation
from gpucluster.handover.kubernetes import controller_variables, kubernetes_variables, pool_variables
from gpucluster.handover.names import (
    BUILDER_GROUP,
    LOGIN,
    UPGRADING_GROUP,
    elastic_names,
    elastic_prefix,
    monitoring_host,
    pool_group,
)
from gpucluster.handover.networks import cluster_networks
from gpucluster.handover.nodes import container_storage, nccl
from gpucluster.handover.outputs import Outputs
from gpucluster.handover.shares import share_mounts
from gpucluster.handover.slurm_accounts import accounting
from gpucluster.node_agent.rules import mig
from gpucluster.spec import PROVIDERS, ClusterSpec, ControllerSpec, LoginSpec, PoolSpec
from gpucluster.spec.defaults import systems_of
from gpucluster.ssh import GATEWAY, Host

# Slurm's timeouts in seconds for powering a node up and down. Bare metal runs its firmware tests before it boots.
_SLURM_POWER = {"resume_timeout": 1800, "suspend_timeout": 120}
_SLURM_POWER_EMULATED = {"resume_timeout": 300, "suspend_timeout": 20}

# Of OCI's metadata service; a proxy would answer for its own host.
_METADATA_ADDRESS = "169.254.169.254"

Members = Mapping[str, Sequence[PoolMember]]


def hosts(
    spec: ClusterSpec,
    controller: PoolMember,
    members: Members,
    *,
    login: Sequence[PoolMember] = (),
    bastion_id: str | None = None,
) -> tuple[Host, ...]:
    """Every host as ssh reaches it: the controller directly or through the bastion, login nodes at their public
    address, the others through the controller.

    Args:
        login: the login nodes.
        members: the permanent nodes of each pool that cluster.yml has.
        bastion_id: the bastion through which the controller is reached; None if that has a public address.
    """
    listed = [
        Host(
            controller.name,
            controller.public_ip or controller.private_ip,
            spec.controller.image.login_user,
            controller.id,
            jump=GATEWAY if bastion_id else "",
        )
    ]
    user = spec.login.image.login_user
    for number, node in enumerate(login):
        jump, alias = "" if node.public_ip else controller.name, "" if number else LOGIN
        listed.append(Host(node.name, node.public_ip or node.private_ip, user, node.id, jump, alias))
    for pool, nodes in members.items():
        user = spec.pools[pool].image.login_user
        listed += [Host(node.name, node.private_ip, user, node.id, jump=controller.name) for node in nodes]
    return tuple(listed)


def standby_host(spec: ClusterSpec, outputs: Outputs) -> Host | None:
    """The standby as ssh reaches it: as a login node, at its public address or through the controller."""
    standby = outputs.standby
    if standby is None:
        return None
    jump = "" if standby.public_ip else outputs.controller.name
    address, user = standby.public_ip or standby.private_ip, spec.controller.image.login_user
    return Host(standby.name, address, user, standby.id, jump)


def inventory(
    spec: ClusterSpec,
    outputs: Outputs,
    members: Members,
    *,
    person_keys: Mapping[str, Sequence[str]],
    operator_keys: Sequence[str],
    hardware_emulated: bool,
    autoscaling: Autoscaling | None,
    software: ReleaseSet,
) -> dict[str, Any]:
    """The whole Ansible inventory, as data for its YAML form.

    Args:
        members: the permanent nodes of each pool; elastic nodes are never in the inventory.
        autoscaling: None where no pool is elastic, and no service reads maintenance.
        person_keys: the public keys of each user, including generated ones.
        operator_keys: the public keys of the operators, who log in as the image's login user.
        hardware_emulated: hosts have less hardware than their shape has (the local cloud).
        software: the release files for the hosts.
    """
    controller = replace(outputs.controller, private_ip=outputs.controller_address)
    every = [controller, *outputs.login, *(node for nodes in members.values() for node in nodes)]
    billed = billed_hosts(spec, outputs, members)
    addresses = [{"name": host.name, "address": host.private_ip, "id": host.id} for host in every]

    def group(
        members: Sequence[PoolMember],
        machine: ControllerSpec | LoginSpec | PoolSpec,
        name: str,
        more: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        expectation = node_expectation(
            spec, machine, hardware_emulated=hardware_emulated, off=spec.checks.off, group=name
        )
        return {
            "hosts": {
                host.name: {"private_ip": host.private_ip, "ansible_user": machine.image.login_user} for host in members
            },
            # Of the group, because a pool has thousands of hosts that are alike.
            "vars": {"node_expectation": expectation, **(more or {})},
        }

    return {
        "all": {
            "vars": {
                **_variables(spec, outputs, members, addresses, person_keys),
                "base_operator_keys": list(operator_keys),
                **_slurm_variables(spec, members, hardware_emulated),
                **kubernetes_variables(spec, outputs, hardware_emulated=hardware_emulated),
                **_health_variables(spec),
                **_monitoring_variables(spec, outputs),
                "people_backup_schedule": _backup_schedule(spec),
                "people_logs_keep_days": spec.logs.keep_days,
                "people_logs_max_gb": spec.logs.max_gb,
                "people_billed_hosts": billed,
                **_container_variables(spec, software),
                **_autoscaler_variables(spec, outputs, autoscaling, hardware_emulated=hardware_emulated, hosts=billed),
            },
            "children": {
                "controller": group(
                    [controller],
                    spec.controller,
                    "controller",
                    controller_variables(spec, outputs, members, hardware_emulated=hardware_emulated),
                ),
                LOGIN: group(outputs.login, spec.login, LOGIN),
                "compute": {
                    "children": {
                        pool_group(pool): group(
                            nodes,
                            spec.pools[pool],
                            pool,
                            pool_variables(spec, pool, spec.pools[pool], outputs, hardware_emulated=hardware_emulated),
                        )
                        for pool, nodes in members.items()
                    }
                },
            },
        }
    }


def builder_inventory(
    inventory: Mapping[str, Any], spec: ClusterSpec, pool: str, builder: PoolMember
) -> dict[str, Any]:
    """The inventory for baking the image of a pool: the controller and the instance on which the image is baked."""
    every = inventory["all"]
    of_pool = every["children"]["compute"]["children"][pool_group(pool)]["vars"]
    host = {"private_ip": builder.private_ip, "ansible_user": spec.pools[pool].image.login_user}
    children = {
        **{name: group for name, group in every["children"].items() if name in ("controller", LOGIN)},
        BUILDER_GROUP: {"hosts": {builder.name: host}},
        "compute": {"children": {pool_group(pool): {"hosts": {builder.name: {}}, "vars": of_pool}}},
    }
    return {"all": {**every, "children": children}}


def upgrading_inventory(inventory: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The inventory with the hosts in a group of their own that one step of an upgrade of Kubernetes is about."""
    every = inventory["all"]
    return {
        "all": {**every, "children": {**every["children"], UPGRADING_GROUP: {"hosts": {name: {} for name in names}}}}
    }


def people(spec: ClusterSpec, person_keys: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """The users of cluster.yml, as the roles and the directory's program on the controller get them.

    Which key was generated is told apart: the directory keeps the one that it has.
    """
    keys = {person.name: list(person_keys[person.name]) for person in spec.users.people}
    return [
        {
            "name": person.name,
            "full_name": person.full_name,
            "uid": person.uid,
            "group": person.group,
            "groups": list(person.groups),
            "ssh_keys": keys[person.name],
            # Such a user has no other key in cluster.yml.
            **({"generated_key": keys[person.name][0]} if person.generate_key and keys[person.name] else {}),
            "shell": person.shell,
            "slurm_account": person.slurm_account,
        }
        for person in spec.users.people
    ]


def primary_gids(spec: ClusterSpec) -> dict[str, int]:
    """The id of the primary group of each user in the spec."""
    users = spec.users
    numbers = {users.group: users.gid, users.privilege_group: users.privilege_gid}
    return {person.name: numbers[person.group] for person in users.people}


def _variables(
    spec: ClusterSpec,
    outputs: Outputs,
    members: Members,
    addresses: list[dict[str, str]],
    person_keys: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    home = spec.storage.home
    return {
        "gpucluster_name": spec.name,
        "gpucluster_hosts": addresses,
        "timezone": spec.software.timezone,
        "base_trusted_networks": cluster_networks(spec),
        "base_trusted_certificates": list(spec.software.trusted_certificates),
        "base_hide_processes": spec.users.hide_processes,
        "base_denied_modules": list(spec.software.denied_modules),
        "base_proxy": _proxy(spec, outputs, addresses),
        "private_subnet_cidr": spec.network.private_subnet_cidr,
        "private_subnet_domain_name": outputs.private_subnet_domain_name,
        # All three are null without a home share; then there is no directory (LDAP) either.
        "home_server": outputs.home_server if home.enabled else None,
        "home_export_path": outputs.home_export_path if home.enabled else None,
        "home_mount_path": home.mount_path if home.enabled else None,
        "nfs_shares": share_mounts(spec, outputs),
        "users_group": spec.users.group,
        "users_gid": spec.users.gid,
        "users_keys_in_homes": spec.users.keys_in_homes,
        "users_privilege_group": spec.users.privilege_group,
        "users_privilege_gid": spec.users.privilege_gid,
        "users_first_uid": spec.users.first_uid,
        "users_people": people(spec, person_keys),
        "users_directory": _existing_directory(spec),
    }


def directory_groups(spec: ClusterSpec) -> tuple[str, ...]:
    """The groups of a directory that exists, as hosts know them: in small letters (sssd.conf)."""
    directory = spec.users.directory
    return tuple(name.lower() for name in (*directory.user_groups, *directory.admin_groups)) if directory else ()


def _existing_directory(spec: ClusterSpec) -> dict[str, Any] | None:
    """The directory that exists; None: the cluster has its own."""
    directory = spec.users.directory
    if directory is None:
        return None
    return {
        "kind": directory.kind,
        "servers": list(directory.servers),
        "base": directory.base,
        "bind_dn": directory.bind_dn,
        # The password is not part of the inventory, which the controller has a copy of.
        "bind_password_file": str(directory.bind_password_path),
        "ca": directory.ca_pem,
        "schema": {"ad": "ad", "ipa": "ipa"}.get(directory.kind, directory.ldap_schema),
        "user_groups": list(directory.user_groups),
        "admin_groups": list(directory.admin_groups),
        "id_mapping": directory.id_mapping,
        "first_id": directory.first_id,
        "last_id": directory.last_id,
        "shell": directory.shell,
        "ssh_key_attribute": directory.key_attribute,
    }


def _proxy(spec: ClusterSpec, outputs: Outputs, addresses: list[dict[str, str]]) -> dict[str, Any] | None:
    """The proxy, and what is reached without it.

    Hosts are listed each, because not every program reads networks. They are apart, because their list changes with the
    number of nodes, and Docker restarts when its proxy changes.
    """
    if spec.software.proxy is None:
        return None
    domain = outputs.private_subnet_domain_name
    direct = ["localhost", "127.0.0.1", _METADATA_ADDRESS, spec.network.vcn_cidr, *([f".{domain}"] if domain else [])]
    return {
        "url": spec.software.proxy,
        "direct": list(dict.fromkeys([*direct, *spec.software.no_proxy])),
        "hosts": [host[key] for host in addresses for key in ("name", "address")],
    }


def _slurm_variables(spec: ClusterSpec, members: Members, hardware_emulated: bool) -> dict[str, Any]:
    default = spec.slurm.default_partition
    key = spec.slurm.rest_key_path
    return {
        "slurm_enabled": spec.slurm.enabled,
        "slurm_cluster_name": spec.slurm.cluster_name or spec.name,
        "slurm_accounting": spec.slurm.accounting,
        "slurm_release": spec.slurm.release,
        "slurm_systems": sorted(
            {system for system in systems_of(spec.model_dump(), PROVIDERS[spec.cloud.provider]).values() if system}
        ),
        "slurm_private": spec.slurm.private,
        "slurm_login_needs_job": spec.slurm.login_needs_job,
        "slurm_default_minutes": _minutes(spec.slurm.default_job_hours),
        "slurm_max_minutes": _minutes(spec.slurm.max_job_hours),
        "slurm_user_limits": spec.slurm.user_limits.model_dump(),
        "slurm_accounts_wanted": accounting(spec),
        "slurm_extra_config": dict(spec.slurm.extra_config),
        "slurm_rest": spec.slurm.enabled and spec.slurm.rest,
        "slurm_rest_certificate": spec.slurm.rest_certificate,
        # Its content is not part of the inventory, which the controller has a copy of.
        "slurm_rest_key_file": str(key) if key else None,
        "slurm_default_partition": default,
        "slurm_pools": [
            _slurm_pool(name, pool, members.get(name, ()), pool.partition == default, spec.cloud.real_gpus)
            for name, pool in spec.pools.items()
        ],
        "slurm_partitions": [_slurm_partition(spec, name, pools) for name, pools in spec.partitions.items()],
        "slurm_power": _slurm_power(spec, hardware_emulated) if spec.slurm.enabled and spec.elastic_pools else None,
        "slurm_hardware_emulated": hardware_emulated,
        "slurm_gpus_emulated": hardware_emulated and not spec.cloud.real_gpus,
    }


def _minutes(hours: int | None) -> int | None:
    """Slurm's unit."""
    return None if hours is None else hours * 60


def _slurm_pool(name: str, pool: PoolSpec, nodes: Sequence[PoolMember], default: bool, linked: bool) -> dict[str, Any]:
    """A pool for Slurm. `linked`: each node has links to the GPUs that it was given, instead of the shape's files."""
    shape = shapes.get(pool.shape)
    devices = mig.devices(pool.mig_parts, shape.gres_type or "")
    node = shapes.slurm_node(shape, ocpus=pool.ocpus, memory_gb=pool.memory_gb, smt=pool.platform.smt is not False)
    return {
        "name": name,
        "shape": pool.shape,
        "nodes": [node.name for node in nodes],
        "node": {**node, "Gres": mig.gres(devices)} if devices else node,
        # What Slurm counts as GPUs: instances, where GPUs are divided.
        "gpus": len(devices) or shape.gpus,
        "gres_type": shape.gres_type,
        "rdma": pool.uses_rdma,
        "memory_fabric": shape.memory_fabric,
        "nccl": nccl(pool),
        "gpu_vendor": shape.gpu_vendor if shape.gpus else None,
        "gpu_device_files": list(mig.gpu_links(shape.gpus) if linked else shape.gpu_device_files),
        # In the order of Slurm's numbers.
        "mig": [{"type": device.type, "files": list(device.links)} for device in devices],
        "partition": pool.partition,
        "login_user": pool.image.login_user,
        "default": default,
        "elastic_nodes": f"{elastic_prefix(name)}[1-{elastic_names(pool)}]" if pool.elastic else "",
        "idle_timeout": pool.idle_timeout,
    }


def _slurm_partition(spec: ClusterSpec, name: str, pools: Sequence[str]) -> dict[str, Any]:
    members = [spec.pools[pool] for pool in pools]
    elastic = sum(pool.elastic_count for pool in members)
    return {
        "name": name,
        "pools": list(pools),
        "default": name == spec.slurm.default_partition,
        "max_nodes": sum(pool.count for pool in members) + min(elastic, spec.autoscaler.max_nodes or elastic),
        "idle_timeout": next((pool.idle_timeout for pool in members if pool.elastic), None),
        "whole_nodes": spec.slurm.default_gpus == "all" and any(shapes.get(pool.shape).gpus for pool in members),
    }


def _slurm_power(spec: ClusterSpec, hardware_emulated: bool) -> dict[str, int]:
    """Timeouts, and the highest number of nodes that are powered up. Slurm counts permanent nodes, too."""
    elastic = sum(pool.elastic_count for pool in spec.pools.values())
    allowed = min(elastic, spec.autoscaler.max_nodes or elastic)
    permanent = sum(pool.count for pool in spec.pools.values())
    times = _SLURM_POWER_EMULATED if hardware_emulated else _SLURM_POWER
    return {**times, "max_powered_nodes": permanent + allowed}


def _health_variables(spec: ClusterSpec) -> dict[str, Any]:
    checks = spec.checks
    return {
        "health_enabled": checks.enabled and spec.scheduler != "none",
        "health_interval": checks.interval,
        "health_shadow": checks.shadow,
        "health_max_drained_percent": checks.max_drained_percent,
        "health_repair": checks.repair,
        "health_reactions": _reactions(spec),
        "health_maintenance": {"early": spec.maintenance.early} if spec.maintenance.enabled else None,
        "autoscaler_failover": spec.controller.automatic_failover,
    }


def _reactions(spec: ClusterSpec) -> dict[str, Any] | None:
    """What follows when jobs are hung or idle; None: no job is watched."""
    monitoring = spec.monitoring
    if not monitoring.enabled or not spec.slurm.enabled:
        return None
    minutes = monitoring.end_idle_jobs_minutes
    return {
        "on_hang": monitoring.on_hang,
        "partitions": dict(monitoring.on_hang_by_partition),
        "end_idle_seconds": None if minutes is None else minutes * 60,
    }


def _monitoring_variables(spec: ClusterSpec, outputs: Outputs) -> dict[str, Any]:
    monitoring = spec.monitoring
    name = monitoring_host(spec)
    host = next((node for node in outputs.login if node.name == name), outputs.controller)
    path = monitoring.alertmanager_path
    return {
        "monitoring_enabled": monitoring.enabled,
        # Exporters are reached from this host only.
        "monitoring_host": host.name,
        "monitoring_host_address": host.private_ip if host.name == name else outputs.controller_address,
        "monitoring_retention_days": monitoring.retention_days,
        "monitoring_retention_gb": monitoring.retention_gb,
        "monitoring_slurm_interval": monitoring.slurm_interval,
        # Its content may have passwords: it is not part of the inventory, which the controller has a copy of.
        "monitoring_alertmanager_file": str(path) if path else None,
        "monitoring_grafana": monitoring.grafana,
        "exporters_hang_seconds": monitoring.hang_seconds,
        "exporters_silent_seconds": monitoring.silent_hang_seconds,
        "exporters_idle_seconds": monitoring.idle_minutes * 60,
        "exporters_hang_stacks": monitoring.hang_stacks,
    }


def _backup_schedule(spec: ClusterSpec) -> dict[str, Any] | None:
    """Backups on a schedule; None: there are none."""
    backup = spec.backup
    if backup.certificate_pem is None:
        return None
    return {
        "certificate": backup.certificate_pem,
        "calendar": backup.schedule,
        "keep": backup.keep,
        "directory": backup.directory,
        "overdue_hours": backup.overdue_hours,
    }


def _container_variables(spec: ClusterSpec, software: ReleaseSet) -> dict[str, Any]:
    containers, nvidia = spec.containers, spec.nvidia
    return {
        "containers_runtimes": list(containers.runtimes),
        "containers_compression": containers.compression,
        "containers_pull": list(containers.pull),
        "docker_repository": containers.docker_repository and containers.docker_repository.model_dump(mode="json"),
        "containers_storage": container_storage(spec),
        "pyxis_container_scope": containers.container_scope,
        "pyxis_squashfuse": containers.squashfuse,
        "software_files": [dict(file) for file in software.files],
        "software_directory": str(software.directory) if software.directory else None,
        "nvidia_driver": nvidia.driver,
        "nvidia_driver_branch": nvidia.driver_branch,
        "nvidia_replace_driver": nvidia.replace_driver,
        "nvidia_dcgm": nvidia.dcgm,
        "nvidia_repositories": {
            repository.system: repository.model_dump(mode="json", exclude={"system"})
            for repository in nvidia.repositories
        },
    }


def _autoscaler_variables(
    spec: ClusterSpec,
    outputs: Outputs,
    autoscaling: Autoscaling | None,
    *,
    hardware_emulated: bool,
    hosts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    if autoscaling is None:
        return {
            "autoscaler_policy": None,
            "autoscaler_wheels": None,
            "autoscaler_maintenance": None,
            "autoscaler_failover": False,
        }
    wheels, elastic = autoscaling.wheels, bool(spec.elastic_pools)
    return {
        "autoscaler_policy": autoscaler_policy(
            spec, outputs, autoscaling, hardware_emulated=hardware_emulated, hosts=hosts
        )
        if elastic
        else None,
        "autoscaler_wheels": str(wheels) if wheels else None,
        "autoscaler_maintenance": maintenance_reader(spec, outputs, autoscaling) if spec.maintenance.enabled else None,
    }
