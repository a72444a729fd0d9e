"""What the rooms of a cluster work with: its wish, its folder, its cloud, and the tools made for them.

A tool is made when it is taken: before a run has started the local cloud, there is nobody to talk to.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from gpucluster import handover, shapes
from gpucluster.artifacts import catalogue, releases, wheels
from gpucluster.cloud.baked_images import BakedImages
from gpucluster.cloud.bastion import Bastion
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.leaked_resources import LeakedResources
from gpucluster.cloud.members import PoolMembers
from gpucluster.cloud.providers import CloudProvider, open_cloud
from gpucluster.configuration.runner import Ansible
from gpucluster.errors import InputError
from gpucluster.events import Event, Sink
from gpucluster.paths import ClusterPaths, cache_dir
from gpucluster.spec import ClusterSpec, finding
from gpucluster.ssh import SshClient
from gpucluster.terraform import backends
from gpucluster.terraform.backends import BackendConfig
from gpucluster.terraform.program import find_program
from gpucluster.terraform.runner import Terraform
from gpucluster.workspace import run
from gpucluster.workspace.login_keys import People
from gpucluster.workspace.saved_state import Kept


class Toolbox:
    """The tools for one cluster.

    Args:
        provider: "bundled" or "registry", for the local cloud's Terraform.
        version: of the package that runs.
    """

    def __init__(self, spec: ClusterSpec, on_event: Sink, *, provider: str, version: str) -> None:
        self.spec = spec
        self.on_event = on_event
        self.paths = ClusterPaths.of(spec.file)
        self.cloud: CloudProvider = open_cloud(spec, self.paths, on_event, provider)
        self.kept = Kept(self.paths)
        self.people = People(spec, self.paths)
        self._version = version
        self._warned: set[str] = set()

    def terraform(self, env: Mapping[str, str] | None = None) -> Terraform:
        """Terraform in the cluster's working copy.

        Args:
            env: what the provider needs; to read the state takes none.

        Raises:
            EnvironmentFault: there is no terraform, and none can be had.
        """
        marked = {**run.mark(self.paths), **(env or {})}
        return Terraform(self.paths, self._terraform_program, marked, self.on_event, backend=self._backend)

    @cached_property
    def _backend(self) -> BackendConfig:
        state, cloud = self.spec.state, self.spec.cloud
        return backends.desired(
            state.backend,
            state.config,
            cluster=self.spec.name,
            local_file=self.paths.terraform_state,
            region=cloud.region,
            profile=cloud.profile,
        )

    @cached_property
    def _terraform_program(self) -> Path:
        return find_program(cache_dir())

    def ansible(self) -> Ansible:
        """The playbooks, on the way to the hosts that was written last."""
        return Ansible(self.paths, self.route().config, run.mark(self.paths), self.on_event)

    def route(self) -> SshClient:
        """The way to the hosts, with the operator's key."""
        return SshClient(self.paths, self.cloud.ssh_key())

    def bastion(self) -> Bastion:
        """Sessions of the Bastion service, for a cluster without a public address."""
        return Bastion(self.cloud.access(), self.paths, self.on_event)

    def instances(self) -> PoolMembers:
        """The members of pools."""
        return PoolMembers(self.cloud.access(), self.on_event)

    def elastic(self) -> ElasticInstances:
        """Elastic nodes and builders."""
        return ElasticInstances(self.cloud.access(), self._tag, self.on_event)

    def images(self) -> BakedImages:
        """Baked images."""
        return BakedImages(self.cloud.access(), self._tag, self.on_event)

    def orphans(self) -> LeakedResources:
        """What an earlier run made and could not write into Terraform's state before it was killed."""
        network, home = self.spec.network, self.spec.storage.home
        named = (network.vcn_id, network.public_subnet_id, network.private_subnet_id, home.file_system_id)
        return LeakedResources(self.cloud.access(), self._tag, self.on_event, keep={one for one in named if one})

    @property
    def _tag(self) -> tuple[str, str]:
        return (handover.CLUSTER_TAG, self.spec.name)

    def wheels(self) -> Path:
        """The Python packages for the controller: it need not reach a package index.

        Raises:
            InputError: which Python the controller has is not known.
            EnvironmentFault: there are no packages, and none can be had.
        """
        wish, image = self.spec.software, self.spec.controller.image
        python = wish.controller_python or self.cloud.python_of(image)
        if python is None:
            raise InputError(
                "which Python does the controller have? Its image does not say",
                findings=[
                    finding(
                        self.spec,
                        ("controller", "image"),
                        "is none whose Python is known",
                        'Add `controller_python: "3.12"` under `software:`',
                    )
                ],
            )
        target = wheels.Target(python, shapes.get(self.spec.controller.shape).architecture)
        return wheels.ensure(target, wish.wheels_directory, self._version, self.on_event)

    def software(self) -> releases.ReleaseSet:
        """The release files that hosts get: they need not reach their projects' pages.

        Raises:
            InputError: some are missing, or nobody says what their checksum is.
            EnvironmentFault: they can't be had.
        """
        return self._software

    @cached_property
    def _software(self) -> releases.ReleaseSet:
        # Once: a mirror that does not answer would make every look wait, and warn of it.
        wanted = catalogue.wanted_by(self.spec, hardware_emulated=self.cloud.hardware_emulated)
        return releases.ensure(wanted, self.spec.software.mirror_location, self.on_event)

    def warn(self, words: str, *, once: bool = False) -> None:
        """Announce a warning; with `once`, only the first time that it is said."""
        if once and words in self._warned:
            return
        self._warned.add(words)
        self.on_event(Event("log", "cluster", "warning", words))
