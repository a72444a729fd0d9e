"""Slurm's releases: which talk to which, which can be installed, and by which steps one becomes another.

Source of `takes` and `ends`: SchedMD's upgrade guide (https://slurm.schedmd.com/upgrades.html), as of August 2026.
The files of a release, with their checksums, are in `artifacts/catalogue.toml`. A release is named by year and month
(26.05), a version by a third number as well (26.05.5).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

#: The value of `slurm.release` for the packages of each host's own distribution.
DISTRIBUTION: Literal["distribution"] = "distribution"
#: The releases that gpucluster can build, oldest first: since 23.11 the tarball has a recipe for Debian.
Buildable = Literal["23.11", "24.11", "25.05", "25.11", "26.05"]
BUILDABLE: tuple[str, ...] = get_args(Buildable)
#: The default on OCI: the newest release. It still has cgroup v1, which nodes with Oracle Linux 8 need.
NEWEST: Buildable = "26.05"
#: The oldest release that the roles can configure.
OLDEST = "22.05"
#: The oldest release whose REST API the roles can configure: its slurmrestd takes tokens in the header Authorization,
#: states by an HTTP status of its own that a token is refused, and has the version of the API that all later ones have.
OLDEST_WITH_REST = "24.11"


@dataclass(frozen=True)
class SlurmRelease:
    """One release.

    Args:
        takes: the earlier releases whose daemons, commands, state files and database it understands.
        ends: the month in which SchedMD's support ends, as the guide has it.
    """

    number: str
    takes: tuple[str, ...]
    ends: str


_RELEASES = (
    SlurmRelease("22.05", ("21.08", "20.11"), "2023-11"),
    SlurmRelease("23.02", ("22.05", "21.08"), "2024-08"),
    SlurmRelease("23.11", ("23.02", "22.05"), "2025-05"),
    SlurmRelease("24.05", ("23.11", "23.02"), "2025-11"),
    SlurmRelease("24.11", ("24.05", "23.11", "23.02"), "2026-05"),
    SlurmRelease("25.05", ("24.11", "24.05", "23.11"), "2026-11"),
    SlurmRelease("25.11", ("25.05", "24.11", "24.05"), "2027-05"),
    SlurmRelease("26.05", ("25.11", "25.05", "24.11"), "2028-11"),
)
RELEASES: Mapping[str, SlurmRelease] = {release.number: release for release in _RELEASES}

#: The release that each system's own packages have, by the system's name in the roles (`ansible/vars/os`). Debian and
#: Ubuntu: their package archives. Oracle Linux: its build of EPEL, which is taken to have EPEL's version.
OF_SYSTEM: Mapping[str, str] = {
    "Debian-12": "22.05",
    "Debian-13": "24.11",
    "Ubuntu-22": "21.08",
    "Ubuntu-24": "23.11",
    "OracleLinux-8": "20.11",
    "OracleLinux-9": "22.05",
}


def release_of(version: str) -> str:
    """The release of a version: 26.05 of 26.05.5."""
    return ".".join(version.split(".")[:2])


def default_release(systems: Collection[str], *, prefers_distribution: bool) -> str:
    """What `slurm.release` is where cluster.yml does not set it.

    Args:
        systems: of all hosts.
        prefers_distribution: the cloud's instances have the packages of their distribution already (the local cloud):
            a quick start must not begin with a build of some minutes.

    On OCI it is one release for all: images of one cluster have different systems, whose own Slurm is too old or does
    not fit (Ubuntu 22.04, Oracle Linux), and SchedMD supports no distribution's packages.
    """
    return DISTRIBUTION if prefers_distribution and len(set(systems)) <= 1 else NEWEST


def too_different(systems: Mapping[str, str]) -> str:
    """Why hosts can't run the Slurm of their distributions together; empty if they can.

    Args:
        systems: of all hosts, by their place in cluster.yml, the controller first; an empty one is not known.
    """
    known = {place: system for place, system in systems.items() if system in OF_SYSTEM}
    for place, system in known.items():
        if OF_SYSTEM[system] < OLDEST:
            return f"{place}: {system} has Slurm {OF_SYSTEM[system]}, and the oldest that can be configured is {OLDEST}"
    if len(set(known.values())) > 1:
        listed = ", ".join(f"{place} {system} with Slurm {OF_SYSTEM[system]}" for place, system in known.items())
        return f"hosts of different systems have different releases of Slurm: {listed}"
    return ""


def talks_to(newer: str, older: str) -> bool:
    """Whether a daemon of release `newer` understands those of release `older`, which report to it."""
    known = RELEASES.get(newer)
    if newer == older:
        return True
    # Newer than this table: nothing is known of it, and it may well understand the other one.
    return older in known.takes if known else older < newer and newer > _RELEASES[-1].number


def refusals(controller: str, nodes: Mapping[str, str]) -> Iterator[str]:
    """Why hosts with these versions can't work together: one sentence for each fault, nothing if they can.

    slurmdbd and slurmctld are of one host, so they always have the same version.

    Args:
        controller: the version of slurmctld and slurmdbd.
        nodes: the versions of slurmd, by host; empty ones are not known and are left out.
    """
    own = release_of(controller)
    if own < OLDEST:
        yield f"the controller has Slurm {controller}; the oldest that can be configured is {OLDEST}"
        return
    by_version: dict[str, list[str]] = {}
    for name, version in sorted(nodes.items()):
        if version and not talks_to(own, release_of(version)):
            by_version.setdefault(version, []).append(name)
    for version, names in by_version.items():
        why = (
            "a node must not be newer than the controller"
            if release_of(version) > own
            else f"slurmctld {own} understands {', '.join(RELEASES[own].takes) if own in RELEASES else 'no older one'}"
        )
        yield f"the controller has Slurm {controller}, {', '.join(names)} {version}: {why}"


def steps(current: str, target: str) -> tuple[str, ...] | None:
    """The releases through which a cluster of release `current` becomes one of `target`; the last is `target`.

    Empty if it is of that release already. None if there is no way: Slurm does not go back to an earlier release, or
    `current` is too old.
    """
    releases: list[str] = []
    while current != target:
        reachable = [number for number in BUILDABLE if current in RELEASES[number].takes and number <= target]
        if not reachable:
            return None
        current = reachable[-1]
        releases.append(current)
    return tuple(releases)
