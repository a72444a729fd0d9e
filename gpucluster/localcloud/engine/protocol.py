"""The interface between the API and what runs the instances."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from gpucluster.localcloud.image.contents import Contents

LABEL_HOME = "gpucluster.home"
LABEL_OCID = "gpucluster.ocid"


def mac_address(ip: str) -> str:
    """The hardware address of the instance that has this private address.

    It is derived from the address. So a restarted or recreated instance with the same address is reachable at once:
    its peers keep the earlier instance's hardware address in their tables for half a minute.
    """
    return "02:00:" + ":".join(f"{int(octet):02x}" for octet in ip.split("."))


@dataclass(frozen=True)
class LaunchRequest:
    """One instance to start.

    Args:
        name: the engine's name for the instance, unique on this host.
        hostname: short name.
        image: a name that the engine knows.
        network: a network made by `create_network`; `ip` is an IPv4 address in it.
        user_data: decoded, for cloud-init; `metadata`: any JSON object.
        ssh_authorized_keys: for the default user.
        labels: to find the instance by; "gpucluster.ocid" is also its id for cloud-init.
        exports_dir: the shares of this network.
        login_user: the default user; empty for the image's own.
        domain: of the subnet, in which the instance looks for short names; empty: it looks nowhere.
        name_server: the address that the instance asks for names; empty: it asks those of this host.
        hosts: further names that the instance knows, by address.
        trusted_ca: a file with the certificate of the API, which the instance sees as /run/localcloud/ca.pem.
        folders: folders of this host by the path where the instance sees them, and can't write; `writable_folders`:
            those that it can write.
        devices: of this host, as the engine names them.
    """

    name: str
    hostname: str
    image: str
    network: str
    ip: str
    user_data: bytes | None
    metadata: Mapping[str, Any]
    ssh_authorized_keys: tuple[str, ...]
    labels: Mapping[str, str]
    exports_dir: Path
    login_user: str = field(default="", kw_only=True)
    domain: str = field(default="", kw_only=True)
    name_server: str = field(default="", kw_only=True)
    hosts: Mapping[str, Sequence[str]] = field(default_factory=dict, kw_only=True)
    trusted_ca: Path | None = field(default=None, kw_only=True)
    folders: Mapping[str, Path] = field(default_factory=dict, kw_only=True)
    writable_folders: Mapping[str, Path] = field(default_factory=dict, kw_only=True)
    devices: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class NetworkListeners:
    """Where this host listens for the instances of a network.

    Args:
        gateway: the address of this host in the network.
        metadata_port: of the metadata service, which instances ask at 169.254.169.254 port 80.
        api_port: of the API with TLS, which instances ask at the gateway's port 443.
        udp_name_port, tcp_name_port: of the name server, which instances ask at 169.254.169.254.
        vcn: whose network it is; networks of one VCN reach each other. Empty: no other network is of the same.
    """

    gateway: str
    metadata_port: int
    api_port: int
    udp_name_port: int
    tcp_name_port: int
    vcn: str = ""


class RunState(StrEnum):
    """Whether the engine runs an instance; ABSENT if it does not know it."""

    RUNNING = "running"
    STOPPED = "stopped"
    ABSENT = "absent"


@dataclass(frozen=True)
class EngineInstance:
    """An instance that the engine has; `ocid` comes from its label."""

    name: str
    state: RunState
    ocid: str


class Engine(Protocol):
    """Starts and ends instances. Every call blocks until it is done, and raises GpuClusterError if it fails.

    Attributes:
        workers: number of launches and terminations at the same time.
        networked: instances have networks of their own, from which they reach this host.
    """

    workers: int
    networked: bool

    def boot_seconds(self) -> float:
        """How long an instance is PROVISIONING before `launch` is called."""

    def problems(self) -> list[str]:
        """Why this host can't run instances, each problem with its fix; empty if it can."""

    def platform_image(self, contents: Contents) -> str:
        """The engine's name for the base image with these contents."""

    def create_network(self, name: str, cidr: str, labels: Mapping[str, str]) -> None:
        """Create a network. Accepts an existing one of that name."""

    def remove_network(self, name: str) -> None:
        """Remove a network. Does nothing if it is gone."""

    def networks(self) -> list[str]:
        """Names of the networks of this home."""

    def serve_networks(self, listeners: Mapping[str, NetworkListeners]) -> None:
        """Lead the instances of each network to its listeners, in place of the earlier ones of this home.

        Only an engine that is `networked` is asked to.
        """

    def launch(self, request: LaunchRequest) -> None:
        """Create and boot an instance. Replaces a leftover of the same name."""

    def start(self, name: str) -> None:
        """Boot a stopped instance."""

    def event_command(self) -> list[str]:
        """What prints a line for each instance of this home that ends, until it is ended; empty if nothing does."""

    def rebooted(self, event: str) -> str:
        """The OCID of the instance that has rebooted itself, by such a line; empty if none has."""

    def stop(self, name: str) -> None:
        """Shut an instance down and keep its disk."""

    def terminate(self, name: str) -> None:
        """Remove an instance and its disk. Does nothing if it is gone."""

    def state(self, name: str) -> RunState:
        """Whether an instance runs."""

    def instances(self) -> list[EngineInstance]:
        """All instances of this home."""

    def states(self) -> Mapping[str, RunState] | None:
        """The state of every instance of this home by name, in one cheap call; None if the engine has no such call."""

    def devices_in_use(self) -> Collection[str]:
        """The `LaunchRequest.devices` of all instances on this host, also of those of other homes."""

    def attach_volume(self, name: str, device: str, file: Path) -> None:
        """Let an instance see a file of this machine as a block device. Does nothing if it does already."""

    def detach_volume(self, name: str, device: str, file: Path) -> None:
        """Take a volume from an instance that may be gone. Does nothing if it is not attached."""

    def commit(self, name: str, image: str) -> None:
        """Make an image of an instance's disk."""

    def remove_image(self, image: str) -> None:
        """Remove an image. Does nothing if it is gone."""

    def set_writable(self, share: Path, *, writable: bool) -> None:
        """Let instances write into a directory of `exports_dir`, or not, where they have mounted it already."""

    def console(self, name: str) -> bytes:
        """The console output of an instance; empty if it is gone."""
