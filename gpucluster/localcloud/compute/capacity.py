"""Free hosts of a shape (unlimited, unless a fault limits them), which of them a launch gets, and capacity
reservations.

Without a limit each launch gets a host that no instance had before. With one, the host that was given back last comes
again, as it does in a pool of dedicated capacity.
"""

from __future__ import annotations

import secrets

from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.faults import OUT_OF_CAPACITY
from gpucluster.localcloud.state.store import Json
from gpucluster.localcloud.state.wire import ApiError, invalid

RESERVATION = "capacityreservation"
#: The member of an instance's hidden row: the id of its host, as the metadata service reports it.
HOST = "host"
# How many instances that are gone are searched for a host that was given back.
_REMEMBERED = 100


def free_hosts(cloud: CloudState, shape: str, domain: str) -> int | None:
    """The number of free hosts of a shape in an availability domain; None if there is no limit.

    An instance uses its host until it is TERMINATED.
    """
    left = []
    for number, in_domain in cloud.faults.hosts(shape, domain):
        where: dict[str, object] = {"shape": shape, **({"availabilityDomain": domain} if in_domain else {})}
        left.append(max(0, number - cloud.store.count("instance", where)))
    return min(left, default=None)


def check_host_free(cloud: CloudState, shape: str, domain: str) -> None:
    """Raise OCI's error if no host is free for a launch; call this in the transaction of the launch."""
    if free_hosts(cloud, shape, domain) == 0:
        raise ApiError(500, "InternalError", OUT_OF_CAPACITY)


def host_of_launch(cloud: CloudState, shape: str, domain: str) -> str:
    """The id of the host that a launch gets; call this in its transaction, after `check_host_free`. The form of ids is
    not documented; here it is a number in hexadecimal."""
    where: dict[str, object] = {"shape": shape, "availabilityDomain": domain}
    if free_hosts(cloud, shape, domain) is not None:
        taken = {row.hidden.get(HOST) for row in cloud.store.find("instance", shape=shape, availabilityDomain=domain)}
        earlier = cloud.store.newest("instance", where, {}, before=None, limit=len(taken) + _REMEMBERED)
        back = (host for row in earlier if (host := row.hidden.get(HOST)) and host not in taken)
        if host := next(back, None):
            return str(host)
    return secrets.token_hex(32)


def reserved_in_use(cloud: CloudState, reservation: str, shape: str) -> int:
    """The number of instances of a shape in a reservation."""
    return cloud.store.count("instance", {"capacityReservationId": reservation, "shape": shape})


def check_reserved(cloud: CloudState, details: Json) -> None:
    """Check the reservation of a launch: it must exist, be in the same domain, and have capacity for the shape."""
    reservation = details.get("capacityReservationId")
    if not reservation:
        return
    row = cloud.related(RESERVATION, reservation)
    if row.body["availabilityDomain"] != details["availabilityDomain"]:
        raise invalid(f"Capacity reservation {row.id} is in another availability domain than the instance")
    shape = details["shape"]
    reserved = sum(
        config["reservedCount"] for config in row.body["instanceReservationConfigs"] if config["instanceShape"] == shape
    )
    if not reserved:
        raise invalid(f"Capacity reservation {row.id} has no capacity for shape {shape}")
    if reserved_in_use(cloud, row.id, shape) >= reserved:
        raise ApiError(500, "InternalError", OUT_OF_CAPACITY)
