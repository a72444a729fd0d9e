"""Tells Oracle that the host of an instance is bad: the defined tag that is set before the instance is terminated."""

from __future__ import annotations

import http
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucluster.cloud.client import CloudAccess, model, refusals, unless_refused
from gpucluster.errors import CloudError
from gpucluster.oci.host_tag import DefinedTags, Tagging, set_host_tag
from gpucluster.oci.states import GONE
from gpucluster.oci.tags import HOST_ACTIONS, HOST_STATUS, HOST_TAG

_WHY: Mapping[Tagging, str] = {
    Tagging.GONE: "its instance is gone already",
    Tagging.LEFT_OUT: "the cloud has accepted the tag, and the instance does not have it",
}
# The code of a namespace or key that does not exist, or that the caller may not use.
_RELATED = "RelatedResourceNotAuthorizedOrNotFound"


@dataclass(frozen=True)
class HostReport:
    """What has become of a report.

    Args:
        reported: the instance has the tag now.
        before: it had the tag already.
        why: why it has none.
        next: what an operator does about it; empty if nothing helps.
        instance: what the cloud has of the instance, as JSON has it.
    """

    reported: bool
    before: bool = False
    why: str = ""
    next: str = ""
    instance: Mapping[str, Any] | None = None


class HostReports:
    """Reports hosts to Oracle."""

    def __init__(self, access: CloudAccess) -> None:
        self._access = access

    def report(self, ocid: str, name: str) -> HostReport:
        """Set the tag on an instance. What the cloud answers is never an error: the instance is replaced in any case.

        Args:
            name: of its node.
        """
        seen: list[dict[str, Any]] = []

        def read() -> Any:
            with refusals(f"reading {name}"):
                response = unless_refused(lambda: self._client().get_instance(ocid), http.HTTPStatus.NOT_FOUND)
            if response is not None and response.data.lifecycle_state not in GONE:
                seen.append(_facts(response.data))
            return response

        def change(tags: DefinedTags, etag: str) -> None:
            with refusals(f"setting {HOST_TAG} on {name}"):
                details = model("core", "UpdateInstanceDetails", defined_tags=tags)
                self._client().update_instance(ocid, details, if_match=etag)

        why, following, outcome = "", "", None
        try:
            outcome = set_host_tag(read, change)
            why = _WHY.get(outcome, "")
        except CloudError as error:
            why, following = error.what, _advice(error)
        return HostReport(
            reported=not why,
            before=outcome is Tagging.PRESENT,
            why=why,
            next=following,
            instance=seen[-1] if seen else None,
        )

    def _client(self) -> Any:
        return self._access.client("core", "ComputeClient")


def _advice(error: CloudError) -> str:
    if error.code == _RELATED:
        return (
            f"an administrator of the tenancy makes the tag namespace {HOST_ACTIONS} with the key {HOST_STATUS}, and "
            "permits `use tag-namespaces`: gpucluster policies"
        )
    if error.status == http.HTTPStatus.NOT_FOUND:
        return "compare the tenancy's policies with the output of: gpucluster policies"
    return ""


def _facts(instance: Any) -> dict[str, Any]:
    """What Oracle needs to find the host."""
    created = instance.time_created
    return {
        "id": instance.id,
        "display_name": instance.display_name,
        "compartment_id": instance.compartment_id,
        "region": instance.region,
        "availability_domain": instance.availability_domain,
        "fault_domain": instance.fault_domain,
        "shape": instance.shape,
        "image_id": instance.image_id,
        "capacity_reservation_id": getattr(instance, "capacity_reservation_id", None),
        "time_created": created.isoformat() if created else None,
        "lifecycle_state": instance.lifecycle_state,
    }
