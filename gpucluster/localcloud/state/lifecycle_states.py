"""States of the local cloud's resources and of its work requests. OCI's words are in `gpucluster.oci.states`."""

from __future__ import annotations

from enum import StrEnum

from gpucluster.oci.states import LifecycleState as LifecycleState
from gpucluster.oci.states import WorkRequestStatus as WorkRequestStatus

ENDING = (LifecycleState.TERMINATING, LifecycleState.DELETING)


class WorkAction(StrEnum):
    """What a work request did to a resource (actionType)."""

    IN_PROGRESS = "IN_PROGRESS"
    CREATED = "CREATED"
    UPDATED = "UPDATED"
    DELETED = "DELETED"
    FAILED = "FAILED"
