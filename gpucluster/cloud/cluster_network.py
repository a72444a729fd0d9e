"""One cluster network through the SDK: its size and its members, and how one chosen member is removed.

Terraform can only change the size. OCI then terminates the oldest members of the fullest fault domain. We choose which
member leaves, so we detach it before Terraform reads the network (see docs/adr/0012-size-of-permanent-pools.md).
"""

from __future__ import annotations

import http
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucluster.cloud.client import CloudAccess, all_pages, model, refusals
from gpucluster.errors import CloudError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.oci.states import GONE, LifecycleState, WorkRequestStatus
from gpucluster.waiting import wait_until

_POLL = 1.0
# The pool is busy while a member is launched, and bare metal is wiped when an instance ends. One operation at a time.
TIMEOUT = 90 * 60.0
_IDLE = GONE | {LifecycleState.RUNNING, LifecycleState.STOPPED}
_REFUSED = (http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT)


@dataclass(frozen=True)
class NetworkStatus:
    """A cluster network at one moment.

    Args:
        state: its lifecycle state.
        size: the number of members that it should have.
        members: the display name of each member by its OCID, including members that are being launched or terminated.
        running: the OCIDs of the members that run.
    """

    name: str
    state: str
    size: int
    pool_id: str
    members: Mapping[str, str]
    running: frozenset[str]

    @property
    def gone(self) -> bool:
        """Whether the network does not exist any more, or is being deleted."""
        return self.state in GONE

    @property
    def idle(self) -> bool:
        """Whether OCI does not change it at this moment."""
        return self.state in _IDLE


@dataclass(frozen=True)
class Failure:
    """Why members were not launched: the reason of a work request that failed, and its OCID."""

    reason: str
    work_request_id: str


class ClusterNetwork:
    """One cluster network, by its OCID."""

    #: What it is, for messages.
    noun = "cluster network"

    def __init__(self, access: CloudAccess, cluster_network_id: str, on_event: Sink) -> None:
        self._access = access
        self.id = cluster_network_id
        self._on_event = on_event

    def status(self) -> NetworkStatus:
        """Read the network and its members.

        Raises:
            CloudError: the cloud refused, or there is no such network.
        """
        with refusals("reading a cluster network"):
            network = self._management().get_cluster_network(self.id).data
            pool = network.instance_pools[0]
            listed = []
            if network.lifecycle_state not in GONE:
                call = self._management().list_cluster_network_instances
                listed = all_pages(call, network.compartment_id, self.id)
        return NetworkStatus(
            network.display_name,
            network.lifecycle_state,
            pool.size,
            pool.id,
            {member.id: member.display_name for member in listed},
            frozenset(member.id for member in listed if member.state.upper() == LifecycleState.RUNNING),
        )

    def present(self) -> NetworkStatus | None:
        """As `status`; None if the network was deleted."""
        try:
            status = self.status()
        except CloudError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return None
            raise
        return None if status.gone else status

    def settle(self) -> NetworkStatus:
        """Wait until OCI has finished the last change of the network.

        Raises:
            CloudError: OCI still changes it after TIMEOUT.
        """
        status = wait_until(self._idle, TIMEOUT, _POLL)
        if status is None:
            raise CloudError(
                f"the {self.noun} is still {self.status().state} after {TIMEOUT / 60:.0f} min",
                where=self.id,
                hint="Wait until OCI has finished the change, then run: gpucluster apply",
            )
        return status

    def _idle(self) -> NetworkStatus | None:
        status = self.status()
        return status if status.idle else None

    def remove(self, members: Mapping[str, str], size: int) -> None:
        """Terminate these members and no others, one by one, and wait until they are gone.

        The network's size shrinks with each, down to `size`. From then on OCI launches a new one for each.

        Args:
            members: the name of each, by its OCID.
            size: the size that the network should have at the end.

        Raises:
            CloudError: the cloud refused, or a member does not end. Members that were removed stay removed; another
                run continues with the rest.
        """
        begun = time.monotonic()
        for instance_id, name in members.items():
            status = self.settle()
            if instance_id not in status.members:
                continue
            self._on_event(Event(EventKind.RESOURCE, f"instance {name}", "deleting", data={"id": instance_id}))
            self._detach(status, instance_id, name, shrink=status.size != size and status.size > 1)
        for instance_id, name in members.items():
            self._await_termination(instance_id, name)
            self._on_event(Event(EventKind.RESOURCE, f"instance {name}", "deleted", elapsed=time.monotonic() - begun))
        self.settle()

    def refill(self, size: int) -> None:
        """Ask OCI again to launch the members that are missing."""
        status = self.status()
        self._on_event(Event(EventKind.RESOURCE, f"{self.noun} {status.name}", "updating", "members are missing"))
        pool = model("core", "UpdateClusterNetworkInstancePoolDetails", id=status.pool_id, size=size)
        with refusals("asking for the missing members of a cluster network"):
            details = model("core", "UpdateClusterNetworkDetails", instance_pools=[pool])
            self._management().update_cluster_network(self.id, details, opc_retry_token=uuid.uuid4().hex)

    def failure(self) -> Failure | None:
        """Why the newest of its work requests failed; None if it did not fail."""
        work = self._access.client("work_requests", "WorkRequestClient")
        with refusals(f"reading the work requests of a {self.noun}"):
            requests = [
                request
                for resource in dict.fromkeys((self.id, self.status().pool_id))
                for request in all_pages(work.list_work_requests, self._access.compartment_id, resource_id=resource)
            ]
            newest = max(requests, key=lambda request: request.time_accepted, default=None)
            if newest is None or newest.status != WorkRequestStatus.FAILED:
                return None
            errors = all_pages(work.list_work_request_errors, newest.id)
        reason = "; ".join(dict.fromkeys(error.message.rstrip(".") for error in errors))
        return Failure(reason or "it gives no reason", newest.id)

    def _management(self) -> Any:
        return self._access.client("core", "ComputeManagementClient")

    def _detach(self, status: NetworkStatus, instance_id: str, name: str, *, shrink: bool) -> None:
        try:
            with refusals(f"detaching {name} from its {self.noun}"):
                self._end(status, instance_id, shrink=shrink)
        except CloudError as error:
            # If the answer to the SDK's first request was lost, the member is detached already, and OCI refuses the
            # second request.
            if error.status not in _REFUSED or instance_id in self.status().members:
                raise

    def _end(self, status: NetworkStatus, instance_id: str, *, shrink: bool) -> None:
        details = model(
            "core",
            "DetachInstancePoolInstanceDetails",
            instance_id=instance_id,
            is_decrement_size=shrink,
            is_auto_terminate=True,
        )
        self._management().detach_instance_pool_instance(status.pool_id, details, opc_retry_token=uuid.uuid4().hex)

    def _await_termination(self, instance_id: str, name: str) -> None:
        if not wait_until(lambda: self._state(instance_id) == LifecycleState.TERMINATED, TIMEOUT, _POLL):
            raise CloudError(
                f"{name} is not terminated after {TIMEOUT / 60:.0f} min",
                where=instance_id,
                hint="Run: gpucluster apply",
            )

    def _state(self, instance_id: str) -> str:
        try:
            with refusals("reading an instance"):
                return str(self._access.client("core", "ComputeClient").get_instance(instance_id).data.lifecycle_state)
        except CloudError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return LifecycleState.TERMINATED
            raise
