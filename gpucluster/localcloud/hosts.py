"""How many hosts of a shape are free: as many as anybody wants, unless a fault limits them."""

from __future__ import annotations

from gpucluster.localcloud.cloud import Cloud
from gpucluster.localcloud.faults import OUT_OF_CAPACITY
from gpucluster.localcloud.wire import ApiError


def free(cloud: Cloud, shape: str, domain: str) -> int | None:
    """The free hosts of a shape in an availability domain; None is no limit. One that ends still counts."""
    left = []
    for number, in_domain in cloud.faults.hosts(shape, domain):
        where: dict[str, object] = {"shape": shape, **({"availabilityDomain": domain} if in_domain else {})}
        left.append(max(0, number - cloud.store.count("instance", where)))
    return min(left, default=None)


def take(cloud: Cloud, shape: str, domain: str) -> None:
    """Refuse a launch that finds no host, as OCI does; call it in the transaction of the launch."""
    if free(cloud, shape, domain) == 0:
        raise ApiError(500, "InternalError", OUT_OF_CAPACITY)
