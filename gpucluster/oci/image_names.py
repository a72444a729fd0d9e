"""What the name of an image contains: its operating system, its architecture, and what is installed on it.

Oracle's names are systematic, and for a version of a marketplace listing the name is all that the API tells about its
contents. Sources of the names: Oracle's pages of platform images (docs.oracle.com/iaas/images), the versions of the
listings and the images to import in oracle-quickstart/oci-hpc 3.1 (variables.tf, documentation/Prerequisites.md).

    Oracle-Linux-9.7-2026.06.15-0                        platform image
    Oracle-Linux-9.7-aarch64-2026.06.15-0                the same for Arm
    Oracle-Linux-9.7-Gen2-GPU-2026.06.15-0               the same with NVIDIA's driver
    Oracle-Linux-8.10-2025.06.17-0-RHCK-OFED-24.10-1.1.4.0-GPU-570-OPEN-CUDA-12.8-2025.07.18-0     version of a listing
    Canonical-Ubuntu-24.04-2026.02.28-0-6.8-DOCA-OFED-3.2.1-GPU-580-OPEN-CUDA-13.0-2026.03.13-0    to import
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# By the operating system, as OCI's list of images names it.
_SYSTEMS = {
    "Oracle Linux": re.compile(r"^Oracle-?Linux-(\d+)(?![\w])", re.IGNORECASE),
    "Canonical Ubuntu": re.compile(r"^(?:Canonical-)?Ubuntu-(\d+\.\d+)(?!\.\d)", re.IGNORECASE),
    "Debian": re.compile(r"^Debian-(\d+)(?![\w])", re.IGNORECASE),
}
_BUILD = re.compile(r"-(\d{4})\.(\d{2})\.(\d{2})-\d+$")
_RDMA = re.compile(r"OFED", re.IGNORECASE)
_NVIDIA = re.compile(r"-GPU-|-CUDA-", re.IGNORECASE)
# Valid in Python and in Terraform (RE2), which gets it for the versions of a listing.
_AMD = r"(?i)-(AMD|ROCM)-"
_ARM = re.compile(r"-aarch64(-|$)", re.IGNORECASE)
_WILDCARD = "*"


@dataclass(frozen=True)
class NameParts:
    """What a name contains. A name that a user typed may contain nothing: then everything is empty or False.

    Args:
        operating_system, version: as OCI's list of images has them; empty if the name does not begin with them.
        build: the date of a build, such as 2025-02-28; empty without one.
        rdma: it has the RDMA stack (OFED).
        nvidia, amd: it has the driver of these GPUs.
        aarch64: it is for Arm.
    """

    operating_system: str
    version: str
    build: str
    rdma: bool
    nvidia: bool
    amd: bool
    aarch64: bool

    @property
    def says_contents(self) -> bool:
        """Whether the name follows Oracle's pattern, so that what it does not name is not there."""
        return bool(self.operating_system and self.build)


def parse(name: str) -> NameParts:
    """The parts of an image's name."""
    system = version = ""
    for candidate, pattern in _SYSTEMS.items():
        if match := pattern.search(name):
            system, version = candidate, match[1]
    date = _BUILD.search(name)
    amd = bool(re.search(_AMD, name))
    return NameParts(
        system,
        version,
        "-".join(date.groups()) if date else "",
        rdma=bool(_RDMA.search(name)),
        nvidia=bool(_NVIDIA.search(name)) and not amd,
        amd=amd,
        aarch64=bool(_ARM.search(name)),
    )


@dataclass(frozen=True)
class VersionFilter:
    """Which versions of a listing a machine may have. One listing has NVIDIA and AMD versions beside each other.

    Args:
        name: the filter in one word, the same for machines that share a version.
        matching, excluding: regular expressions for Python and RE2: a version fits if all of the first and none of the
            second match.
    """

    name: str
    matching: tuple[str, ...]
    excluding: tuple[str, ...]

    def fits(self, version: str) -> bool:
        """Whether a machine may have the version."""
        return _all(self.matching, version) and not any(re.search(pattern, version) for pattern in self.excluding)


def _all(patterns: Iterable[str], version: str) -> bool:
    return all(re.search(pattern, version) for pattern in patterns)


def version_filter(pattern: str | None, *, amd: bool) -> VersionFilter:
    """The filter for one machine.

    Args:
        pattern: a version, or a pattern with `*` for any text; None: any.
        amd: its shape has AMD GPUs. Without GPUs NVIDIA's versions are taken.
    """
    parts = [] if pattern is None else [re.escape(part) for part in pattern.split(_WILDCARD)]
    matching = ["^" + ".*".join(parts) + "$"] if parts else []
    name = (pattern or "newest") + (" amd" if amd else "")
    return VersionFilter(name, (*matching, *([_AMD] if amd else [])), () if amd else (_AMD,))
