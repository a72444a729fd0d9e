"""The engine of real clusters: instances are Podman containers (see containers.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpucluster.localcloud.engine import containers, link_local, shares, volumes
from gpucluster.localcloud.engine.protocol import (
    LABEL_HOME,
    LABEL_OCID,
    EngineInstance,
    LaunchRequest,
    NetworkListeners,
    RunState,
)
from gpucluster.localcloud.image import base_image
from gpucluster.localcloud.image.contents import Contents, all_contents, folder_of
from gpucluster.localcloud.podman.command import devices_in_containers, probe


@dataclass
class PodmanEngine:
    """The containers and networks of one home, which have a label with its path."""

    home: Path
    # A starting container mostly waits for the disk and for systemd.
    workers = 4
    networked = True

    @property
    def _label(self) -> str:
        return f"{LABEL_HOME}={self.home}"

    def boot_seconds(self) -> float:
        """None: the container itself needs time to boot."""
        return 0.0

    def problems(self) -> list[str]:
        """What keeps this host from running containers."""
        return probe()

    def platform_image(self, contents: Contents) -> str:
        """The name of a base image. A launch builds the image if it is missing."""
        return base_image.reference(contents)

    def create_network(self, name: str, cidr: str, labels: Mapping[str, str]) -> None:
        """Create a Podman network."""
        containers.create_network(name, cidr, labels)

    def remove_network(self, name: str) -> None:
        """Remove a Podman network."""
        containers.remove_network(name)

    def networks(self) -> list[str]:
        """The networks with the label of this home."""
        return containers.networks(self._label)

    def serve_networks(self, listeners: Mapping[str, NetworkListeners]) -> None:
        """Make rules of the packet filter for the bridges of these networks."""
        link_local.set_paths(self.home, {containers.bridge(name): endpoints for name, endpoints in listeners.items()})

    def launch(self, request: LaunchRequest) -> None:
        """Start a container that boots systemd."""
        for contents in all_contents(folder_of(self.home)):
            if request.image == base_image.reference(contents):
                base_image.ensure_image(self.home, contents=contents)
        containers.launch(containers.ContainerLaunch(**vars(request), home=self.home))

    def start(self, name: str) -> None:
        """Boot a stopped container."""
        containers.start(name)

    def event_command(self) -> list[str]:
        """Podman's events: one object of JSON in a line, for each container of this home that ends."""
        filters = [f"--filter={each}" for each in ("type=container", "event=died", f"label={self._label}")]
        return ["podman", "events", "--stream", "--format=json", *filters]

    def rebooted(self, event: str) -> str:
        """By the status that a container ends with."""
        return containers.rebooted(event)

    def stop(self, name: str) -> None:
        """Shut a container down."""
        containers.stop(name)

    def terminate(self, name: str) -> None:
        """Remove a container, and the files of its launch in the home."""
        containers.terminate(name, home=self.home)

    def state(self, name: str) -> RunState:
        """The state that Podman reports."""
        return containers.state(name)

    def instances(self) -> list[EngineInstance]:
        """The containers with the label of this home."""
        entries = containers.listing(self._label)
        return [EngineInstance(entry.name, entry.state, entry.labels[LABEL_OCID]) for entry in entries]

    def states(self) -> Mapping[str, RunState]:
        """The states that Podman lists."""
        return {entry.name: entry.state for entry in containers.listing(self._label)}

    def devices_in_use(self) -> list[str]:
        """Those that labels of containers name."""
        return devices_in_containers()

    def attach_volume(self, name: str, device: str, file: Path) -> None:
        """Make a loop device, and its node in the container."""
        volumes.attach(name, device, file, running=containers.state(name) == RunState.RUNNING)

    def detach_volume(self, name: str, device: str, file: Path) -> None:
        """Remove the loop device."""
        volumes.detach(name, device, running=containers.state(name) == RunState.RUNNING)

    def commit(self, name: str, image: str) -> None:
        """Make an image of a container's disk."""
        containers.commit(name, image)

    def remove_image(self, image: str) -> None:
        """Remove an image."""
        containers.remove_image(image)

    def set_writable(self, share: Path, *, writable: bool) -> None:
        """Change the mounts of all instances."""
        shares.set_writable(share, writable=writable)

    def console(self, name: str) -> bytes:
        """The output of init, and the end of the journal."""
        return containers.console(name)
