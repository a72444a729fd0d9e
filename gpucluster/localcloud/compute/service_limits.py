"""Service limits and compartment quotas: large by default, and what `<home>/limits.json` says.

    {"limits": {"gpu4-count": 16, "standard-e5-core-count": {"local:LOCAL-1-AD-1": 4}},
     "quotas": {"gpu4-count": 8}}

A value is a number, or numbers by availability domain. Names are OCI's; one that is not known fails every request that
asks, as a test must not pass by a typo. A quota holds for the whole tenancy, each availability domain by itself. The
file is read at every request, so it may change while the server runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from gpucluster import shapes
from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.region import AVAILABILITY_DOMAINS
from gpucluster.localcloud.state.store import Json
from gpucluster.localcloud.state.wire import ApiError

LARGE = 100_000
COMPUTE = "compute"
_FILE = "limits.json"
# The limits on a number of things: service, limit, kind of the rows, whether each availability domain has its own.
_COUNTS = (
    ("vcn", "vcn-count", "vcn", False),
    ("filesystem", "file-system-count", "filesystem", True),
    ("filesystem", "mount-target-count", "mounttarget", True),
    ("bastion", "bastion-count", "bastion", False),
)
SERVICES: Mapping[str, str] = {
    COMPUTE: "Compute",
    "block-storage": "Block Volume",
    "vcn": "Virtual Cloud Network",
    "filesystem": "File Storage",
    "bastion": "Bastion",
}
_VOLUMES = "total-storage-gb"


@dataclass(frozen=True)
class ServiceLimit:
    """One limit. `used` counts what uses it, in an availability domain ("" for the whole region)."""

    service: str
    name: str
    description: str
    by_domain: bool
    used: Callable[[CloudState, str], float]

    @property
    def domains(self) -> tuple[str, ...]:
        """The availability domains that it has a value for, or "" alone."""
        return AVAILABILITY_DOMAINS if self.by_domain else ("",)


@cache
def known() -> Mapping[str, ServiceLimit]:
    """Every limit by its name."""
    found = [
        ServiceLimit(COMPUTE, name, f"Compute limit {name}", True, partial(_used_by_instances, name=name))
        for name in dict.fromkeys(name for shape in shapes.catalogue().values() for name in names_of(shape))
    ]
    found += [
        ServiceLimit(service, name, f"Number of {kind}s", by_domain, partial(_number, kind=kind))
        for service, name, kind, by_domain in _COUNTS
    ]
    found.append(ServiceLimit("block-storage", _VOLUMES, "Size of all volumes in GB", True, _volume_gb))
    return {limit.name: limit for limit in found}


def names_of(shape: shapes.Shape) -> list[str]:
    """The limits that an instance of a shape uses."""
    return [name for name in (shape.limit_name, shape.memory_limit_name) if name]


def value(cloud: CloudState, limit: ServiceLimit, domain: str) -> int:
    """The limit's value."""
    return _value(_read(cloud)["limits"].get(limit.name), domain, LARGE)


def quota(cloud: CloudState, limit: ServiceLimit, domain: str) -> int | None:
    """The quota's value; None if there is none."""
    wish = _read(cloud)["quotas"].get(limit.name)
    return None if wish is None else _value(wish, domain, LARGE)


def quotas(cloud: CloudState) -> Mapping[str, Any]:
    """The quotas as they are in the file."""
    quotas: Mapping[str, Any] = _read(cloud)["quotas"]
    return quotas


def take(cloud: CloudState, wanted: Mapping[str, float], domain: str) -> None:
    """Refuse what would go beyond a limit or a quota; call it in the transaction of the create.

    Args:
        wanted: how much more of each limit is wanted, by its name.
    """
    over = [name for name, more in wanted.items() if _beyond(cloud, name, more, domain, value)]
    if over:
        raise ApiError(
            400,
            "LimitExceeded",
            f"The following service limits were exceeded: {', '.join(over)}."
            " Request a service limit increase from the service limits page in the console.",
        )
    over = [name for name, more in wanted.items() if _beyond(cloud, name, more, domain, quota)]
    if over:
        raise ApiError(400, "QuotaExceeded", f"The following compartment quotas were exceeded: {', '.join(over)}.")


def take_one(cloud: CloudState, kind: str, domain: str) -> None:
    """The same for one more thing of a kind."""
    take(cloud, {name: 1 for _, name, counted, _ in _COUNTS if counted == kind}, domain)


def wanted_by(shape: shapes.Shape, config: Json, boot_gb: int) -> dict[str, float]:
    """How much of each limit one instance uses.

    Args:
        config: its shapeConfig, with ocpus and memoryInGBs.
    """
    wanted = {shape.limit_name: shape.limit_use(config["ocpus"]), _VOLUMES: float(boot_gb)}
    if shape.memory_limit_name:
        wanted[shape.memory_limit_name] = float(config["memoryInGBs"])
    return wanted


def _beyond(
    cloud: CloudState, name: str, more: float, domain: str, bound: Callable[[CloudState, ServiceLimit, str], int | None]
) -> bool:
    limit = known()[name]
    where = domain if limit.by_domain else ""
    most = bound(cloud, limit, where)
    # Counting is the dear part, and nobody comes near what is large.
    return most is not None and most < LARGE and limit.used(cloud, where) + more > most


def _read(cloud: CloudState) -> dict[str, dict[str, Any]]:
    file = cloud.home / _FILE
    try:
        text = file.read_text()
    except FileNotFoundError:
        return {"limits": {}, "quotas": {}}
    try:
        content = {"limits": {}, "quotas": {}, **json.loads(text)}
        for problem in _problems(content):
            raise ValueError(problem)
    except (ValueError, TypeError, AttributeError) as error:
        raise ApiError(500, "InternalError", f"{file} does not hold limits and quotas: {error}") from error
    return content


def _problems(content: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield from (f"unknown: {name}" for name in content if name not in ("limits", "quotas"))
    for part in ("limits", "quotas"):
        for name, wish in content[part].items():
            if name not in known():
                yield f"there is no limit {name}"
            values = wish.values() if isinstance(wish, Mapping) else [wish]
            if not all(isinstance(one, int) and not isinstance(one, bool) for one in values):
                yield f"{name} is not a number, nor numbers by availability domain"
            if isinstance(wish, Mapping) and not set(wish) <= set(known()[name].domains):
                yield f"{name} has no availability domain {', '.join(set(wish) - set(known()[name].domains))}"


def _value(wish: Any, domain: str, otherwise: int) -> int:
    if isinstance(wish, Mapping):
        return int(wish.get(domain, otherwise))
    return otherwise if wish is None else int(wish)


def _used_by_instances(cloud: CloudState, domain: str, *, name: str) -> float:
    used = 0.0
    for row in cloud.store.find("instance", availabilityDomain=domain):
        shape = shapes.catalogue().get(row.body["shape"])
        if shape is not None and name in names_of(shape):
            used += wanted_by(shape, row.body["shapeConfig"], 0)[name]
    return used


def _number(cloud: CloudState, domain: str, *, kind: str) -> float:
    return float(cloud.store.count(kind, {"availabilityDomain": domain} if domain else {}))


def _volume_gb(cloud: CloudState, domain: str) -> float:
    return sum(float(row.body["sizeInGBs"]) for row in cloud.store.find("bootvolume", availabilityDomain=domain))
