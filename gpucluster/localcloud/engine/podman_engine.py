"""The engine in earnest: what the API asks of an engine, said to `machines` (Podman)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpucluster.localcloud.engine import containers
from gpucluster.localcloud.engine.protocol import LABEL_HOME, LABEL_OCID, EngineInstance, LaunchRequest
from gpucluster.localcloud.image import base_image
from gpucluster.localcloud.podman.command import probe


@dataclass
class PodmanEngine:
    """The machines and networks of one home, told apart from others' by the label with its path."""

    home: Path
    # Starting containers is mostly waiting for the disk and for systemd.
    workers = 4

    @property
    def _label(self) -> str:
        return f"{LABEL_HOME}={self.home}"

    def boot_seconds(self) -> float:
        """At once: booting takes its own time."""
        return 0.0

    def problems(self) -> list[str]:
        """What `machines` finds wrong with this host."""
        return probe()

    def platform_image(self) -> str:
        """The name of the base image, which need not be there yet: a launch makes it where it is missing."""
        return base_image.reference()

    def create_network(self, name: str, cidr: str, labels: Mapping[str, str]) -> None:
        """A Podman network."""
        containers.create_network(name, cidr, labels)

    def remove_network(self, name: str) -> None:
        """Its end."""
        containers.remove_network(name)

    def networks(self) -> list[str]:
        """By the label of this home."""
        return containers.networks(self._label)

    def launch(self, request: LaunchRequest) -> None:
        """A container that boots systemd."""
        if request.image == self.platform_image():
            base_image.ensure_image(self.home)
        containers.launch(containers.ContainerLaunch(**vars(request), home=self.home))

    def start(self, name: str) -> None:
        """Boot again."""
        containers.start(name)

    def stop(self, name: str) -> None:
        """Shut down."""
        containers.stop(name)

    def terminate(self, name: str) -> None:
        """Remove, with what its launch left in the home."""
        containers.terminate(name, home=self.home)

    def state(self, name: str) -> str:
        """As Podman sees it."""
        return containers.state(name)

    def instances(self) -> list[EngineInstance]:
        """By the label of this home."""
        return [EngineInstance(one.name, one.state, one.labels[LABEL_OCID]) for one in containers.listing(self._label)]

    def commit(self, name: str, image: str) -> None:
        """An image of a container's disk."""
        containers.commit(name, image)

    def remove_image(self, image: str) -> None:
        """Its end."""
        containers.remove_image(image)

    def console(self, name: str) -> bytes:
        """What init wrote, and the end of the journal."""
        return containers.console(name)
