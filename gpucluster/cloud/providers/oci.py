"""Oracle Cloud Infrastructure, with the credentials that `cloud.auth` names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.credentials import open_credentials
from gpucluster.cloud.providers.interface import ControllerAccess, elastic_compartment
from gpucluster.spec import PROVIDERS, ClusterSpec, Image
from gpucluster.systems import host_python


class OciCloudProvider:
    """Oracle Cloud Infrastructure."""

    hardware_emulated = PROVIDERS["oci"].hardware_emulated
    own_provider = False

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        file = Path(os.environ.get("OCI_CONFIG_FILE", "~/.oci/config")).expanduser()
        self._credentials = open_credentials(spec.cloud, os.environ, profile=(file, spec.cloud.profile))

    def check(self) -> None:
        """Nothing on this machine can prevent it."""

    def check_network(self) -> None:
        """Networks of OCI are separate from each other."""

    def check_gpus(self) -> None:
        """Its GPUs are not those of this machine."""

    def machine_gpus(self) -> None:
        """None: its GPUs are not those of this machine."""
        return

    def start(self, *, to_build: bool) -> None:
        """It always runs."""

    def start_if_used(self) -> None:
        """It always runs."""

    def in_use(self) -> bool:
        """Only a listing can tell."""
        return True

    def stop_if_empty(self) -> None:
        """It always runs."""

    @property
    def tenancy_id(self) -> str:
        """The tenancy of the credentials."""
        return self._credentials.tenancy

    def access(self) -> CloudAccess:
        """Oracle's own endpoints, with the operator's or the runner's credentials."""
        return CloudAccess(
            self._credentials.sdk_config(self._spec.cloud.region),
            None,
            self._spec.cloud.compartment_id or "",
            self._credentials.region,
            elastic_compartment(self._spec),
            self._credentials.signer,
        )

    def ssh_key(self) -> Path | None:
        """The private key beside `ssh.public_key_file`, if there is such a file."""
        return self._spec.ssh.private_key_path

    def authorized_keys(self) -> tuple[str, ...]:
        """The keys of `ssh.public_key_file` and `ssh.public_keys`."""
        return self._spec.ssh.authorized_keys

    def terraform_env(self, provider_address: str) -> Mapping[str, str]:
        """The credentials. Terraform gets the provider from where it is configured to."""
        return self._credentials.terraform_env(self._spec.cloud.region)

    def state_env(self) -> Mapping[str, str]:
        """The credentials where the state is in Object Storage; the other backends have their own."""
        return self._credentials.state_env() if self._spec.state.backend == "oci" else {}

    def controller_access(self) -> ControllerAccess:
        """As an instance principal, which needs no key. `handover.iam` has its permissions."""
        return ControllerAccess({"method": "instance_principal"})

    def python_of(self, image: Image) -> str | None:
        """That of the image's operating system."""
        python = host_python.of_image(image.operating_system, image.version)
        return python.of_autoscaler if python else None
