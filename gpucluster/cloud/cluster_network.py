"""One cluster network through the SDK: its size and its members, and how one of them leaves by its own name.

Terraform can only change the size, and OCI itself then ends the oldest members of the fullest fault domain. Who goes is
ours to say, so a member is detached before Terraform looks (see docs/adr/0012-size-of-permanent-pools.md).
"""

from __future__ import annotations

import http
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucluster.cloud.client import Access, everything, model, refusals
from gpucluster.errors import CloudError
from gpucluster.events import Event, Sink

_POLL = 1.0
# One operation at a time: the pool is busy while a member comes, and bare metal is wiped when it ends.
PATIENCE = 90 * 60.0
_GONE = ("TERMINATING", "TERMINATED")
_RESTING = ("RUNNING", "STOPPED", *_GONE)
_REFUSED = (http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT)


@dataclass(frozen=True)
class Look:
    """A cluster network at one moment.

    Args:
        size: the number of members that it is to have.
        members: the display name of each member by its OCID, those that still come or go included.
        running: the OCIDs of those that run.
    """

    name: str
    state: str
    size: int
    pool_id: str
    members: Mapping[str, str]
    running: frozenset[str]

    @property
    def gone(self) -> bool:
        """Whether the network is no more, or is about to end."""
        return self.state in _GONE

    @property
    def resting(self) -> bool:
        """Whether nothing of it comes or goes just now."""
        return self.state in _RESTING


@dataclass(frozen=True)
class Failure:
    """Why members did not come: the words of a work request that failed, and its OCID."""

    words: str
    work_request_id: str


class ClusterNetwork:
    """One cluster network, by its OCID."""

    def __init__(self, access: Access, cluster_network_id: str, on_event: Sink) -> None:
        self._access = access
        self.id = cluster_network_id
        self._on_event = on_event

    def look(self) -> Look:
        """What there is now.

        Raises:
            CloudError: the cloud refused, or there is no such network.
        """
        with refusals("reading a cluster network"):
            network = self._management().get_cluster_network(self.id).data
            pool = network.instance_pools[0]
            listed = []
            if network.lifecycle_state not in _GONE:
                call = self._management().list_cluster_network_instances
                listed = everything(call, network.compartment_id, self.id)
        return Look(
            network.display_name,
            network.lifecycle_state,
            pool.size,
            pool.id,
            {member.id: member.display_name for member in listed},
            frozenset(member.id for member in listed if member.state.upper() == "RUNNING"),
        )

    def present(self) -> Look | None:
        """What there is now; None where somebody has deleted the network."""
        try:
            look = self.look()
        except CloudError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return None
            raise
        return None if look.gone else look

    def settle(self) -> Look:
        """Wait until nothing of it comes or goes.

        Raises:
            CloudError: it is still busy after PATIENCE.
        """
        until = time.monotonic() + PATIENCE
        while not (look := self.look()).resting:
            if time.monotonic() > until:
                raise CloudError(
                    f"the cluster network is still {look.state} after {PATIENCE / 60:.0f} min",
                    where=self.id,
                    hint="Run apply again when it rests",
                )
            time.sleep(_POLL)
        return look

    def remove(self, members: Mapping[str, str], wished: int) -> None:
        """End these members and no others, one by one, and wait until they are gone.

        The size shrinks with them, down to the one that is wished; from there on OCI launches another member for each.

        Args:
            members: what each is called, by its OCID.
            wished: the size that the network is to have in the end.

        Raises:
            CloudError: the cloud refused, or a member does not end. What is gone stays gone; run it again for the rest.
        """
        begun = time.monotonic()
        for instance_id, name in members.items():
            look = self.settle()
            if instance_id not in look.members:
                continue
            self._on_event(Event("resource", f"instance {name}", "deleting", data={"id": instance_id}))
            self._detach(look, instance_id, name, shrink=look.size != wished and look.size > 1)
        for instance_id, name in members.items():
            self._await_end(instance_id, name)
            self._on_event(Event("resource", f"instance {name}", "deleted", elapsed=time.monotonic() - begun))
        self.settle()

    def refill(self, size: int) -> None:
        """Ask again for the members that did not come when they were asked for."""
        self._on_event(Event("resource", f"cluster network {self.look().name}", "updating", "members are missing"))
        pool = model("core", "UpdateClusterNetworkInstancePoolDetails", id=self.look().pool_id, size=size)
        with refusals("asking for the missing members of a cluster network"):
            details = model("core", "UpdateClusterNetworkDetails", instance_pools=[pool])
            self._management().update_cluster_network(self.id, details, opc_retry_token=uuid.uuid4().hex)

    def failure(self) -> Failure | None:
        """Why the newest of its work requests failed; None if it did not."""
        work = self._access.client("work_requests", "WorkRequestClient")
        with refusals("reading the work requests of a cluster network"):
            requests = [
                request
                for resource in (self.id, self.look().pool_id)
                for request in everything(work.list_work_requests, self._access.compartment_id, resource_id=resource)
            ]
            newest = max(requests, key=lambda request: request.time_accepted, default=None)
            if newest is None or newest.status != "FAILED":
                return None
            errors = everything(work.list_work_request_errors, newest.id)
        words = "; ".join(dict.fromkeys(error.message.rstrip(".") for error in errors))
        return Failure(words or "it gives no reason", newest.id)

    def _management(self) -> Any:
        return self._access.client("core", "ComputeManagementClient")

    def _detach(self, look: Look, instance_id: str, name: str, *, shrink: bool) -> None:
        details = model(
            "core",
            "DetachInstancePoolInstanceDetails",
            instance_id=instance_id,
            is_decrement_size=shrink,
            is_auto_terminate=True,
        )
        try:
            with refusals(f"taking {name} out of its cluster network"):
                self._management().detach_instance_pool_instance(
                    look.pool_id, details, opc_retry_token=uuid.uuid4().hex
                )
        except CloudError as error:
            # The answer to the first try may have been lost: then it is out, and the second one is refused.
            if error.status not in _REFUSED or instance_id in self.look().members:
                raise

    def _await_end(self, instance_id: str, name: str) -> None:
        until = time.monotonic() + PATIENCE
        while self._state(instance_id) != "TERMINATED":
            if time.monotonic() > until:
                raise CloudError(f"{name} does not end", where=instance_id, hint="Run apply again")
            time.sleep(_POLL)

    def _state(self, instance_id: str) -> str:
        try:
            with refusals("reading an instance"):
                return str(self._access.client("core", "ComputeClient").get_instance(instance_id).data.lifecycle_state)
        except CloudError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return "TERMINATED"
            raise
