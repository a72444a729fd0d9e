"""The interface of a cloud: how the rest of the package reaches it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpucluster.cloud.client import CloudAccess
from gpucluster.oci import names
from gpucluster.spec import ClusterSpec, Image


@dataclass(frozen=True)
class ControllerAccess:
    """How the controller reaches the cloud's API.

    Args:
        authentication: as in the autoscaler's policy: the method, and the endpoint where it is not Oracle's own.
    """

    authentication: Mapping[str, str]


@dataclass(frozen=True)
class MachineGpus:
    """The GPUs of the machine that runs the local cloud: how many, and how many no instance has."""

    total: int
    free: int


def elastic_compartment(spec: ClusterSpec) -> str:
    """The compartment of elastic nodes, as `Access.elastic` has it."""
    iam = spec.iam
    return names.elastic_compartment(spec.name) if iam.creates_compartment else iam.elastic_compartment or ""


class CloudProvider(Protocol):
    """How to reach a cloud."""

    hardware_emulated: bool
    #: Terraform's provider is a part of gpucluster.
    own_provider: bool

    def check(self) -> None:
        """Check that this machine can run the cloud.

        Raises:
            EnvironmentFault: it can't.
        """

    def check_network(self) -> None:
        """Check, before a network is created, that its addresses are free where the cloud runs. The network that the
        cluster has already does not count. The cloud is started.

        Raises:
            InputError: they are in use.
            CloudError: the cloud refused.
        """

    def check_gpus(self) -> None:
        """Check, before machines are launched, that the cloud can give them GPUs, where cluster.yml wants real ones of
        this machine.

        Raises:
            EnvironmentFault: it can't.
        """

    def machine_gpus(self) -> MachineGpus | None:
        """The GPUs of this machine; None where instances get none of them, or where the cloud runs elsewhere.

        Raises:
            GpuClusterError: they can't be found out.
        """

    def start(self, *, to_build: bool) -> None:
        """Make sure that the cloud answers.

        Args:
            to_build: instances will be launched.
        """

    def start_if_used(self) -> None:
        """Make sure that the cloud answers, if clusters may be in it: for commands that only read."""

    def in_use(self) -> bool:
        """Whether clusters may be in it. A local cloud without resources does not have to be started to be asked."""

    def stop_if_empty(self) -> None:
        """Stop what `start` started, unless another cluster is in it."""

    @property
    def tenancy_id(self) -> str:
        """The OCID of the tenancy."""

    def access(self) -> CloudAccess:
        """How the SDK reaches the API."""

    def ssh_key(self) -> Path | None:
        """The operator's private key; None leaves the choice to ssh and its agent."""

    def authorized_keys(self) -> tuple[str, ...]:
        """The operator's public keys."""

    def terraform_env(self, provider_address: str) -> Mapping[str, str]:
        """Variables for Terraform's environment: credentials, and the source of the provider.

        Args:
            provider_address: the full address of `oracle/oci`, such as "registry.terraform.io/oracle/oci".

        Raises:
            GpuClusterError: as `state_env`.
        """

    def state_env(self) -> Mapping[str, str]:
        """Variables for Terraform's backend of the state, beside its settings.

        Raises:
            GpuClusterError: credentials have to be asked for, and what is asked refuses or does not answer.
        """

    def controller_access(self) -> ControllerAccess:
        """How the controller of a cluster with elastic pools reaches the API."""

    def python_of(self, image: Image) -> str | None:
        """The Python of the autoscaler in instances of an image, such as "3.12"; None if it is not known."""
