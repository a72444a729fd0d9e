"""Lifecycle states of OCI's resources, as the API names them. Pure.

Source: `lifecycleState` of each resource in OCI's API reference. Each kind of resource has some of these. A state that
is not listed here is a string like any other: members compare equal to their text, so nothing has to be converted.
"""

from __future__ import annotations

from enum import StrEnum


class LifecycleState(StrEnum):
    """The states that we ask about."""

    CREATING = "CREATING"
    PROVISIONING = "PROVISIONING"
    IMPORTING = "IMPORTING"
    STARTING = "STARTING"
    ATTACHED = "ATTACHED"
    ACTIVE = "ACTIVE"
    AVAILABLE = "AVAILABLE"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"
    DELETING = "DELETING"
    DELETED = "DELETED"


class WorkRequestStatus(StrEnum):
    """How a work request ended."""

    FAILED = "FAILED"


#: The resource does not exist any more.
ENDED = frozenset({LifecycleState.TERMINATED, LifecycleState.DELETED})
#: It does not exist any more, or is about to end: it can't be used again.
GONE = ENDED | {LifecycleState.TERMINATING, LifecycleState.DELETING}
