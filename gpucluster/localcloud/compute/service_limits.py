"""Service limits and compartment quotas: large by default, else the values of `<home>/limits.json`.

    {"limits": {"gpu4-count": 16, "standard-e5-core-count": {"local:LOCAL-1-AD-1": 4}},
     "quotas": {"gpu4-count": 8}}

A value is a number, or numbers by availability domain. The names are OCI's. With an unknown name every request that
reads the limits fails, because else a test could pass by a typo. A quota is for the whole tenancy, and for each
availability domain separately. The file is read at every request, so it may change while the server runs.
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
# Limits on a number of resources: service, limit, kind of the rows, whether it is per availability domain.
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
    """One limit. `used` returns the usage in an availability domain ("" for the whole region)."""

    service: str
    name: str
    description: str
    by_domain: bool
    used: Callable[[CloudState, str], float]

    @property
    def domains(self) -> tuple[str, ...]:
        """The availability domains that it has values for; only "" for a limit of the region."""
        return AVAILABILITY_DOMAINS if self.by_domain else ("",)


@cache
def all_limits() -> Mapping[str, ServiceLimit]:
    """Every limit by its name."""
    limits = [
        ServiceLimit(COMPUTE, name, f"Compute limit {name}", True, partial(_used_by_instances, name=name))
        for name in dict.fromkeys(name for shape in shapes.catalogue().values() for name in limit_names(shape))
    ]
    limits += [
        ServiceLimit(service, name, f"Number of {kind}s", by_domain, partial(_number, kind=kind))
        for service, name, kind, by_domain in _COUNTS
    ]
    limits.append(ServiceLimit("block-storage", _VOLUMES, "Size of all volumes in GB", True, _volume_gb))
    return {limit.name: limit for limit in limits}


def limit_names(shape: shapes.Shape) -> list[str]:
    """The names of the limits that apply to an instance of a shape."""
    return [name for name in (shape.limit_name, shape.memory_limit_name) if name]


def value(cloud: CloudState, limit: ServiceLimit, domain: str) -> int:
    """The limit's value."""
    return _value(_read(cloud)["limits"].get(limit.name), domain, LARGE)


def quota(cloud: CloudState, limit: ServiceLimit, domain: str) -> int | None:
    """The quota's value; None if there is none."""
    setting = _read(cloud)["quotas"].get(limit.name)
    return None if setting is None else _value(setting, domain, LARGE)


def quotas(cloud: CloudState) -> Mapping[str, Any]:
    """The quotas of the file, unchanged."""
    quotas: Mapping[str, Any] = _read(cloud)["quotas"]
    return quotas


def check(cloud: CloudState, usage: Mapping[str, float], domain: str) -> None:
    """Raise 400 if a create would exceed a limit or a quota; call this in the transaction of the create.

    Args:
        usage: the additional usage, by name of the limit.
    """
    over = [name for name, more in usage.items() if _exceeds(cloud, name, more, domain, value)]
    if over:
        raise ApiError(
            400,
            "LimitExceeded",
            f"The following service limits were exceeded: {', '.join(over)}."
            " Request a service limit increase from the service limits page in the console.",
        )
    over = [name for name, more in usage.items() if _exceeds(cloud, name, more, domain, quota)]
    if over:
        raise ApiError(400, "QuotaExceeded", f"The following compartment quotas were exceeded: {', '.join(over)}.")


def check_one_more(cloud: CloudState, kind: str, domain: str) -> None:
    """The same for one more resource of a kind."""
    check(cloud, {name: 1 for _, name, counted, _ in _COUNTS if counted == kind}, domain)


def usage_of(shape: shapes.Shape, config: Json, boot_gb: int) -> dict[str, float]:
    """The usage of one instance by name of the limit.

    Args:
        config: its shapeConfig, with ocpus and memoryInGBs.
    """
    usage = {shape.limit_name: shape.limit_use(config["ocpus"]), _VOLUMES: float(boot_gb)}
    if shape.memory_limit_name:
        usage[shape.memory_limit_name] = float(config["memoryInGBs"])
    return usage


def _exceeds(
    cloud: CloudState, name: str, more: float, domain: str, bound: Callable[[CloudState, ServiceLimit, str], int | None]
) -> bool:
    limit = all_limits()[name]
    where = domain if limit.by_domain else ""
    most = bound(cloud, limit, where)
    # Counting is expensive, so it is skipped for limits that have the large default.
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
        for name, setting in content[part].items():
            if name not in all_limits():
                yield f"there is no limit {name}"
            values = setting.values() if isinstance(setting, Mapping) else [setting]
            if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
                yield f"{name} is not a number, nor numbers by availability domain"
            if isinstance(setting, Mapping) and not set(setting) <= set(all_limits()[name].domains):
                yield f"{name} has no availability domain {', '.join(set(setting) - set(all_limits()[name].domains))}"


def _value(setting: Any, domain: str, otherwise: int) -> int:
    if isinstance(setting, Mapping):
        return int(setting.get(domain, otherwise))
    return otherwise if setting is None else int(setting)


def _used_by_instances(cloud: CloudState, domain: str, *, name: str) -> float:
    used = 0.0
    for row in cloud.store.find("instance", availabilityDomain=domain):
        shape = shapes.catalogue().get(row.body["shape"])
        if shape is not None and name in limit_names(shape):
            used += usage_of(shape, row.body["shapeConfig"], 0)[name]
    return used


def _number(cloud: CloudState, domain: str, *, kind: str) -> float:
    return float(cloud.store.count(kind, {"availabilityDomain": domain} if domain else {}))


def _volume_gb(cloud: CloudState, domain: str) -> float:
    kinds = ("bootvolume", "volume")
    rows = [row for kind in kinds for row in cloud.store.find(kind, availabilityDomain=domain)]
    return sum(float(row.body["sizeInGBs"]) for row in rows)
