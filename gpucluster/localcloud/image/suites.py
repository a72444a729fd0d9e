"""The releases of Debian and Ubuntu that a base image can be made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Suite:
    """One release of a distribution (docs: wiki.debian.org/DebianReleases, wiki.ubuntu.com/Releases).

    Args:
        name: the code name, "trixie".
        distribution: "Debian" or "Ubuntu".
        version: "13", "24.04".
    """

    name: str
    distribution: str
    version: str

    @property
    def system(self) -> str:
        """For messages: "Debian 13"."""
        return f"{self.distribution} {self.version}"

    @property
    def operating_system(self) -> str:
        """As OCI's list of images names it."""
        return "Canonical Ubuntu" if self.distribution == "Ubuntu" else self.distribution

    @property
    def label(self) -> str:
        """For names of files and container images: "debian13"."""
        return f"{self.distribution.lower()}{self.version}"

    @property
    def components(self) -> str:
        """The parts of the archive that have the packages. Ubuntu has Slurm and most of the others in universe."""
        return "main universe" if self.distribution == "Ubuntu" else "main"


SUITES = {
    suite.name: suite
    for suite in (
        Suite("bullseye", "Debian", "11"),
        Suite("bookworm", "Debian", "12"),
        Suite("trixie", "Debian", "13"),
        Suite("forky", "Debian", "14"),
        Suite("focal", "Ubuntu", "20.04"),
        Suite("jammy", "Ubuntu", "22.04"),
        Suite("noble", "Ubuntu", "24.04"),
    )
}
