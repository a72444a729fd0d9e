"""The local cloud of this machine: containers behind an API with OCI's protocol.

Modules of `gpucluster.localcloud` are imported inside the functions that use them: a command that only reads
cluster.yml does not need them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpucluster import process
from gpucluster.cloud.client import CloudAccess, all_pages, refusals
from gpucluster.cloud.credentials import Credentials, OciProfile, authentication_of, open_credentials
from gpucluster.cloud.providers.interface import ControllerAccess, MachineGpus, elastic_compartment
from gpucluster.errors import EnvironmentFault, GpuClusterError, InputError
from gpucluster.events import Sink
from gpucluster.oci import tags
from gpucluster.paths import ClusterPaths, local_cloud_home, read_saved, write_private
from gpucluster.spec import (
    LOCAL_IMAGE,
    LOCAL_NETWORK,
    PROVIDERS,
    ClusterSpec,
    Image,
    finding,
    free_network,
    overlapping_routes,
)
from gpucluster.ssh import ensure_key, public_key
from gpucluster.systems import host_python

if TYPE_CHECKING:
    from gpucluster.localcloud.image.contents import Contents

# The clients of the real provider, which can be pointed at another endpoint one by one.
_PROVIDER_CLIENTS = (
    "oci_core.VirtualNetworkClient",
    "oci_core.ComputeClient",
    "oci_core.ComputeManagementClient",
    "oci_core.BlockstorageClient",
    "oci_identity.IdentityClient",
    "oci_file_storage.FileStorageClient",
    "oci_bastion.BastionClient",
)


def real_provider_env(endpoint: str) -> dict[str, str]:
    """Variables that point the real provider at the local cloud, and at nothing else."""
    from gpucluster.localcloud.state.region import NO_DOMAIN

    overrides = ";".join(f"{client}={endpoint}" for client in _PROVIDER_CLIENTS)
    return {"CLIENT_HOST_OVERRIDES": overrides, "OCI_DEFAULT_REALM": NO_DOMAIN}


def bundled_provider_env(terraform_rc: Path, endpoint: str) -> dict[str, str]:
    """Variables with which Terraform takes the local cloud's own provider, and that finds the local cloud."""
    # A Terraform of such a cluster needs little memory, and a fifth of its processor time goes into saving some of it.
    # The real provider needs gigabytes, and there the default stays.
    frugal = {"GOGC": "400"}
    return {"TF_CLI_CONFIG_FILE": str(terraform_rc), "GPUCLUSTER_LOCAL_ENDPOINT": endpoint, **frugal}


class LocalCloudProvider:
    """The local cloud of this machine.

    Args:
        provider: where Terraform's provider comes from: "bundled" for the one of the local cloud, "registry" for the
            real oracle/oci, from where Terraform finds it.
    """

    hardware_emulated = PROVIDERS["local"].hardware_emulated

    def __init__(self, spec: ClusterSpec, paths: ClusterPaths, on_event: Sink, provider: str = "bundled") -> None:
        self._spec = spec
        self._paths = paths
        self._on_event = on_event
        self._provider = provider
        self.own_provider = provider != "registry"
        self.home = local_cloud_home()
        self._session: Credentials | None = None

    def check(self) -> None:
        """This machine must be able to run containers, unless another machine runs the local cloud."""
        from gpucluster.localcloud import control
        from gpucluster.localcloud.podman.command import probe

        if control.elsewhere(self.home):
            return
        problems = probe()
        if problems:
            raise EnvironmentFault(
                "this machine can't run the local cloud:\n" + "\n".join(f"  - {problem}" for problem in problems),
                hint="When that is done, run the same command again",
            )

    def check_network(self) -> None:
        """The addresses must be free on this machine. Those of a network that exists already are the cluster's own."""
        from gpucluster.localcloud import control
        from gpucluster.localcloud.engine.containers import network_ranges

        if control.elsewhere(self.home) or self._spec.network.vcn_id or self._has_network():
            return
        in_use = [*_host_routes(), *network_ranges()]
        free = free_network(in_use)
        clashes = overlapping_routes(self._spec.network.vcn_cidr, in_use)
        if clashes:
            self.stop_if_empty()
            raise InputError(
                "the VCN's addresses are in use on this machine",
                findings=[
                    finding(
                        self._spec,
                        ("network", "vcn_cidr"),
                        f"{self._spec.network.vcn_cidr} overlaps {', '.join(clashes)}",
                        f"{free} is free: write it there, and subnets in it"
                        if free
                        else "Choose a range that neither `ip route` nor `podman network inspect` shows",
                    )
                ],
            )

    def check_gpus(self) -> None:
        """Podman must know GPUs of this machine, and be able to hand them out."""
        from gpucluster.localcloud.podman.command import check_devices

        if self.machine_gpus() is not None:
            check_devices()

    def machine_gpus(self) -> MachineGpus | None:
        """Those that CDI specifications of this machine name, for a cluster with `cloud.local.gpus: real`."""
        from gpucluster.localcloud import control
        from gpucluster.localcloud.compute import machine_gpus

        if not self._spec.cloud.real_gpus or control.elsewhere(self.home):
            return None
        offer = machine_gpus.offer(self.home)
        return MachineGpus(len(offer.every), len(offer.free))

    def _has_network(self) -> bool:
        """Whether the cluster has a VCN, by its tag."""
        access = self.access()
        with refusals("listing the networks"):
            listed = all_pages(access.client("core", "VirtualNetworkClient").list_vcns, access.compartment_id)
        return any(tags.of_cluster(vcn.freeform_tags, self._spec.name) for vcn in listed)

    def start(self, *, to_build: bool) -> None:
        """Start the API server if it does not run. Build the base images if instances will be launched."""
        from gpucluster.localcloud import control
        from gpucluster.localcloud.compute import machine_gpus
        from gpucluster.localcloud.image.base_image import ensure_image

        if control.elsewhere(self.home):
            return
        if to_build:
            # An image that is given by its OCID is made when it is launched.
            for contents in dict.fromkeys(self._contents(machine.image) for machine in self._spec.machines):
                if contents is not None:
                    ensure_image(self.home, self._on_event, contents)
        self._offer_kubernetes()
        machine_gpus.hand_out(self.home, self._spec.name, real=self._spec.cloud.real_gpus)
        control.start(self.home, self._on_event)

    def _offer_kubernetes(self) -> None:
        """Tell the local cloud where the release files for control planes of Kubernetes Engine are."""
        from gpucluster.localcloud.kubernetes import releases

        folder = self._spec.software.mirror_location
        if self._spec.scheduler == "kubernetes" and self._spec.kubernetes.control_plane == "oke" and folder:
            write_private(self.home / releases.CONFIG, json.dumps({"mirror": folder}) + "\n")

    def start_if_used(self) -> None:
        """Start the API server if something is in the local cloud."""
        if self.in_use():
            self.start(to_build=False)

    def in_use(self) -> bool:
        """Whether the API server runs, or its records have resources."""
        from gpucluster.localcloud import control

        status = control.status(self.home)
        return status.running or not status.empty or control.elsewhere(self.home)

    def stop_if_empty(self) -> None:
        """Stop the API server if it has no cluster any more. The base image stays: it is a cache."""
        from gpucluster.localcloud import control

        control.stop_if_empty(self.home)

    @property
    def _profile(self) -> OciProfile:
        """The local cloud's own credentials, which exist once it has been started."""
        return OciProfile.read(self.home / "credentials" / "config", "DEFAULT")

    @property
    def _credentials(self) -> Credentials:
        """The local cloud's own, or a session that its identity domain gives."""
        if self._session is None and authentication_of(self._spec.cloud, os.environ) == "profile":
            return self._profile
        if self._session is None:
            self._session = open_credentials(
                self._spec.cloud, os.environ, profile=(self.home, ""), endpoint=self._endpoint
            )
        return self._session

    @property
    def _endpoint(self) -> str:
        return str(json.loads((self.home / "endpoint.json").read_text())["endpoint"])

    @property
    def tenancy_id(self) -> str:
        """The only tenancy of the local cloud."""
        return self._credentials.tenancy

    def access(self) -> CloudAccess:
        """The local endpoint. The compartment is the tenancy's root unless cluster.yml names one."""
        credentials = self._credentials
        config = credentials.sdk_config(PROVIDERS["local"].only_region)
        compartment = self._spec.cloud.compartment_id or config["tenancy"]
        return CloudAccess(
            config,
            self._endpoint,
            compartment,
            elastic=elastic_compartment(self._spec),
            signer=None if isinstance(credentials, OciProfile) else credentials.signer,
        )

    def ssh_key(self) -> Path | None:
        """The operator's key if cluster.yml names one, else a key pair of the cluster's own, which is
        beside the local cloud's credentials: who has these has the key. None leaves the choice to ssh and its agent."""
        if self._spec.ssh.authorized_keys:
            return self._spec.ssh.private_key_path
        key = self.home / "credentials" / "operators" / f"{self._spec.name}_ed25519"
        return ensure_key(key, f"gpucluster-{self._spec.name}")

    def authorized_keys(self) -> tuple[str, ...]:
        """The keys of `ssh.public_key_file` and `ssh.public_keys`, else the public half of `ssh_key`."""
        if self._spec.ssh.authorized_keys:
            return self._spec.ssh.authorized_keys
        key = self.ssh_key()
        return (public_key(key),) if key else ()

    def _drop_other_provider_lock(self, provider: str) -> None:
        """Remove Terraform's dependency lock file if it holds the checksums of the other provider."""
        used = self._paths.root / "provider"
        if not used.exists() or read_saved(used).strip() != provider:
            (self._paths.terraform / "cluster" / ".terraform.lock.hcl").unlink(missing_ok=True)
            write_private(used, provider + "\n")

    def terraform_env(self, provider_address: str) -> Mapping[str, str]:
        """The local credentials, and the bundled provider or the real one with the local endpoint."""
        from gpucluster.localcloud.provider import installation

        env = self._credentials.terraform_env(PROVIDERS["local"].only_region)
        self._drop_other_provider_lock(self._provider)
        if self._provider == "registry":
            return {**env, **real_provider_env(self._endpoint), **self._work_request_env()}
        plugins = self.home / "providers"
        installation.install(plugins, provider_address)
        config = self._paths.root / "terraform.rc"
        write_private(config, installation.cli_config(plugins))
        return {**env, **bundled_provider_env(config, self._endpoint)}

    def state_env(self) -> Mapping[str, str]:
        """Nothing: the local cloud has no Object Storage."""
        return {}

    def _work_request_env(self) -> dict[str, str]:
        """Lets the real provider read work requests here: see `localcloud.server.work_requests`.

        A proxy that the caller needs stays. Then the reason of a failed launch is in the local cloud's log only.
        """
        from gpucluster.localcloud.server import work_requests

        if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy")):
            return {}
        where = json.loads((self.home / work_requests.FILE).read_text())
        return {"HTTPS_PROXY": where["proxy"], "custom_cert_location": where["certificate"]}

    def controller_access(self) -> ControllerAccess:
        """As an instance principal like on OCI, at the address that this machine has in the cluster's network."""
        gateway = next(IPv4Network(self._spec.network.vcn_cidr).hosts())
        return ControllerAccess(
            {"method": "instance_principal", "endpoint": f"http://{gateway}:{urlsplit(self._endpoint).port}"}
        )

    def python_of(self, image: Image) -> str | None:
        """That of the system which the image really contains."""
        contents = self._contents(image)
        system = (contents.suite.operating_system, contents.suite.version) if contents else LOCAL_IMAGE.values()
        python = host_python.of_image(*system)
        return python.of_autoscaler if python else None

    def _contents(self, image: Image) -> Contents | None:
        """What an image really contains; None if it is given by its OCID."""
        from gpucluster.localcloud.compute import image_catalogue
        from gpucluster.localcloud.image.contents import contents_of, folder_of

        offer = image_catalogue.find(image.operating_system, image.version, image.name, image.listing)
        return contents_of(offer.operating_system, offer.version, folder_of(self.home)) if offer else None


def free_range() -> str:
    """A range of addresses for a new cluster that this machine does not use. If that can't be found out, the usual one:
    the first run looks again, and refuses one that is in use.
    """
    from gpucluster.localcloud import control
    from gpucluster.localcloud.engine.containers import network_ranges

    used: list[str] = []
    for ask in (_host_routes, network_ranges):
        with suppress(GpuClusterError, OSError, ValueError):
            used += [] if control.elsewhere(local_cloud_home()) else ask()
    return free_network(used) or LOCAL_NETWORK


def _host_routes() -> tuple[str, ...]:
    """The networks that this machine has routes to, without the default route."""
    routes = json.loads(process.run(["ip", "-json", "-4", "route", "show", "table", "main"]).stdout or "[]")
    return tuple(route["dst"] for route in routes if route.get("dst") not in (None, "default"))
