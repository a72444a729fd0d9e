"""Which defined tags an instance may get: those whose namespace and key exist.

The namespaces that a cluster's operator chooses (`cloud.defined_tags`, `iam.tag`) count as made by the tenancy's
administrator. A namespace that OCI itself reads does not: in a tenancy an administrator has to make it, so here, too.
"""

from __future__ import annotations

import http
from collections.abc import Iterator, Mapping

from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.store import Json
from gpucluster.localcloud.state.wire import ApiError
from gpucluster.oci.tags import HOST_ACTIONS

#: The kinds of the rows of namespaces, and of the keys in them.
NAMESPACE, DEFINITION = "tagnamespace", "tagdefinition"
_READ_BY_OCI = (HOST_ACTIONS.lower(),)


def check_namespaces(cloud: CloudState, tags: Mapping[str, Json], present: Mapping[str, Json] | None = None) -> None:
    """Check the defined tags that a resource would get.

    Args:
        present: those that it has. They are not checked again.

    Raises:
        ApiError: 400 with OCI's words. Source: hashicorp/terraform issue 32357 for an instance, and Oracle's
            oci-cloud-controller-manager, which tests for this code; the same for a caller who may not use it.
    """
    for space, key in added(tags, present or {}):
        if space.lower() not in _READ_BY_OCI:
            continue
        known = [row for row in cloud.store.find(NAMESPACE) if str(row.body["name"]).lower() == space.lower()]
        if not known:
            raise _refused(f"TagNamespace {space} does not exists.")
        keys = {str(row.body["name"]).lower() for row in cloud.store.find(DEFINITION, tagNamespaceId=known[0].id)}
        if key.lower() not in keys:
            raise _refused(f"TagDefinition {key} in TagNamespace {space} does not exists.")


def added(tags: Mapping[str, Json], present: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """The namespace and key of each tag that is not there with the same value."""
    for space, keys in tags.items():
        for key, value in keys.items():
            if (present.get(space) or {}).get(key) != value:
                yield space, key


def _refused(why: str) -> ApiError:
    message = f"The following tag namespaces / keys are not authorized or not found: {why}"
    return ApiError(http.HTTPStatus.BAD_REQUEST, "RelatedResourceNotAuthorizedOrNotFound", message)
