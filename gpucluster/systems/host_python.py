"""The Python of each system's hosts: what programs of gpucluster and Ansible's modules run with.

`host_python.sh` finds or installs it, and makes the link that everything uses (`node_agent.interpreter.PYTHON`). It
runs at the first boot, from user data, and in Ansible's first task on hosts that have no link.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from gpucluster.node_agent.interpreter import PYTHON

#: ansible-core 2.19 needs Python 3.8 on a host, 2.21 needs 3.9 (`_PY_MIN` in its module_utils/basic.py); so does the
#: agent.
OLDEST = "3.9"
#: What the autoscaler's package requires of the controller.
OLDEST_OF_AUTOSCALER = "3.11"


@dataclass(frozen=True)
class HostPython:
    """The Pythons of one system.

    Args:
        system: ID and major version of its os-release file, such as `ol-8`.
        image: operating system and version in OCI's catalogue.
        own: the version of /usr/bin/python3.
        newer: the version of the package that is installed where `own` is too old; the package is `python<newer>`.
        source: where the versions were read.
    """

    system: str
    image: tuple[str, str]
    own: str
    newer: str | None
    source: str

    @property
    def version(self) -> str | None:
        """The version of every program of gpucluster on a host, except for the autoscaler."""
        return self._at_least(OLDEST)

    @property
    def of_autoscaler(self) -> str | None:
        """The version that the autoscaler runs with, on a controller; None if the system has none for it."""
        return self._at_least(OLDEST_OF_AUTOSCALER)

    @property
    def package(self) -> str | None:
        """The package with the newer Python."""
        return f"python{self.newer}" if self.newer else None

    def _at_least(self, oldest: str) -> str | None:
        return self.newer if _numbers(self.own) < _numbers(oldest) else self.own


_RED_HAT = "docs.redhat.com, Installing and using dynamic programming languages; developers.redhat.com of 2025-03-13, "
_RED_HAT += "How RHEL provides secure and stable Python streams"
#: Python 3.12 and not 3.11, which Oracle Linux has as well: it is the Python of Enterprise Linux 10.
PYTHONS = (
    HostPython("debian-12", ("Debian", "12"), "3.11", None, "packages.debian.org"),
    HostPython("debian-13", ("Debian", "13"), "3.13", None, "packages.debian.org"),
    # Its 3.11 is a release candidate.
    HostPython("ubuntu-22", ("Canonical Ubuntu", "22.04"), "3.10", None, "packages.ubuntu.com"),
    HostPython("ubuntu-24", ("Canonical Ubuntu", "24.04"), "3.12", None, "packages.ubuntu.com"),
    HostPython("ol-8", ("Oracle Linux", "8"), "3.6", "3.12", _RED_HAT),
    HostPython("ol-9", ("Oracle Linux", "9"), "3.9", "3.12", _RED_HAT),
)


def of_image(operating_system: str | None, version: str | None) -> HostPython | None:
    """The Pythons of an image, by its operating system and version in OCI's catalogue; None if they are not known.

    The version may be longer than the table's: Oracle Linux 9.7 is 9.
    """
    system = (operating_system or "", version or "")
    shorter = (system[0], system[1].partition(".")[0])
    return next((python for python in PYTHONS if python.image in (system, shorter)), None)


def arguments() -> list[str]:
    """The arguments of the script: the link, the oldest version that will do, and each system's package."""
    return [PYTHON, OLDEST, *(f"{python.system}={python.package}" for python in PYTHONS if python.package)]


def script() -> str:
    """The text of the script, for `sh`."""
    return resources.files("gpucluster.systems").joinpath("host_python.sh").read_text(encoding="utf-8")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
