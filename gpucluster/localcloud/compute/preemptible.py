"""What differs with preemptible instances: which launches and changes OCI refuses (docs: "Preemptible Instances").

OCI documents no codes for these refusals: those of other invalid parameters are used. The words about a shape are OCI's
(zoom/karpenter-oci#24: VM.Standard.A2.Flex); which VM shapes it takes is in no list. When the capacity is taken back is
a fault (`ReclaimCapacity`).
"""

from __future__ import annotations

from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import invalid

_MEMBER = "preemptibleInstanceConfig"
# Two ways to the same capacity: each of these is one of its own.
_OTHER_CAPACITY = ("capacityReservationId", "dedicatedVmHostId")
# The name can be changed. That tags can be is assumed: the page is about the form in which an instance is edited.
_CHANGEABLE = ("displayName", "freeformTags", "definedTags")


def is_preemptible(instance: Resource) -> bool:
    """Whether an instance was launched as preemptible."""
    return bool(instance.body.get(_MEMBER))


def check_launch(details: Json) -> None:
    """Refuse a launch that preemptible capacity excludes."""
    wanted: Json | None = details.get(_MEMBER)
    if not wanted:
        return
    action = (wanted.get("preemptionAction") or {}).get("type")
    if action != "TERMINATE":
        raise invalid(f"{_MEMBER}.preemptionAction.type {action} is not TERMINATE")
    shape = str(details["shape"])
    if not shape.startswith("VM."):
        raise invalid(f"Invalid Preemptible instance shape: {shape} (is not supported)")
    for name in _OTHER_CAPACITY:
        if details.get(name):
            raise invalid(f"A preemptible instance can't have {name}")


def check_configuration(details: Json) -> None:
    """Refuse an instance configuration, and so an instance pool, of preemptible instances."""
    if details.get(_MEMBER):
        raise invalid("An instance configuration can't be made of preemptible instances")


def check_action(instance: Resource, action: str) -> None:
    """Refuse to start, stop or reboot a preemptible instance."""
    if is_preemptible(instance):
        raise invalid(f"Instance {instance.id} is preemptible: {action} is not supported")


def check_update(instance: Resource, body: Json) -> None:
    """Refuse every change of a preemptible instance but that of its name and tags."""
    others = sorted(body.keys() - {*_CHANGEABLE})
    if is_preemptible(instance) and others:
        raise invalid(f"Instance {instance.id} is preemptible: {', '.join(others)} can't be changed")
