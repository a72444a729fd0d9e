"""Tells Oracle that the host of an instance is bad: the defined tag that is set before the instance is terminated.

Sources: Oracle's oci-hpc (`tag_unhealthy`: "host is unhealthy and needs manual intervention before returning to the
previous pool post-recycle") and oci-hpc-oke ("Removing and Replacing Worker Nodes": the other tags stay, the change
names the etag, and the tag is read again). What Oracle does with it is documented nowhere else.
"""

from __future__ import annotations

import http
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucluster.cloud.client import CloudAccess, model, refusals, unless_refused
from gpucluster.errors import CloudError
from gpucluster.oci.states import GONE
from gpucluster.oci.tags import HOST_ACTIONS, HOST_STATUS, HOST_TAG, DefinedTags, has_host_tag, with_host_tag

# How often a change is tried that meets changes of others.
_TRIES = 4
_CHANGED_MEANWHILE = (http.HTTPStatus.PRECONDITION_FAILED, http.HTTPStatus.CONFLICT)
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
        facts: Mapping[str, Any] | None = None
        try:
            for last in (*[False] * (_TRIES - 1), True):
                with refusals(f"reading {name}"):
                    response = unless_refused(lambda: self._client().get_instance(ocid), http.HTTPStatus.NOT_FOUND)
                if response is None or response.data.lifecycle_state in GONE:
                    return HostReport(False, why="its instance is gone already", instance=facts)
                facts = _facts(response.data)
                present = response.data.defined_tags or {}
                if has_host_tag(present):
                    return HostReport(True, before=True, instance=facts)
                try:
                    self._set(ocid, name, present, response.headers["etag"])
                except CloudError as error:
                    if error.status not in _CHANGED_MEANWHILE or last:
                        raise
                else:
                    return self._proven(ocid, name, facts)
        except CloudError as error:
            return HostReport(False, why=error.what, next=_advice(error), instance=facts)
        raise AssertionError("not reached")

    def _set(self, ocid: str, name: str, present: DefinedTags, etag: str) -> None:
        details = model("core", "UpdateInstanceDetails", defined_tags=with_host_tag(present))
        with refusals(f"setting {HOST_TAG} on {name}"):
            self._client().update_instance(ocid, details, if_match=etag)

    def _proven(self, ocid: str, name: str, facts: Mapping[str, Any] | None) -> HostReport:
        """OCI takes an update of tags and may leave some out: read it again."""
        with refusals(f"reading {name}"):
            tags = self._client().get_instance(ocid).data.defined_tags or {}
        if not has_host_tag(tags):
            return HostReport(False, why="the cloud has accepted the tag, and the instance does not have it")
        return HostReport(True, instance=facts)

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
