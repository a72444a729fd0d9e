"""The states of resources and of work requests, with OCI's words (SDK: LIFECYCLE_STATE_*, STATUS_*)."""

from __future__ import annotations

from enum import StrEnum


class LifecycleState(StrEnum):
    """The member lifecycleState of a resource. Each kind of resource has some of these."""

    PROVISIONING = "PROVISIONING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    CREATING_IMAGE = "CREATING_IMAGE"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"
    AVAILABLE = "AVAILABLE"
    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"
    DELETED = "DELETED"
    FAILED = "FAILED"
    SCALING = "SCALING"
    ATTACHING = "ATTACHING"
    ATTACHED = "ATTACHED"
    DETACHED = "DETACHED"
    ASSIGNED = "ASSIGNED"
    REQUESTED = "REQUESTED"
    SUCCEEDED = "SUCCEEDED"


ENDING = (LifecycleState.TERMINATING, LifecycleState.DELETING)


class WorkStatus(StrEnum):
    """The member status of a work request."""

    IN_PROGRESS = "IN_PROGRESS"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class WorkAction(StrEnum):
    """What a work request did to a resource (actionType)."""

    IN_PROGRESS = "IN_PROGRESS"
    CREATED = "CREATED"
    UPDATED = "UPDATED"
    DELETED = "DELETED"
    FAILED = "FAILED"
