"""What `gpucluster drift` reports, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

#: The version of the JSON. Keys may be added; what is there keeps its meaning.
FORMAT = 1
APPLY = "gpucluster apply"


class Area(StrEnum):
    """What is compared with what."""

    #: The cloud with Terraform's state, and with the cluster's tags.
    CLOUD = "cloud"
    #: The hosts that exist, and the settings of the last apply, with cluster.yml.
    FILE = "file"
    #: Each host with what apply left there.
    HOSTS = "hosts"
    #: Slurm with its files.
    SLURM = "slurm"
    #: Users, groups and keys with cluster.yml, and with what `cluster` has written.
    DIRECTORY = "directory"
    #: Slurm's associations with the users.
    ACCOUNTS = "accounts"


@dataclass(frozen=True)
class DriftFinding:
    """One thing that differs.

    Args:
        what: the kind: resource, instance, file, package, unit, mount, node, partition, entry, ...
        where: the host, the address of the resource, or the service.
        name: of the thing: the path of a file, the attribute of a resource. Empty: it is all of `where`.
        expected: what cluster.yml, the state or the last apply has. `seen`: what is there. Neither has the content of a
            file.
        fix: the command or the step that puts it right.
    """

    area: Area
    what: str
    where: str
    name: str
    expected: str
    seen: str
    fix: str = APPLY


@dataclass(frozen=True)
class Unseen:
    """What could not be compared.

    Args:
        where: the host, or the service; empty for all of the area.
        reason: why, and what helps.
    """

    area: Area
    where: str
    reason: str


@dataclass(frozen=True)
class DriftReport:
    """What differs, and what could not be compared.

    Args:
        hosts: the hosts that were compared.
        remarks: what is left out by design, such as the files of elastic nodes.
    """

    findings: tuple[DriftFinding, ...]
    unseen: tuple[Unseen, ...] = ()
    hosts: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether everything was compared."""
        return not self.unseen

    @property
    def clean(self) -> bool:
        """Whether everything was compared, and nothing differs."""
        return self.complete and not self.findings

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "format": FORMAT,
            "drift": bool(self.findings),
            "complete": self.complete,
            "findings": [asdict(each) for each in self.findings],
            "unseen": [asdict(each) for each in self.unseen],
            "hosts": list(self.hosts),
            "remarks": list(self.remarks),
        }


def ordered(findings: Iterable[DriftFinding]) -> tuple[DriftFinding, ...]:
    """The findings without repetitions, by area, place and name."""
    areas: Mapping[Area, int] = {area: number for number, area in enumerate(Area)}
    return tuple(sorted(dict.fromkeys(findings), key=lambda each: (areas[each.area], each.where, each.what, each.name)))
