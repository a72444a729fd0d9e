"""Lifecycle states of OCI's resources, as the API names them, and what they mean. Pure.

Source: `lifecycleState` of each resource in OCI's API reference (SDK: LIFECYCLE_STATE_*, STATUS_*). A state that is not
listed here is a string like any other: members compare equal to their text, so nothing has to be converted.
"""

from __future__ import annotations

from enum import StrEnum


class LifecycleState(StrEnum):
    """The member lifecycleState of a resource. Each kind of resource has some of these."""

    REQUESTED = "REQUESTED"
    CREATING = "CREATING"
    CREATING_IMAGE = "CREATING_IMAGE"
    IMPORTING = "IMPORTING"
    PROVISIONING = "PROVISIONING"
    STARTING = "STARTING"
    ATTACHING = "ATTACHING"
    ATTACHED = "ATTACHED"
    ASSIGNED = "ASSIGNED"
    ACTIVE = "ACTIVE"
    AVAILABLE = "AVAILABLE"
    RUNNING = "RUNNING"
    SCALING = "SCALING"
    UPDATING = "UPDATING"
    NEEDS_ATTENTION = "NEEDS_ATTENTION"
    MOVING = "MOVING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"
    DELETING = "DELETING"
    DELETED = "DELETED"
    DETACHING = "DETACHING"
    DETACHED = "DETACHED"


class WorkRequestStatus(StrEnum):
    """The member status of a work request."""

    IN_PROGRESS = "IN_PROGRESS"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


#: The resource does not exist any more.
ENDED = frozenset({LifecycleState.TERMINATED, LifecycleState.DELETED, LifecycleState.DETACHED})
#: It does not exist any more, or soon will not: it can't be used again.
GONE = ENDED | {LifecycleState.TERMINATING, LifecycleState.DELETING, LifecycleState.DETACHING}

#: The states of an instance.
INSTANCE = frozenset(
    {
        LifecycleState.CREATING_IMAGE,
        LifecycleState.MOVING,
        LifecycleState.PROVISIONING,
        LifecycleState.RUNNING,
        LifecycleState.STARTING,
        LifecycleState.STOPPED,
        LifecycleState.STOPPING,
        LifecycleState.TERMINATED,
        LifecycleState.TERMINATING,
    }
)
#: The instance is terminating or terminated: it can't be used or terminated again.
ENDING = INSTANCE & GONE
#: The instance costs money or soon will. A stopped GPU instance costs as much as a running one.
LIVE = INSTANCE - ENDING
#: The instance was launched or started a moment ago. Until it runs, the provider reads no VNIC of it.
STARTING = frozenset({LifecycleState.PROVISIONING, LifecycleState.STARTING})
#: The instance is stopping or stopped.
STOPPED = frozenset({LifecycleState.STOPPING, LifecycleState.STOPPED})
