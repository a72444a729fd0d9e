"""What the API needs of whatever runs the instances: `machines` (Podman) in earnest, `NullEngine` in tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

LABEL_HOME = "gpucluster.home"
LABEL_OCID = "gpucluster.ocid"


def mac_address(ip: str) -> str:
    """The hardware address of the instance that has this private address.

    It follows from the address, so that an instance that is started again, or made anew, at the same one is reached at
    once: whoever talked to the one before keeps its hardware address for half a minute.
    """
    return "02:00:" + ":".join(f"{int(octet):02x}" for octet in ip.split("."))


@dataclass(frozen=True)
class LaunchRequest:
    """One instance to start.

    Args:
        name: the engine's name for it, unique on this host.
        hostname: short name, which the other instances of the network can resolve.
        image: a name that the engine knows.
        network: a name that `create_network` was given; `ip` is an IPv4 address in it.
        user_data: decoded, for cloud-init; `metadata`: anything that JSON can hold.
        ssh_authorized_keys: for the default user.
        labels: what the instance is found by; "gpucluster.ocid" is also its id for cloud-init.
        exports_dir: the shares of this network.
        login_user: the default user; empty for that of the image.
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


@dataclass(frozen=True)
class EngineInstance:
    """A container as it was found. `state` is "running" or "stopped"; `ocid` is its label."""

    name: str
    state: str
    ocid: str


class Engine(Protocol):
    """Starts and ends instances. Every call blocks until it is done, and raises GpuClusterError when it can't be.

    Attributes:
        workers: how many launches and terminations are done at the same time.
    """

    workers: int

    def boot_seconds(self) -> float:
        """How long an instance is PROVISIONING before `launch` is called."""

    def problems(self) -> list[str]:
        """Why this host can't run instances, with the cure in words; empty if it can."""

    def platform_image(self) -> str:
        """The engine's name for the base image."""

    def create_network(self, name: str, cidr: str, labels: Mapping[str, str]) -> None:
        """Make a network; one of that name that exists is fine."""

    def remove_network(self, name: str) -> None:
        """Remove a network; one that is gone is fine."""

    def networks(self) -> list[str]:
        """Names of the networks of this home."""

    def launch(self, request: LaunchRequest) -> None:
        """Create and boot a machine, replacing a leftover of the same name."""

    def start(self, name: str) -> None:
        """Boot a stopped machine."""

    def stop(self, name: str) -> None:
        """Shut a machine down; its disk stays."""

    def terminate(self, name: str) -> None:
        """Remove a machine and its disk; one that is gone is fine."""

    def state(self, name: str) -> str:
        """One of running, stopped and absent."""

    def instances(self) -> list[EngineInstance]:
        """All machines of this home."""

    def commit(self, name: str, image: str) -> None:
        """Make an image of a machine's disk."""

    def remove_image(self, image: str) -> None:
        """Remove an image; one that is gone is fine."""

    def console(self, name: str) -> bytes:
        """What the machine has written to its console; empty if it is gone."""
