"""The lifecycle states of an instance and what they mean for cost and names.

Source: Oracle's API reference, "Instance", member lifecycleState.
"""

from __future__ import annotations

from enum import StrEnum


class InstanceState(StrEnum):
    """OCI's lifecycle states of an instance."""

    CREATING_IMAGE = "CREATING_IMAGE"
    MOVING = "MOVING"
    PROVISIONING = "PROVISIONING"
    RUNNING = "RUNNING"
    STARTING = "STARTING"
    STOPPED = "STOPPED"
    STOPPING = "STOPPING"
    TERMINATED = "TERMINATED"
    TERMINATING = "TERMINATING"


#: The instance is ending or has ended: nobody can use it or end it again.
ENDING = frozenset({InstanceState.TERMINATING, InstanceState.TERMINATED})
#: The instance costs money or soon will. A stopped GPU instance costs as much as a running one.
LIVE = frozenset(InstanceState) - ENDING
#: Somebody or something stops it.
STOPPED = frozenset({InstanceState.STOPPING, InstanceState.STOPPED})
