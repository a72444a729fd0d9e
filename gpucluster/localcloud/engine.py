"""What the API needs of whatever runs the instances: `machines` (Podman) in earnest, `NullEngine` in tests."""

from __future__ import annotations

import json
import os
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
class Launch:
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
class Machine:
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

    def launch(self, request: Launch) -> None:
        """Create and boot a machine, replacing a leftover of the same name."""

    def start(self, name: str) -> None:
        """Boot a stopped machine."""

    def stop(self, name: str) -> None:
        """Shut a machine down; its disk stays."""

    def terminate(self, name: str) -> None:
        """Remove a machine and its disk; one that is gone is fine."""

    def state(self, name: str) -> str:
        """One of running, stopped and absent."""

    def machines(self) -> list[Machine]:
        """All machines of this home."""

    def commit(self, name: str, image: str) -> None:
        """Make an image of a machine's disk."""

    def remove_image(self, image: str) -> None:
        """Remove an image; one that is gone is fine."""

    def console(self, name: str) -> bytes:
        """What the machine has written to its console; empty if it is gone."""


@dataclass
class NullEngine:
    """A test double that launches nothing: it keeps one small file per machine and network under `root`.

    For tests of the API alone (`--engine null`); nothing answers at the addresses of its instances.
    """

    root: Path
    image: str = "null/debian:13"
    workers = 4

    def __post_init__(self) -> None:
        for folder in ("machines", "networks", "images"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)

    def boot_seconds(self) -> float:
        """At once."""
        return 0.0

    def problems(self) -> list[str]:
        """Never any."""
        return []

    def platform_image(self) -> str:
        """A name that stands for nothing."""
        return self.image

    def create_network(self, name: str, cidr: str, labels: Mapping[str, str]) -> None:
        """Write it down."""
        _write(self.root / "networks" / name, {"cidr": cidr, **labels})

    def remove_network(self, name: str) -> None:
        """Forget it."""
        (self.root / "networks" / name).unlink(missing_ok=True)

    def networks(self) -> list[str]:
        """Those written down."""
        return sorted(path.name for path in _records(self.root / "networks"))

    def launch(self, request: Launch) -> None:
        """Write it down as running."""
        _write(
            self.root / "machines" / request.name,
            {"state": "running", "ocid": request.labels[LABEL_OCID], "ip": request.ip, "hostname": request.hostname},
        )

    def start(self, name: str) -> None:
        """Write it down as running."""
        self._set(name, "running")

    def stop(self, name: str) -> None:
        """Write it down as stopped."""
        self._set(name, "stopped")

    def terminate(self, name: str) -> None:
        """Forget it."""
        (self.root / "machines" / name).unlink(missing_ok=True)

    def state(self, name: str) -> str:
        """What was written down."""
        path = self.root / "machines" / name
        return str(json.loads(path.read_text())["state"]) if path.exists() else "absent"

    def machines(self) -> list[Machine]:
        """Those written down."""
        found = []
        for path in _records(self.root / "machines"):
            record = json.loads(path.read_text())
            found.append(Machine(path.name, record["state"], record["ocid"]))
        return found

    def commit(self, name: str, image: str) -> None:
        """Write it down."""
        _write(self.root / "images" / image.replace("/", "_"), {"of": name})

    def remove_image(self, image: str) -> None:
        """Forget it."""
        (self.root / "images" / image.replace("/", "_")).unlink(missing_ok=True)

    def console(self, name: str) -> bytes:
        """One line."""
        return f"{name} is {self.state(name)}\n".encode()

    def _set(self, name: str, state: str) -> None:
        path = self.root / "machines" / name
        _write(path, {**json.loads(path.read_text()), "state": state})


def _records(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _write(path: Path, record: Mapping[str, Any]) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(dict(record)))
    os.replace(part, path)
