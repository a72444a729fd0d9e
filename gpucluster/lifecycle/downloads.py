"""The files that hosts get from this machine, so that they need no internet: Python packages and release files."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from gpucluster import shapes
from gpucluster.artifacts import catalogue, releases, wheels
from gpucluster.cloud.providers import CloudProvider
from gpucluster.errors import InputError
from gpucluster.events import Sink
from gpucluster.spec import ClusterSpec, finding


class Downloads:
    """The files for the hosts of one cluster, fetched to this machine when they are asked for.

    Args:
        version: of the package that runs; its own wheel is among the packages.
    """

    def __init__(self, spec: ClusterSpec, cloud: CloudProvider, version: str, on_event: Sink) -> None:
        self._spec = spec
        self._cloud = cloud
        self._version = version
        self._on_event = on_event

    def wheels(self) -> Path:
        """The Python packages for the controller: it need not reach a package index.

        Raises:
            InputError: the Python version of the controller is not known.
            EnvironmentFault: packages are missing, and can't be fetched.
        """
        software, image = self._spec.software, self._spec.controller.image
        python = software.controller_python or self._cloud.python_of(image)
        if python is None:
            raise InputError(
                "the Python version of the controller is not known, because its image is not known",
                findings=[
                    finding(
                        self._spec,
                        ("controller", "image"),
                        "is an image whose Python version is not known",
                        'Add `controller_python: "3.12"` under `software:`',
                    )
                ],
            )
        target = wheels.Target(python, shapes.get(self._spec.controller.shape).architecture)
        return wheels.ensure(target, software.wheels_directory, self._version, self._on_event)

    def release_files(self) -> releases.ReleaseSet:
        """The release files for the hosts: they need not reach the projects' download pages.

        Raises:
            InputError: some are missing, or the checksum of one is not known.
            EnvironmentFault: they can't be fetched.
        """
        return self._release_files

    def versions(self) -> dict[str, str]:
        """The version of each release that the hosts need. Nothing is downloaded."""
        needed = catalogue.needed_by(self._spec, hardware_emulated=self._cloud.hardware_emulated)
        return {artifact.component: artifact.version for artifact in needed}

    @cached_property
    def _release_files(self) -> releases.ReleaseSet:
        # Only once: a mirror that does not answer would delay each caller, and warn each time.
        needed = releases.needed_by(self._spec, hardware_emulated=self._cloud.hardware_emulated)
        return releases.ensure(needed, self._spec.software.mirror_location, self._on_event)
