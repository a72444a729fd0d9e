"""Stops an instance, so that it writes to its volume no more."""

from __future__ import annotations

import http

from gpucluster.cloud.client import CloudAccess, refusals, unless_refused
from gpucluster.errors import CloudError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.oci.states import GONE, LifecycleState
from gpucluster.waiting import wait_until

# SOFTSTOP asks the operating system to end, and switches the power off after 15 minutes (docs: InstanceAction).
_STOP_SECONDS = 20 * 60.0
_POLL = 1.0


class InstancePower:
    """Power actions on instances of one cluster."""

    def __init__(self, access: CloudAccess, on_event: Sink) -> None:
        self._access = access
        self._on_event = on_event

    def stop(self, ocid: str, name: str) -> None:
        """Shut an instance down and wait until it is stopped. Does nothing for one that is stopped or gone.

        Raises:
            CloudError: the cloud refused, or the instance does not stop.
        """
        client = self._access.client("core", "ComputeClient")

        def state() -> str:
            found = unless_refused(lambda: client.get_instance(ocid), http.HTTPStatus.NOT_FOUND)
            return LifecycleState.TERMINATED if found is None else str(found.data.lifecycle_state)

        with refusals(f"stopping {name}"):
            present = state()
            if present in GONE or present == LifecycleState.STOPPED:
                return
            self._on_event(Event(EventKind.RESOURCE, f"instance {name}", "stopping", data={"id": ocid}))
            if present != LifecycleState.STOPPING:
                client.instance_action(ocid, "SOFTSTOP")
            if not wait_until(lambda: state() in (*GONE, LifecycleState.STOPPED), _STOP_SECONDS, _POLL):
                raise CloudError(
                    f"{name} does not stop after {_STOP_SECONDS / 60:.0f} min: its volume is not given to another host",
                    where=ocid,
                    hint="Stop it in the console of the cloud, then run the same command again",
                )
