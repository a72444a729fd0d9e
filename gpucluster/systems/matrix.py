"""The support matrix: which operating systems hosts may have, in which role, from which kinds of images.

Preflight, the documentation and the tests read this table; `ansible/vars/os` has one file for each row, and a test
compares the two. What is not in it is refused by preflight, which names the nearest that is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

#: `controller` is also the directory server and, without login nodes, the login host.
Role = Literal["controller", "login", "node"]
#: `platform`: by operating system and version. `listing`: of the marketplace. `custom`: imported or made by its owner,
#: such as Oracle's HPC images for Ubuntu; by OCID or by name.
ImageKind = Literal["platform", "listing", "custom"]
#: The kinds in messages.
KINDS: Mapping[ImageKind, str] = MappingProxyType(
    {"platform": "platform image", "listing": "listing of the marketplace", "custom": "custom image"}
)


@dataclass(frozen=True)
class System:
    """One operating system.

    Args:
        operating_system, version: as OCI's list of images has them.
        controller, node: the kinds of images that a host of this role may boot; empty: the role is refused. A login
            node may boot what a node may.
        refused: why a role is refused; empty if none is.
        disabled_plugins: plugins of the Oracle Cloud Agent that its hosts boot without.
    """

    operating_system: str
    version: str
    controller: tuple[ImageKind, ...]
    node: tuple[ImageKind, ...]
    refused: str = ""
    disabled_plugins: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{self.operating_system} {self.version}"

    @property
    def vars_file(self) -> str:
        """The name of its file in ansible/vars/os, and of its facts on a host: `Ubuntu-24`."""
        return f"{_DISTRIBUTIONS[self.operating_system]}-{self.version.partition('.')[0]}"

    def kinds(self, role: Role) -> tuple[ImageKind, ...]:
        """The kinds of images that a host of this role may boot."""
        return self.controller if role == "controller" else self.node


# The first word of the files in ansible/vars/os, by the name in OCI's list of images.
_DISTRIBUTIONS = {"Canonical Ubuntu": "Ubuntu", "Oracle Linux": "OracleLinux", "Debian": "Debian"}
# It may register a host with OS Management Service, which then holds the repositories that dnf would use. Oracle's
# HPC stack disables it (oracle-quickstart/oci-hpc).
_OS_MANAGEMENT = "OS Management Service Agent"
# OCI has no platform image of Debian. The local cloud has: its instances are Debian.
_DEBIAN: tuple[ImageKind, ...] = ("platform", "custom")

#: The matrix, best supported first.
SYSTEMS = (
    System("Canonical Ubuntu", "24.04", ("platform", "custom"), ("platform", "custom")),
    System("Debian", "13", _DEBIAN, _DEBIAN),
    System("Debian", "12", _DEBIAN, _DEBIAN),
    System("Oracle Linux", "9", ("platform", "custom"), ("platform", "custom")),
    System(
        "Canonical Ubuntu", "22.04", (), ("platform", "custom"),
        "the controller's daemons need Python 3.11, of which it has a release candidate only",
    ),
    System(
        "Oracle Linux", "8", (), ("platform", "listing", "custom"),
        "none of its repositories has the directory server (openldap-servers)",
        disabled_plugins=(_OS_MANAGEMENT,),
    ),
)  # fmt: skip

# Distributions that are built like one of the table.
_RELATED = re.compile(r"Oracle|Red ?Hat|RHEL|CentOS|Rocky|Alma", re.IGNORECASE)
_UBUNTU = re.compile(r"Ubuntu", re.IGNORECASE)
_DEBIAN_LIKE = re.compile(r"Ubuntu|Debian", re.IGNORECASE)


def find(operating_system: str, version: str) -> System | None:
    """The row of a system; None if the matrix does not have it. A custom image may have a minor version: `9.5`."""
    for system in SYSTEMS:
        exact = version == system.version
        minor = "." not in system.version and version.partition(".")[0] == system.version
        if operating_system == system.operating_system and (exact or minor):
            return system
    return None


def disabled_plugins(operating_system: str | None, version: str | None, *, listing: bool) -> tuple[str, ...]:
    """The plugins of the Oracle Cloud Agent that a node boots without. Of an image by OCID or name nothing is known."""
    named = None if listing else find(operating_system or "", version or "")
    systems = [system for system in SYSTEMS if (listing and "listing" in system.node) or system is named]
    return tuple(plugin for system in systems for plugin in system.disabled_plugins)


def is_distribution(operating_system: str) -> bool:
    """Whether the name is of a distribution: the owner of a custom image may have entered anything."""
    return bool(_RELATED.search(operating_system) or _DEBIAN_LIKE.search(operating_system))


def in_role(role: Role) -> Iterator[System]:
    """The systems that hosts of a role may have, best supported first."""
    return (system for system in SYSTEMS if system.kinds(role))


def nearest(operating_system: str, version: str, role: Role) -> System:
    """The nearest supported system: of the same or a related distribution, and of the nearest version."""
    family = "Oracle Linux" if _RELATED.search(operating_system) else operating_system
    family = "Canonical Ubuntu" if _UBUNTU.search(family) else family
    same = [system for system in in_role(role) if system.operating_system == family]
    if not same:
        return next(in_role(role))
    return min(same, key=lambda system: (abs(_number(system.version) - _number(version)), -_number(system.version)))


def _number(version: str) -> float:
    match = re.match(r"\d+(?:\.\d+)?", version)
    return float(match[0]) if match else 0.0


def table() -> str:
    """The matrix as a table in Markdown."""

    def images(kinds: tuple[ImageKind, ...]) -> str:
        return ", ".join(KINDS[kind] for kind in kinds)

    lines = ["| operating system | controller | login nodes, nodes |", "|---|---|---|"]
    for system in SYSTEMS:
        controller = images(system.controller) or f"no: {system.refused}"
        lines.append(f"| {system.title} | {controller} | {images(system.node)} |")
    return "\n".join(lines) + "\n"
