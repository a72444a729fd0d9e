"""What differs between the clouds: how each is reached. Only this module asks which one it is."""

from __future__ import annotations

import configparser
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from gpucluster import process
from gpucluster.artifacts import wheels
from gpucluster.cloud.client import Access
from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.events import Sink
from gpucluster.paths import ClusterPaths, local_cloud_home, write_private
from gpucluster.spec import LOCAL_IMAGE, ClusterSpec, Image, finding, overlapping_routes
from gpucluster.ssh import ensure_key, public_key

# Where a release of the real provider is wanted on the local cloud too, its clients are pointed at it one by one.
_PROVIDER_CLIENTS = (
    "oci_core.VirtualNetworkClient",
    "oci_core.ComputeClient",
    "oci_core.ComputeManagementClient",
    "oci_core.BlockstorageClient",
    "oci_identity.IdentityClient",
    "oci_file_storage.FileStorageClient",
    "oci_bastion.BastionClient",
)
# Its client of work requests, which it asks why a launch failed, can't be pointed anywhere: it calls the host of our
# region in this domain. No such host may exist (RFC 2606), so nothing of a local cluster is ever sent to Oracle.
_NO_DOMAIN = "invalid"
# The provider takes each argument from TF_VAR_<name> before OCI_<NAME>, and prefers a key, or another way to log
# in, to the path of a key. What an operator exported for a root of their own must not win; empty counts as not set.
_NOT_OURS = (
    "TF_VAR_tenancy_ocid",
    "TF_VAR_user_ocid",
    "TF_VAR_fingerprint",
    "TF_VAR_private_key_path",
    "TF_VAR_private_key",
    "OCI_PRIVATE_KEY",
    "TF_VAR_auth",
    "OCI_AUTH",
    "TF_VAR_config_file_profile",
    "OCI_CONFIG_FILE_PROFILE",
)
PROVIDERS = ("bundled", "registry")
# Where the controller keeps the key that it asks the API with, if it needs one.
CONTROLLER_CREDENTIALS = "/etc/gpucluster/oci"


@dataclass(frozen=True)
class Credentials:
    """An OCI API key, as a profile of an OCI configuration file holds it. `key_file` is a path: the key itself is
    never read by us."""

    tenancy: str
    user: str
    fingerprint: str
    key_file: str
    region: str

    @classmethod
    def read(cls, file: Path, profile: str) -> Credentials:
        """Read one profile.

        Raises:
            InputError: the file, the profile or one of its entries is missing.
        """
        parser = configparser.ConfigParser(interpolation=None)
        try:
            with file.open() as stream:
                parser.read_file(stream)
            section = parser[profile]
            return cls(
                section["tenancy"],
                section["user"],
                section["fingerprint"],
                str(Path(section["key_file"]).expanduser()),
                section["region"],
            )
        except OSError as error:
            raise InputError(
                f"can't read the OCI configuration file: {error.strerror}",
                where=str(file),
                hint="Create it with: oci setup config",
            ) from error
        except (KeyError, configparser.Error) as error:
            raise InputError(
                f"the profile {profile} of the OCI configuration file lacks {error}",
                where=str(file),
                hint="Name another profile in cloud.profile, or complete this one",
            ) from error

    def sdk_config(self, region: str) -> dict[str, str]:
        """The configuration that the SDK's clients take."""
        return {
            "tenancy": self.tenancy,
            "user": self.user,
            "fingerprint": self.fingerprint,
            "key_file": self.key_file,
            "region": region,
        }

    def terraform_env(self, region: str) -> dict[str, str]:
        """The same for Terraform's provider, which reads it from the environment: no key in a file of ours."""
        return {
            **dict.fromkeys(_NOT_OURS, ""),
            "OCI_TENANCY_OCID": self.tenancy,
            "OCI_USER_OCID": self.user,
            "OCI_FINGERPRINT": self.fingerprint,
            "OCI_PRIVATE_KEY_PATH": self.key_file,
            "OCI_REGION": region,
        }


@dataclass(frozen=True)
class ControllerAccess:
    """How the controller asks the cloud's API.

    Args:
        authentication: as the autoscaler's policy has it: method, and with a key the file's place there, its profile
            and the endpoint.
        credentials: a directory of this machine with `config` and `key.pem` for the controller; None if it needs none.
    """

    authentication: Mapping[str, str]
    credentials: Path | None = None


class Cloud(Protocol):
    """How to reach a cloud."""

    hardware_emulated: bool

    def check(self, *, fresh: bool) -> None:
        """Refuse what can't work here before anything is created. `fresh`: nothing of this cluster stands yet."""

    def start(self, *, to_build: bool) -> None:
        """Make the cloud answer. `to_build`: instances will be launched."""

    def stop_if_empty(self) -> None:
        """Stop what `start` started, unless something else still lives in it."""

    @property
    def tenancy_id(self) -> str:
        """The OCID of the tenancy."""

    def access(self) -> Access:
        """What the SDK needs."""

    def ssh_key(self) -> Path | None:
        """The operator's private key; None leaves the choice to ssh and its agent."""

    def authorized_keys(self) -> tuple[str, ...]:
        """The operator's public keys."""

    def terraform_env(self, provider_address: str) -> Mapping[str, str]:
        """What Terraform's environment needs: credentials, and where the provider comes from."""

    def controller_access(self, controller_id: str | None) -> ControllerAccess:
        """How the controller of a cluster with elastic pools asks the API.

        Args:
            controller_id: the OCID of its instance; None only checks that there will be a way.
        """

    def python_of(self, image: Image) -> str | None:
        """Which Python instances of an image have, such as "3.12"; None where nobody knows."""


class OciCloud:
    """Oracle Cloud Infrastructure."""

    hardware_emulated = False

    def __init__(self, spec: ClusterSpec, paths: ClusterPaths) -> None:
        self._spec = spec
        file = Path(os.environ.get("OCI_CONFIG_FILE", "~/.oci/config")).expanduser()
        self._credentials = Credentials.read(file, spec.cloud.profile)

    def check(self, *, fresh: bool) -> None:
        """Nothing on this machine stands in the way."""

    def start(self, *, to_build: bool) -> None:
        """Oracle keeps it running."""

    def stop_if_empty(self) -> None:
        """It is not ours to stop."""

    @property
    def tenancy_id(self) -> str:
        """The tenancy of the profile."""
        return self._credentials.tenancy

    def access(self) -> Access:
        """Oracle's own endpoints, with the profile's key."""
        return Access(
            self._credentials.sdk_config(self._spec.cloud.region),
            None,
            self._spec.cloud.compartment_id or "",
            self._credentials.region,
        )

    def ssh_key(self) -> Path | None:
        """The private key beside `ssh.public_key_file`, where it is a file."""
        return self._spec.ssh.private_key_path

    def authorized_keys(self) -> tuple[str, ...]:
        """The key of `ssh.public_key_file`."""
        return (self._spec.ssh.public_key,) if self._spec.ssh.public_key else ()

    def terraform_env(self, provider_address: str) -> Mapping[str, str]:
        """The profile's credentials; the provider comes from wherever Terraform is configured to look."""
        return self._credentials.terraform_env(self._spec.cloud.region)

    def controller_access(self, controller_id: str | None) -> ControllerAccess:
        """As an instance principal: no key is there to be lost. What it may do, `iam` says."""
        return ControllerAccess({"method": "instance_principal"})

    def python_of(self, image: Image) -> str | None:
        """That of its operating system."""
        return wheels.python_of(image.operating_system, image.version)


class LocalCloud:
    """The local cloud of this machine.

    Args:
        provider: "bundled" for the stand-in, "registry" for the real oracle/oci from wherever Terraform finds it.
    """

    hardware_emulated = True

    def __init__(self, spec: ClusterSpec, paths: ClusterPaths, on_event: Sink, provider: str = "bundled") -> None:
        self._spec = spec
        self._paths = paths
        self._on_event = on_event
        self._provider = provider
        self.home = local_cloud_home()

    def check(self, *, fresh: bool) -> None:
        """This host can run containers, and the cluster's addresses are free on it."""
        from gpucluster.localcloud import machines

        problems = machines.probe()
        if problems:
            raise EnvironmentFault(
                "this machine can't run the local cloud:\n" + "\n".join(f"  - {problem}" for problem in problems)
            )
        if fresh:
            self._check_addresses()

    def _check_addresses(self) -> None:
        from gpucluster.localcloud import machines

        in_use = [*_host_routes(), *machines.network_ranges()]
        clashes = overlapping_routes(self._spec.network.vcn_cidr, in_use)
        if clashes:
            raise InputError(
                "the VCN's addresses are in use on this host",
                findings=[
                    finding(
                        self._spec,
                        ("network", "vcn_cidr"),
                        f"{self._spec.network.vcn_cidr} overlaps {', '.join(clashes)}",
                        "Choose a range that neither `ip route` nor `podman network ls` knows",
                    )
                ],
            )

    def start(self, *, to_build: bool) -> None:
        """Start the API server where it does not run yet; make the base image where instances need it."""
        from gpucluster.localcloud import control, machines

        if to_build:
            machines.ensure_image(self.home, self._on_event)
        control.start(self.home, self._on_event)

    def stop_if_empty(self) -> None:
        """Stop the API server when no cluster lives in it any more. The image stays: it is a cache."""
        from gpucluster.localcloud import control

        control.stop_if_empty(self.home)

    @property
    def _credentials(self) -> Credentials:
        return Credentials.read(self.home / "credentials" / "config", "DEFAULT")

    @property
    def _endpoint(self) -> str:
        return str(json.loads((self.home / "endpoint.json").read_text())["endpoint"])

    @property
    def tenancy_id(self) -> str:
        """The one tenancy of the local cloud."""
        return self._credentials.tenancy

    def access(self) -> Access:
        """The local endpoint; the compartment is the tenancy's root unless the file names one."""
        credentials = self._credentials
        compartment = self._spec.cloud.compartment_id or credentials.tenancy
        return Access(credentials.sdk_config(credentials.region), self._endpoint, compartment)

    def ssh_key(self) -> Path | None:
        """The operator's key where the file names one, else a pair of the cluster's own."""
        if self._spec.ssh.public_key_file:
            return self._spec.ssh.private_key_path
        return ensure_key(self._paths.ssh / "operator_ed25519", f"gpucluster-{self._spec.name}")

    def authorized_keys(self) -> tuple[str, ...]:
        """The public half of `ssh_key`."""
        if self._spec.ssh.public_key:
            return (self._spec.ssh.public_key,)
        key = self.ssh_key()
        return (public_key(key),) if key else ()

    def _keep_provider_lock_of(self, provider: str) -> None:
        """Forget Terraform's provider lock when the other provider wrote it: their checksums differ, as they should."""
        mark = self._paths.root / "provider"
        if not mark.exists() or mark.read_text().strip() != provider:
            (self._paths.terraform / "cluster" / ".terraform.lock.hcl").unlink(missing_ok=True)
            write_private(mark, provider + "\n")

    def terraform_env(self, provider_address: str) -> Mapping[str, str]:
        """The local credentials, and the stand-in provider (or the real one, pointed here)."""
        from gpucluster.localcloud import provider

        env = self._credentials.terraform_env(self._credentials.region)
        self._keep_provider_lock_of(self._provider)
        if self._provider == "registry":
            overrides = ";".join(f"{client}={self._endpoint}" for client in _PROVIDER_CLIENTS)
            return {**env, "CLIENT_HOST_OVERRIDES": overrides, "OCI_DEFAULT_REALM": _NO_DOMAIN}
        plugins = self.home / "providers"
        provider.install(plugins, provider_address)
        config = self._paths.root / "terraform.rc"
        write_private(config, provider.cli_config(plugins))
        return {**env, "TF_CLI_CONFIG_FILE": str(config), "GPUCLUSTER_LOCAL_ENDPOINT": self._endpoint}

    def controller_access(self, controller_id: str | None) -> ControllerAccess:
        """With a key of its instance's own, at the address that this host has in the cluster's network."""
        from gpucluster.localcloud.credentials import instance_credentials

        tenancy = self.tenancy_id
        credentials = instance_credentials(self.home, tenancy, controller_id) if controller_id else None
        gateway = next(IPv4Network(self._spec.network.vcn_cidr).hosts())
        authentication = {
            "method": "api_key",
            "config_file": f"{CONTROLLER_CREDENTIALS}/config",
            "profile": "DEFAULT",
            "endpoint": f"http://{gateway}:{urlsplit(self._endpoint).port}",
        }
        return ControllerAccess(authentication, credentials)

    def python_of(self, image: Image) -> str | None:
        """That of the base image, whatever an image is called: all others are stand-ins made of it."""
        return wheels.python_of(LOCAL_IMAGE["operating_system"], LOCAL_IMAGE["version"])


def _host_routes() -> tuple[str, ...]:
    """The networks that this host routes, the default route left out."""
    routes = json.loads(process.run(["ip", "-json", "-4", "route", "show", "table", "main"]).stdout or "[]")
    return tuple(route["dst"] for route in routes if route.get("dst") not in (None, "default"))


def open_cloud(spec: ClusterSpec, paths: ClusterPaths, on_event: Sink, provider: str = "bundled") -> Cloud:
    """The cloud that the cluster's file asks for."""
    if spec.cloud.provider == "local":
        return LocalCloud(spec, paths, on_event, provider)
    return OciCloud(spec, paths)
