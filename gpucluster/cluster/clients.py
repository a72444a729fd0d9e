"""The clients of one cluster, each made when it is needed: the local cloud answers only after a run has started it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpucluster.cloud.baked_images import BakedImages
from gpucluster.cloud.bastion import Bastion
from gpucluster.cloud.boot_volumes import BootVolumes
from gpucluster.cloud.console import Consoles
from gpucluster.cloud.credentials import authentication_of
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.file_systems import FileSystems
from gpucluster.cloud.host_reports import HostReports
from gpucluster.cloud.members import PoolMembers
from gpucluster.cloud.power import InstancePower
from gpucluster.cloud.providers import CloudProvider
from gpucluster.cloud.service_move import ServiceMove
from gpucluster.cloud.tagged_resources import TaggedResource, TaggedResources
from gpucluster.configuration.runner import Ansible
from gpucluster.events import Sink
from gpucluster.oci import tags
from gpucluster.oci.authentication import backend_settings
from gpucluster.paths import ClusterPaths, cache_dir
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import SshClient
from gpucluster.terraform import backends, provider_lock
from gpucluster.terraform.backends import BackendConfig
from gpucluster.terraform.lock import StateLock
from gpucluster.terraform.program import find_program
from gpucluster.terraform.runner import Terraform
from gpucluster.workspace import run as runs


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Terraform, Ansible and ssh for one cluster.

    Args:
        state_lock: one for all runs of Terraform of this process.
    """

    spec: ClusterSpec
    paths: ClusterPaths
    cloud: CloudProvider
    on_event: Sink
    state_lock: StateLock

    def terraform(self, env: Mapping[str, str] | None = None) -> Terraform:
        """Terraform for this cluster's state.

        Args:
            env: is added to the environment of a run.
        """
        environment = {**runs.environment(self.paths), **self.cloud.state_env(), **(env or {})}
        return Terraform(
            self.paths,
            self._terraform_program,
            environment,
            self.on_event,
            backend=self._backend,
            state_lock=self.state_lock,
            kept_lock=None if self.cloud.own_provider else provider_lock.path_of(self.spec.file),
        )

    def ansible(self) -> Ansible:
        """Ansible, with the ssh configuration of this cluster."""
        return Ansible(self.paths, self.ssh().config, runs.environment(self.paths), self.on_event)

    def ssh(self) -> SshClient:
        """The ssh client with this machine's key."""
        return SshClient(self.paths, self.cloud.ssh_key())

    @cached_property
    def _terraform_program(self) -> Path:
        return find_program(cache_dir())

    @cached_property
    def _backend(self) -> BackendConfig:
        state, cloud = self.spec.state, self.spec.cloud
        method = authentication_of(cloud, os.environ)
        return backends.desired(
            state.backend,
            state.config,
            cluster=self.spec.name,
            local_file=self.paths.terraform_state,
            region=cloud.region,
            authentication=backend_settings(method, cloud.profile),
        )


@dataclass(frozen=True, kw_only=True)
class CloudClients:
    """What asks the cloud for one cluster's resources.

    Args:
        identity: the identity of the cluster; empty for one that has none yet.
    """

    spec: ClusterSpec
    paths: ClusterPaths
    cloud: CloudProvider
    on_event: Sink
    identity: Callable[[], str]

    def bastion(self) -> Bastion:
        """Opens sessions of the Bastion service."""
        return Bastion(self.cloud.access(), self.paths, self.on_event)

    def pool_members(self) -> PoolMembers:
        """Finds the instances of pools."""
        return PoolMembers(self.cloud.access(), self.on_event)

    def boot_volumes(self) -> BootVolumes:
        """Replaces the boot volumes of instances in their place."""
        return BootVolumes(self.cloud.access(), self.on_event)

    def service_move(self) -> ServiceMove:
        """Moves the volume and the address of the controller."""
        return ServiceMove(self.cloud.access(), self.spec.name, self.on_event, tags=self.service_tags())

    def service_tags(self) -> dict[str, str]:
        """The tags of the address that moves with the service of the controller."""
        identity = self.identity()
        named = {tags.CLUSTER: self.spec.name, **({tags.IDENTITY: identity} if identity else {})}
        return {**self.spec.cloud.freeform_tags, **named, tags.ROLE: "network"}

    def power(self) -> InstancePower:
        """Stops and starts instances."""
        return InstancePower(self.cloud.access(), self.on_event)

    def host_reports(self) -> HostReports:
        """Reports physical hosts to Oracle."""
        return HostReports(self.cloud.access())

    def consoles(self) -> Consoles:
        """Reads the serial consoles of instances."""
        return Consoles(self.cloud.access())

    def elastic(self) -> ElasticInstances:
        """Finds and removes elastic instances."""
        return ElasticInstances(self.cloud.access(), self.spec.name, self.on_event, identity=self.identity())

    def baked_images(self) -> BakedImages:
        """Finds, makes and removes baked images."""
        return BakedImages(self.cloud.access(), self.spec.name, self.on_event, identity=self.identity())

    def file_systems(self) -> FileSystems:
        """Finds and removes the file systems that the cluster has made."""
        keep = frozenset(self.spec.storage.existing_file_systems.values())
        return FileSystems(self.cloud.access(), self.spec.name, keep=keep)

    def tagged_resources(self) -> TaggedResources:
        """Finds and removes what has the cluster's tag, except what cluster.yml names by its OCID."""
        network, existing = self.spec.network, self.spec.storage.existing_file_systems.values()
        named = (network.vcn_id, network.public_subnet_id, network.private_subnet_id, *existing)
        return TaggedResources(
            self.cloud.access(), self.spec.name, self.on_event, keep={ocid for ocid in named if ocid}
        )

    def tagged(self) -> tuple[TaggedResource, ...]:
        """What has the cluster's tag. A local cloud is started only if it has resources."""
        if not self.cloud.in_use():
            return ()
        self.cloud.start_if_used()
        return self.tagged_resources().find()
