"""The tag that names the run that holds a cluster: read, set and removed so that no two runs can set it.

The API gives each state of a resource an etag, and refuses a change that names another one than the present
(`if-match`). The tag is that of the cluster's own network; where it lies in an existing network, of its controller.
"""

from __future__ import annotations

import http
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gpucluster.cloud.client import CloudAccess, model, refusals, unless_refused
from gpucluster.cloud.clusters import Sighting
from gpucluster.errors import CloudError
from gpucluster.oci import tags
from gpucluster.oci.run_lock import Holder, holder
from gpucluster.oci.states import GONE

# The methods and the body of a change, by kind of resource. A network is there from the first apply to the end of the
# last destroy; a controller may be recreated.
_KINDS = {
    "vcn": ("VirtualNetworkClient", "get_vcn", "update_vcn", "UpdateVcnDetails"),
    "instance": ("ComputeClient", "get_instance", "update_instance", "UpdateInstanceDetails"),
}
# How often a change is tried that meets changes of others.
_TRIES = 8

#: Gets the present holder; returns the next one, None for none, or raises to leave all as it is.
Change = Callable[[Holder | None], Holder | None]


def carrier(sightings: Iterable[Sighting]) -> Sighting | None:
    """What carries the tag of a cluster, of all that the cloud has of it; None: neither a network nor a controller."""
    standing = [each for each in sightings if each.state not in GONE and each.carries_lock]
    return min(standing, key=lambda each: (each.kind != "vcn", each.created, each.id), default=None)


@dataclass(frozen=True)
class LockTag:
    """The tag of one resource.

    Args:
        timeout: seconds that one request may take, without a repetition; None: as all others.
    """

    access: CloudAccess
    kind: str
    id: str
    timeout: float | None = None

    @classmethod
    def of(cls, access: CloudAccess, sightings: Iterable[Sighting]) -> LockTag | None:
        """The tag of a cluster; None as long as it has neither a network nor a controller.

        Args:
            sightings: what the cloud has of the cluster.
        """
        chosen = carrier(sightings)
        return cls(access, chosen.kind, chosen.id) if chosen else None

    def read(self) -> Holder | None:
        """Who holds the cluster; None if no run does, or if the resource does not exist any more.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        with refusals("reading which run holds the cluster"):
            response = self._get()
        return holder(response.data.freeform_tags) if response is not None else None

    def stands(self) -> bool:
        """Whether the resource exists, as far as its caller may see it.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        with refusals("reading which run holds the cluster"):
            return self._get() is not None

    def change(self, decide: Change) -> None:
        """Change the holder, if no other run has changed the resource meanwhile; else decide again. Does nothing if the
        resource does not exist any more.

        Raises:
            CloudError: the cloud refused, or can't be reached; or others change the resource without end.
        """
        for last in (*[False] * (_TRIES - 1), True):
            with refusals("noting which run holds the cluster"):
                response = self._get()
            if response is None:
                return
            present = dict(response.data.freeform_tags or {})
            before = holder(present)
            after = decide(before)
            if after == before:
                return
            others = {key: value for key, value in present.items() if key != tags.LOCK}
            new_tags = {**others, tags.LOCK: after.text()} if after else others
            try:
                with refusals("noting which run holds the cluster"):
                    self._update(new_tags, response.headers["etag"])
            except CloudError as error:
                if error.status not in (http.HTTPStatus.PRECONDITION_FAILED, http.HTTPStatus.CONFLICT) or last:
                    raise
            else:
                return

    def _get(self) -> Any:
        _, get, _, _ = _KINDS[self.kind]
        response = unless_refused(lambda: getattr(self._client(), get)(self.id), http.HTTPStatus.NOT_FOUND)
        return None if response is None or response.data.lifecycle_state in GONE else response

    def _update(self, new_tags: tags.Tags, etag: str) -> None:
        _, _, update, body = _KINDS[self.kind]
        details = model("core", body, freeform_tags=dict(new_tags))
        getattr(self._client(), update)(self.id, details, if_match=etag)

    def _client(self) -> Any:
        return self.access.client("core", _KINDS[self.kind][0], timeout=self.timeout)
