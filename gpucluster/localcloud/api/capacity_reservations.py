"""Capacity reservations: hosts of a shape that are reserved for instances that name the reservation."""

from __future__ import annotations

from gpucluster.localcloud.api import kinds
from gpucluster.localcloud.api.kinds import ResourceKind
from gpucluster.localcloud.compute.capacity import RESERVATION, reserved_in_use
from gpucluster.localcloud.compute.shape_config import known_shape
from gpucluster.localcloud.state.cloud import CloudState, timestamp
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import CORE, ApiRoute, conflict, invalid


def _prepare(_cloud: CloudState, body: Json) -> Json:
    return {**body, "instanceReservationConfigs": _configs(body), "timeUpdated": timestamp()}


def _configs(body: Json) -> list[Json]:
    configs = []
    for config in body["instanceReservationConfigs"]:
        shape, count = known_shape(config.get("instanceShape")), config.get("reservedCount")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise invalid(f"reservedCount {count} is not a number of instances")
        configs.append({"faultDomain": None, "instanceShapeConfig": None, **config, "instanceShape": shape.name})
    if not configs:
        raise invalid("instanceReservationConfigs must name a shape")
    return configs


def _update(_cloud: CloudState, _row: Resource, changes: Json) -> Json:
    if "instanceReservationConfigs" in changes:
        changes["instanceReservationConfigs"] = _configs(changes)
    return {**changes, "timeUpdated": timestamp()}


def _empty(cloud: CloudState, reservation: Resource) -> None:
    for instance in cloud.store.find("instance", capacityReservationId=reservation.id):
        raise conflict(f"The capacity reservation {reservation.id} still has the instance {instance.id}")


def view(cloud: CloudState, row: Resource) -> Json:
    """A reservation with its current usage."""
    configs = [
        {**config, "usedCount": reserved_in_use(cloud, row.id, config["instanceShape"])}
        for config in row.body["instanceReservationConfigs"]
    ]
    return {
        **row.body,
        "instanceReservationConfigs": configs,
        "reservedInstanceCount": sum(config["reservedCount"] for config in configs),
        "usedInstanceCount": sum(config["usedCount"] for config in configs),
    }


CAPACITY_RESERVATION = ResourceKind(
    RESERVATION, f"{CORE}/computeCapacityReservations", "ComputeCapacityReservation", "ComputeCapacityReservations",
    "capacityReservationId", required=("compartmentId", "availabilityDomain", "instanceReservationConfigs"),
    fields=("availabilityDomain", "instanceReservationConfigs", "isDefaultReservation"),
    defaults={"isDefaultReservation": False}, updatable=("instanceReservationConfigs", "isDefaultReservation"),
    filters=("compartmentId", "availabilityDomain", "displayName", "lifecycleState"), zoned=True,
    initial=LifecycleState.ACTIVE, ready=LifecycleState.ACTIVE, ending=LifecycleState.DELETING,
    gone=LifecycleState.DELETED,
    prepare=_prepare, check_update=_update, check_delete=_empty, detail=view,
)  # fmt: skip


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Capacity reservations."""
    return kinds.routes(cloud, CAPACITY_RESERVATION)
