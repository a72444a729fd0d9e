"""Stops an instance, so that it writes to its volume no more, and starts it again."""

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

    def state(self, ocid: str) -> str:
        """The lifecycle state of an instance; TERMINATED for one that the cloud does not know any more.

        Raises:
            CloudError: the cloud refused.
        """
        client = self._access.client("core", "ComputeClient")
        with refusals(f"reading instance {ocid}"):
            found = unless_refused(lambda: client.get_instance(ocid), http.HTTPStatus.NOT_FOUND)
        return LifecycleState.TERMINATED if found is None else str(found.data.lifecycle_state)

    def start(self, ocid: str, name: str) -> bool:
        """Ask the cloud to start a stopped instance, and wait for nothing. Returns whether it will run.

        Raises:
            CloudError: the cloud refused.
        """
        present = self.state(ocid)
        if present == LifecycleState.STOPPED:
            self._on_event(Event(EventKind.RESOURCE, f"instance {name}", "starting", data={"id": ocid}))
            with refusals(f"starting {name}"):
                self._access.client("core", "ComputeClient").instance_action(ocid, "START")
        return present not in GONE and present != LifecycleState.STOPPING

    def stop(self, ocid: str, name: str, *, at_once: bool = False) -> None:
        """Stop an instance and wait until it is stopped. Does nothing for one that is stopped or gone.

        Args:
            at_once: switch the power off, and do not ask the operating system: one that hangs does not end.

        Raises:
            CloudError: the cloud refused, or the instance does not stop.
        """
        client = self._access.client("core", "ComputeClient")
        with refusals(f"stopping {name}"):
            present = self.state(ocid)
            if present in GONE or present == LifecycleState.STOPPED:
                return
            self._on_event(Event(EventKind.RESOURCE, f"instance {name}", "stopping", data={"id": ocid}))
            if present != LifecycleState.STOPPING:
                client.instance_action(ocid, "STOP" if at_once else "SOFTSTOP")
            ended = (*GONE, LifecycleState.STOPPED)
            if not wait_until(lambda: self.state(ocid) in ended, _STOP_SECONDS, _POLL):
                raise CloudError(
                    f"{name} does not stop after {_STOP_SECONDS / 60:.0f} min: its volume is not given to another host",
                    where=ocid,
                    hint="Stop it in the console of the cloud, then run the same command again",
                )
