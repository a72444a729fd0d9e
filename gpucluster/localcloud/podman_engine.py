"""The engine in earnest: what the API asks of an engine, said to `machines` (Podman)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpucluster.localcloud import image, machines
from gpucluster.localcloud.engine import LABEL_HOME, LABEL_OCID, Launch, Machine


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
        return machines.probe()

    def platform_image(self) -> str:
        """The name of the base image, which need not be there yet: a launch makes it where it is missing."""
        return image.reference()

    def create_network(self, name: str, cidr: str, labels: Mapping[str, str]) -> None:
        """A Podman network."""
        machines.create_network(name, cidr, labels)

    def remove_network(self, name: str) -> None:
        """Its end."""
        machines.remove_network(name)

    def networks(self) -> list[str]:
        """By the label of this home."""
        return machines.networks(self._label)

    def launch(self, request: Launch) -> None:
        """A container that boots systemd."""
        if request.image == self.platform_image():
            machines.ensure_image(self.home)
        machines.launch(machines.LaunchRequest(**vars(request), home=self.home))

    def start(self, name: str) -> None:
        """Boot again."""
        machines.start(name)

    def stop(self, name: str) -> None:
        """Shut down."""
        machines.stop(name)

    def terminate(self, name: str) -> None:
        """Remove, with what its launch left in the home."""
        machines.terminate(name, home=self.home)

    def state(self, name: str) -> str:
        """As Podman sees it."""
        return machines.state(name)

    def machines(self) -> list[Machine]:
        """By the label of this home."""
        return [Machine(one.name, one.state, one.labels[LABEL_OCID]) for one in machines.listing(self._label)]

    def commit(self, name: str, image: str) -> None:
        """An image of a container's disk."""
        machines.commit(name, image)

    def remove_image(self, image: str) -> None:
        """Its end."""
        machines.remove_image(image)

    def console(self, name: str) -> bytes:
        """What init wrote, and the end of the journal."""
        return machines.console(name)
