"""Sets the tag by which Oracle is told that the host of an instance is bad.

The requests are the caller's: the operator's machine and the autoscaler have clients of their own. Sources: Oracle's
oci-hpc (`tag_unhealthy`: "host is unhealthy and needs manual intervention before returning to the previous pool
post-recycle") and oci-hpc-oke ("Removing and Replacing Worker Nodes": the other tags stay, the change names the etag,
and the tag is read again). What Oracle does with it is documented nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any

from gpucluster.errors import CloudError
from gpucluster.oci.refusals import CONFLICT, PRECONDITION_FAILED
from gpucluster.oci.states import GONE
from gpucluster.oci.tags import HOST_ACTIONS, HOST_STATUS, UNHEALTHY

#: Defined tags: the values of keys, by the namespace.
DefinedTags = Mapping[str, Mapping[str, Any]]

# How often a change is tried that meets changes of others.
_TRIES = 4


class Tagging(Enum):
    """What has become of the tag.

    Attributes:
        SET: the instance has it now. PRESENT: it had it already.
        GONE: there is no such instance any more.
        LEFT_OUT: the cloud has accepted the tag, and the instance does not have it.
    """

    SET = auto()
    PRESENT = auto()
    GONE = auto()
    LEFT_OUT = auto()


def set_host_tag(read: Callable[[], Any], change: Callable[[DefinedTags, str], object]) -> Tagging:
    """Set the tag on an instance.

    Args:
        read: GetInstance; None if there is no such instance.
        change: UpdateInstance with these defined tags, under this etag.

    Raises:
        CloudError: the cloud refused one of the two. A change that meets changes of others is tried again.
    """
    for left in reversed(range(_TRIES)):
        answer = read()
        if answer is None or answer.data.lifecycle_state in GONE:
            return Tagging.GONE
        present = answer.data.defined_tags or {}
        if has_host_tag(present):
            return Tagging.PRESENT
        try:
            change(_with_host_tag(present), answer.headers["etag"])
            break
        except CloudError as error:
            if not left or error.status not in (PRECONDITION_FAILED, CONFLICT):
                raise
    # OCI takes an update of tags and may leave some out: read it again.
    answer = read()
    return Tagging.SET if answer is not None and has_host_tag(answer.data.defined_tags or {}) else Tagging.LEFT_OUT


def has_host_tag(present: DefinedTags) -> bool:
    """Whether an instance has the tag. OCI does not distinguish upper and lower case in namespaces and keys."""
    wanted = (HOST_ACTIONS.lower(), HOST_STATUS.lower(), UNHEALTHY)
    return any(
        (space.lower(), key.lower(), value) == wanted for space, keys in present.items() for key, value in keys.items()
    )


def _with_host_tag(present: DefinedTags) -> DefinedTags:
    """An update replaces all defined tags."""
    return {**present, HOST_ACTIONS: {**present.get(HOST_ACTIONS, {}), HOST_STATUS: UNHEALTHY}}
