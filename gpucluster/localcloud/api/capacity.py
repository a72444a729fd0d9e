"""Capacity reservations: hosts of a shape that are kept for the instances that name the reservation."""

from __future__ import annotations

from gpucluster.localcloud.api import kinds
from gpucluster.localcloud.api.kinds import Kind
from gpucluster.localcloud.api.shapes import known_shape
from gpucluster.localcloud.cloud import Cloud, timestamp
from gpucluster.localcloud.faults import OUT_OF_CAPACITY
from gpucluster.localcloud.store import Json, Resource
from gpucluster.localcloud.wire import CORE, ApiError, Route, conflict, invalid

_KIND = "capacityreservation"


def _prepare(_cloud: Cloud, body: Json) -> Json:
    return {**body, "instanceReservationConfigs": _configs(body), "timeUpdated": timestamp()}


def _configs(body: Json) -> list[Json]:
    configs = []
    for wish in body["instanceReservationConfigs"]:
        shape, count = known_shape(wish.get("instanceShape")), wish.get("reservedCount")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise invalid(f"reservedCount {count} is not a number of instances")
        configs.append({"faultDomain": None, "instanceShapeConfig": None, **wish, "instanceShape": shape.name})
    if not configs:
        raise invalid("instanceReservationConfigs must name a shape")
    return configs


def _update(_cloud: Cloud, _row: Resource, changes: Json) -> Json:
    if "instanceReservationConfigs" in changes:
        changes["instanceReservationConfigs"] = _configs(changes)
    return {**changes, "timeUpdated": timestamp()}


def _empty(cloud: Cloud, reservation: Resource) -> None:
    for instance in cloud.store.find("instance", capacityReservationId=reservation.id):
        raise conflict(f"The capacity reservation {reservation.id} still has the instance {instance.id}")


def _used(cloud: Cloud, reservation: str, shape: str) -> int:
    return cloud.store.count("instance", {"capacityReservationId": reservation, "shape": shape})


def view(cloud: Cloud, row: Resource) -> Json:
    """A reservation, with how much of it is used now."""
    configs = [
        {**config, "usedCount": _used(cloud, row.id, config["instanceShape"])}
        for config in row.body["instanceReservationConfigs"]
    ]
    return {
        **row.body,
        "instanceReservationConfigs": configs,
        "reservedInstanceCount": sum(config["reservedCount"] for config in configs),
        "usedInstanceCount": sum(config["usedCount"] for config in configs),
    }


RESERVATION = Kind(
    _KIND, f"{CORE}/computeCapacityReservations", "ComputeCapacityReservation", "ComputeCapacityReservations",
    "capacityReservationId", required=("compartmentId", "availabilityDomain", "instanceReservationConfigs"),
    fields=("availabilityDomain", "instanceReservationConfigs", "isDefaultReservation"),
    defaults={"isDefaultReservation": False}, updatable=("instanceReservationConfigs", "isDefaultReservation"),
    filters=("compartmentId", "availabilityDomain", "displayName", "lifecycleState"), zoned=True,
    initial="ACTIVE", ready="ACTIVE", ending="DELETING", gone="DELETED",
    prepare=_prepare, check_update=_update, check_delete=_empty, shown=view,
)  # fmt: skip


def check_reserved(cloud: Cloud, details: Json) -> None:
    """Refuse a launch that names a reservation which is not there, is elsewhere, or has no room for the shape."""
    wanted = details.get("capacityReservationId")
    if not wanted:
        return
    row = cloud.related(_KIND, wanted)
    if row.body["availabilityDomain"] != details["availabilityDomain"]:
        raise invalid(f"Capacity reservation {row.id} is in another availability domain than the instance")
    shape = details["shape"]
    reserved = sum(
        config["reservedCount"] for config in row.body["instanceReservationConfigs"] if config["instanceShape"] == shape
    )
    if not reserved:
        raise invalid(f"Capacity reservation {row.id} has no capacity for shape {shape}")
    if _used(cloud, row.id, shape) >= reserved:
        raise ApiError(500, "InternalError", OUT_OF_CAPACITY)


def routes(cloud: Cloud) -> list[Route]:
    """Capacity reservations."""
    return kinds.routes(cloud, RESERVATION)
