"""A running server (with the null engine by default), and clients of the real SDK for it."""

from __future__ import annotations

import configparser
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from gpucluster.localcloud import control
from gpucluster.localcloud.engine import containers, link_local
from gpucluster.localcloud.engine.process_engine import ProcessEngine
from gpucluster.localcloud.engine.protocol import LABEL_HOME
from gpucluster.localcloud.image.base_image import ensure_image
from gpucluster.localcloud.image.contents import DEBIAN_13, Contents
from gpucluster.oci.tags import HOST_ACTIONS, HOST_STATUS
from tests.image_home import image_home
from tests.localcloud.faults import set_faults
from tests.waiting import PATIENCE_S, wait_for

SHAPE, GPU_SHAPE = "VM.Standard.E5.Flex", "BM.GPU4.8"


class Api:
    """A home, its server, and short methods for the requests of the tests."""

    def __init__(self, home: Path, engine: str = "null") -> None:
        self.home = home
        self._engine = engine
        self.start()

    def start(self) -> None:
        self.status = control.start(self.home, engine=self._engine)
        self.endpoint = self.status.endpoint

    def kill(self) -> None:
        """Kill the server, as in a crash."""
        pid = control.status(self.home).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for("the killed server is gone", lambda: not control.status(self.home).running, interval=0.01)

    @cached_property
    def config(self) -> dict[str, Any]:
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(self.home / "credentials" / "config")
        return dict(parser["DEFAULT"])

    @property
    def tenancy(self) -> str:
        return str(self.config["tenancy"])

    def client(self, name: str, *, timeout: float | None = None, **changes: Any) -> Any:
        """A client of the SDK; `changes` override its configuration.

        Args:
            timeout: seconds until the client gives up waiting for an answer, where that is under test.
        """
        import oci

        service, _, cls = name.rpartition(".")
        module = getattr(oci, service)
        made = getattr(module, cls)(
            {**self.config, **changes},
            service_endpoint=self.endpoint,
            retry_strategy=oci.retry.NoneRetryStrategy(),
            circuit_breaker_strategy=oci.circuit_breaker.NoCircuitBreakerStrategy(),
            timeout=(PATIENCE_S, PATIENCE_S) if timeout is None else (PATIENCE_S, timeout),
        )
        made.base_client.session.trust_env = False  # a proxy in the environment is not asked for this machine
        return made

    @cached_property
    def network(self) -> Any:
        return self.client("core.VirtualNetworkClient")

    @cached_property
    def compute(self) -> Any:
        return self.client("core.ComputeClient")

    @cached_property
    def management(self) -> Any:
        return self.client("core.ComputeManagementClient")

    @cached_property
    def block(self) -> Any:
        return self.client("core.BlockstorageClient")

    @cached_property
    def files(self) -> Any:
        return self.client("file_storage.FileStorageClient")

    @cached_property
    def identity(self) -> Any:
        return self.client("identity.IdentityClient")

    @cached_property
    def bastions(self) -> Any:
        return self.client("bastion.BastionClient")

    @cached_property
    def kubernetes(self) -> Any:
        return self.client("container_engine.ContainerEngineClient")

    @cached_property
    def limits(self) -> Any:
        return self.client("limits.LimitsClient")

    @cached_property
    def quotas(self) -> Any:
        return self.client("limits.QuotasClient")

    @cached_property
    def work(self) -> Any:
        return self.client("work_requests.WorkRequestClient")

    @property
    def domain(self) -> str:
        return str(self.identity.list_availability_domains(self.tenancy).data[0].name)

    def image(self) -> Any:
        return self.compute.list_images(self.tenancy, operating_system="Debian", operating_system_version="13").data[0]

    def named_image(self, name: str) -> Any:
        """A platform image by its display name."""
        return self.compute.list_images(self.tenancy, display_name=name).data[0]

    def faults(self, *faults: dict[str, Any]) -> None:
        """Replace the faults of this home; without arguments there are none."""
        set_faults(self.home, faults)

    # resources

    def vcn(self, cidr: str = "10.77.0.0/16", name: str = "net") -> Any:
        import oci

        details = oci.core.models.CreateVcnDetails(
            compartment_id=self.tenancy, cidr_blocks=[cidr], dns_label=name, display_name=name
        )
        return self.network.create_vcn(details).data

    def subnet(self, vcn: Any, cidr: str = "10.77.0.0/24", **more: Any) -> Any:
        import oci

        details = oci.core.models.CreateSubnetDetails(
            **{"compartment_id": self.tenancy, "vcn_id": vcn.id, "cidr_block": cidr, "dns_label": "sub", **more}
        )
        return self.network.create_subnet(details).data

    def launch_details(self, subnet: Any, name: str = "node", **more: Any) -> Any:
        import oci

        models = oci.core.models
        vnic = {"subnet_id": subnet.id, "hostname_label": name, **more.pop("vnic", {})}
        values = {
            "compartment_id": self.tenancy,
            "availability_domain": self.domain,
            "shape": SHAPE,
            "shape_config": models.LaunchInstanceShapeConfigDetails(ocpus=1, memory_in_gbs=4),
            "display_name": name,
            "create_vnic_details": models.CreateVnicDetails(**vnic),
            "source_details": models.InstanceSourceViaImageDetails(image_id=self.image().id),
            **more,
        }
        return models.LaunchInstanceDetails(**values)

    def launch(self, subnet: Any, name: str = "node", **more: Any) -> Any:
        instance = self.compute.launch_instance(self.launch_details(subnet, name, **more)).data
        return self.wait(self.compute.get_instance, instance.id, "RUNNING")

    def configuration(self, shape: str = GPU_SHAPE, **more: Any) -> Any:
        import oci

        models = oci.core.models
        launch = models.InstanceConfigurationLaunchInstanceDetails(
            **{
                "compartment_id": self.tenancy,
                "availability_domain": self.domain,
                "shape": shape,
                "metadata": {"ssh_authorized_keys": "ssh-ed25519 AAAA one"},
                "create_vnic_details": models.InstanceConfigurationCreateVnicDetails(assign_public_ip=False),
                "source_details": models.InstanceConfigurationInstanceSourceViaImageDetails(image_id=self.image().id),
                **more,
            }
        )
        details = models.CreateInstanceConfigurationDetails(
            compartment_id=more.get("compartment_id", self.tenancy),
            display_name="pool",
            instance_details=models.ComputeInstanceDetails(launch_details=launch),
        )
        return self.management.create_instance_configuration(details).data

    def cluster_network(self, configuration: Any, subnet: Any, size: int, name: str = "compute") -> Any:
        import oci

        models = oci.core.models
        details = models.CreateClusterNetworkDetails(
            compartment_id=self.tenancy,
            display_name="rdma",
            instance_pools=[
                models.CreateClusterNetworkInstancePoolDetails(
                    display_name=name, instance_configuration_id=configuration.id, size=size
                )
            ],
            placement_configuration=models.ClusterNetworkPlacementConfigurationDetails(
                availability_domain=self.domain, primary_subnet_id=subnet.id
            ),
        )
        return self.management.create_cluster_network(details).data

    def members(self, cluster_network_id: str) -> list[Any]:
        return list(self.management.list_cluster_network_instances(self.tenancy, cluster_network_id).data)

    def wait(self, get: Callable[[str], Any], ocid: str, state: str, patience: float = PATIENCE_S) -> Any:
        """The resource, once it is in this state."""
        seen: list[Any] = []

        def found() -> Any:
            seen[:] = [get(ocid).data]
            return seen[0] if seen[0].lifecycle_state == state else None

        return wait_for(f"{ocid} is {state}", found, patience=patience, interval=0.02, state=lambda: seen)


@contextmanager
def running(home: Path, engine: str = "null", contents: Contents = DEBIAN_13) -> Iterator[Api]:
    """A server. At the end it is always stopped, and nothing of its home continues to run.

    Args:
        contents: with podman, of the image that is launched.
    """
    if engine == "podman":
        # If the first launch built it, that launch would exceed its timeout.
        ensure_image(image_home(), contents=contents)
    api = Api(home, engine)
    try:
        yield api
    finally:
        control.stop(home)
        if engine == "process":
            ProcessEngine(home).end_all()
        if engine == "podman":
            label = f"{LABEL_HOME}={home}"
            for container in containers.listing(label):
                containers.terminate(container.name, home=home)
            for network in containers.networks(label):
                containers.remove_network(network)
            link_local.set_paths(home, {})


@contextmanager
def refused(status: int, code: str) -> Iterator[list[str]]:
    """The block must fail with this status and code; the list gets the message."""
    import oci
    import pytest

    said: list[str] = []
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        yield said
    said.append(str(caught.value.message))
    assert (caught.value.status, caught.value.code) == (status, code), caught.value.message


def make_host_namespace(api: Api) -> None:
    """Make the tag namespace by which bad hosts are reported, as an administrator of the tenancy does once."""
    from oci.identity import models

    space = models.CreateTagNamespaceDetails(compartment_id=api.tenancy, name=HOST_ACTIONS, description="bad hosts")
    namespace = api.identity.create_tag_namespace(space).data
    api.identity.create_tag(namespace.id, models.CreateTagDetails(name=HOST_STATUS, description="status"))
