"""Moves what belongs to the controller in service from one instance to another: its volume and its address.

Facts: a volume without a shareable attachment is on one instance at a time (docs: "Attaching a Block Volume"). The
address is a secondary private IP, which UpdatePrivateIp moves to another VNIC of the same subnet; it ends with its VNIC
(SDK: `update_private_ip`, `delete_private_ip`), and the same number can be had again while no other host has it.
"""

from __future__ import annotations

import http
from collections.abc import Mapping
from typing import Any

from gpucluster.cloud.client import CloudAccess, all_pages, model, refusals, unless_refused
from gpucluster.cloud.power import InstancePower
from gpucluster.errors import CloudError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.oci.names import STATE_DEVICE, service_address, state_volume
from gpucluster.oci.states import GONE, LifecycleState
from gpucluster.waiting import wait_until

# OCI attaches and detaches within seconds; a detach of a volume whose instance has just stopped took longest.
_VOLUME_SECONDS = 300.0
_POLL = 1.0


class ServiceMove:
    """The volume and the address of one cluster's controller.

    Args:
        cluster: its name.
        tags: of what is made.
    """

    def __init__(self, access: CloudAccess, cluster: str, on_event: Sink, *, tags: Mapping[str, str]) -> None:
        self._access = access
        self._cluster = cluster
        self._tags = dict(tags)
        self._on_event = on_event

    def holder(self, volume: str) -> str:
        """The OCID of the instance that has the volume; empty if none has it.

        Raises:
            CloudError: the cloud refused.
        """
        with refusals("looking for the volume with the controller's state"):
            attachment = self._attachment(self._access.client("core", "ComputeClient"), volume)
        return str(attachment.instance_id) if attachment else ""

    def give_volume(self, volume: str, instance: str) -> None:
        """Attach the volume to an instance. It is detached from another one, which must be stopped or gone.

        Raises:
            CloudError: the cloud refused, or does not end it in time.
        """
        client = self._access.client("core", "ComputeClient")
        asked: set[tuple[str, str]] = set()

        def has_it() -> bool:
            attachment = self._attachment(client, volume)
            if attachment is None:
                if ("attach", "") not in asked:
                    self._event("attaching", instance)
                    asked.add(("attach", ""))
                self._attach(client, volume, instance)
                return False
            if attachment.instance_id == instance:
                return str(attachment.lifecycle_state) == LifecycleState.ATTACHED
            if str(attachment.lifecycle_state) == LifecycleState.ATTACHED and ("detach", attachment.id) not in asked:
                self._require_fenced(str(attachment.instance_id))
                self._event("detaching", str(attachment.instance_id))
                client.detach_volume(attachment.id)
                asked.add(("detach", attachment.id))
            return False

        with refusals("moving the volume with the controller's state"):
            if not wait_until(has_it, _VOLUME_SECONDS, _POLL):
                raise CloudError(
                    f"the volume with the controller's state is not on {instance} after {_VOLUME_SECONDS:.0f} s",
                    where=volume,
                    hint="See in the console of the cloud what it is attached to, then run the same command again",
                )

    def give_address(self, address: str, instance: str) -> str:
        """Give an instance the address that moves with the service. Returns it.

        Args:
            address: empty lets the cloud choose one, the first time.

        Raises:
            CloudError: the cloud refused; the address may belong to another host meanwhile.
        """
        network = self._access.client("core", "VirtualNetworkClient")
        with refusals("moving the address of the controller"):
            vnic = self._vnic(instance)
            subnet = network.get_vnic(vnic).data.subnet_id
            present = [
                each
                for each in all_pages(network.list_private_ips, subnet_id=subnet)
                if not each.is_primary
                and (each.ip_address == address if address else each.display_name == service_address(self._cluster))
            ]
            if not present:
                details = model(
                    "core",
                    "CreatePrivateIpDetails",
                    vnic_id=vnic,
                    ip_address=address or None,
                    display_name=service_address(self._cluster),
                    freeform_tags=self._tags,
                )
                return str(network.create_private_ip(details).data.ip_address)
            if present[0].vnic_id != vnic:
                self._on_event(Event(EventKind.RESOURCE, f"address {present[0].ip_address}", "moving"))
                network.update_private_ip(present[0].id, model("core", "UpdatePrivateIpDetails", vnic_id=vnic))
            return str(present[0].ip_address)

    def _vnic(self, instance: str) -> str:
        compute, compartment = self._access.client("core", "ComputeClient"), self._access.compartment_id
        listed = all_pages(compute.list_vnic_attachments, compartment_id=compartment, instance_id=instance)
        for each in listed:
            if str(each.lifecycle_state) == LifecycleState.ATTACHED:
                return str(each.vnic_id)
        raise CloudError(f"instance {instance} has no network interface", hint="See it in the console of the cloud")

    def _attachment(self, client: Any, volume: str) -> Any | None:
        """The attachment of the volume that exists; None without one. Ended ones are listed for a while."""
        listed = all_pages(client.list_volume_attachments, compartment_id=self._access.compartment_id, volume_id=volume)
        live = [each for each in listed if str(each.lifecycle_state) != LifecycleState.DETACHED]
        return live[0] if live else None

    def _require_fenced(self, instance: str) -> None:
        """Two hosts must never write to one volume.

        Raises:
            CloudError: the instance runs.
        """
        state = InstancePower(self._access, self._on_event).state(instance)
        if state not in (*GONE, LifecycleState.STOPPED):
            raise CloudError(
                f"the volume with the controller's state is on {instance}, which is {state}: it is not taken away",
                hint="Stop that instance first, then run the same command again",
            )

    def _attach(self, client: Any, volume: str, instance: str) -> None:
        details = model(
            "core",
            "AttachParavirtualizedVolumeDetails",
            instance_id=instance,
            volume_id=volume,
            device=STATE_DEVICE,
            display_name=state_volume(self._cluster),
        )
        # 409: a list may lag behind a detach that has just ended.
        unless_refused(lambda: client.attach_volume(details), http.HTTPStatus.CONFLICT)

    def _event(self, action: str, instance: str) -> None:
        volume = state_volume(self._cluster)
        self._on_event(Event(EventKind.RESOURCE, f"volume {volume}", action, data={"instance": instance}))
