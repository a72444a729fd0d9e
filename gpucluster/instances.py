"""Who the members of a pool are.

Terraform does not wait for the members of a cluster network and does not know their addresses
(see docs/adr/0001-pool-ownership.md); the SDK does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gpucluster.errors import CloudError
from gpucluster.events import Event, Sink
from gpucluster.sdk import Access, everything, model, refusals

_POLL = 1.0


@dataclass(frozen=True)
class Member:
    """One running instance of a pool."""

    id: str
    name: str
    private_ip: str
    public_ip: str = ""


def _number(pool: str, name: str) -> int:
    """The number in a name that we gave; 0 for a name that we did not give."""
    match = re.fullmatch(rf"{re.escape(pool)}-([1-9][0-9]*)", name)
    return int(match.group(1)) if match else 0


def numbered_names(pool: str, names: Mapping[str, str]) -> dict[str, str]:
    """The name of each member: its own where it is one of ours, else `<pool>-<lowest free number>`.

    Args:
        names: the present display name by instance OCID.
    """
    kept: dict[int, str] = {}
    for instance_id, name in sorted(names.items()):
        number = _number(pool, name)
        if number and number not in kept:
            kept[number] = instance_id
    named = {instance_id: f"{pool}-{number}" for number, instance_id in kept.items()}
    free = (number for number in range(1, len(names) + len(kept) + 1) if number not in kept)
    for instance_id in sorted(names):
        if instance_id not in named:
            named[instance_id] = f"{pool}-{next(free)}"
    return named


class Instances:
    """Reads (and names) the instances of a compartment."""

    def __init__(self, access: Access, on_event: Sink) -> None:
        self._access = access
        self._on_event = on_event

    def members(self, pool: str, cluster_network_id: str, size: int, deadline: float) -> tuple[Member, ...]:
        """The members of a pool's cluster network, once `size` of them run, each with a name `<pool>-<number>`.

        OCI gives the members of a cluster network random names and takes no pattern for them; we give each new one the
        lowest free number. The name is kept by the cloud, as the instance's display name.

        Args:
            deadline: seconds; bare metal takes up to 30 minutes for the first 20 nodes.

        Raises:
            CloudError: they do not run in time, or the cluster network failed.
        """
        compute = self._access.client("core", "ComputeClient")
        with refusals("reading the members of a cluster network"):
            listed = self._running(cluster_network_id, size, deadline)
            names = numbered_names(pool, {instance.id: instance.display_name for instance in listed})
            with ThreadPoolExecutor(max_workers=8) as workers:
                found = list(workers.map(lambda instance: self._named(compute, instance, names[instance.id]), listed))
        return tuple(sorted(found, key=lambda member: _number(pool, member.name)))

    def member(self, instance_id: str) -> Member:
        """One instance, with its address."""
        with refusals("reading an instance"):
            return self._member(self._access.client("core", "ComputeClient"), instance_id)

    def _running(self, cluster_network_id: str, size: int, deadline: float) -> list[Any]:
        management = self._access.client("core", "ComputeManagementClient")
        until = time.monotonic() + deadline
        announced = -1
        while True:
            network = management.get_cluster_network(cluster_network_id).data
            listed = everything(management.list_cluster_network_instances, network.compartment_id, cluster_network_id)
            running = [instance for instance in listed if instance.state.upper() == "RUNNING"]
            if len(running) == size and len(listed) == size and network.lifecycle_state == "RUNNING":
                return running
            if network.lifecycle_state in ("TERMINATING", "TERMINATED"):
                raise CloudError("the cluster network is gone", where=cluster_network_id, hint="Run apply again")
            if len(running) != announced:
                announced = len(running)
                self._on_event(
                    Event("resource", network.display_name, "updating", f"{announced} of {size} members run")
                )
            if time.monotonic() > until:
                raise CloudError(
                    f"only {len(running)} of {size} members run after {deadline:.0f} s "
                    f"(the cluster network is {network.lifecycle_state})",
                    where=cluster_network_id,
                    hint="Look at its work requests for the reason, such as no capacity, and run apply again",
                )
            time.sleep(_POLL)

    def _named(self, compute: Any, instance: Any, name: str) -> Member:
        if instance.display_name != name:
            compute.update_instance(instance.id, model("core", "UpdateInstanceDetails", display_name=name))
        return self._member(compute, instance.id)

    def _member(self, compute: Any, instance_id: str) -> Member:
        network = self._access.client("core", "VirtualNetworkClient")
        instance = compute.get_instance(instance_id).data
        attachments = everything(compute.list_vnic_attachments, instance.compartment_id, instance_id=instance_id)
        for attachment in attachments:
            if attachment.lifecycle_state != "ATTACHED":
                continue
            vnic = network.get_vnic(attachment.vnic_id).data
            if vnic.is_primary:
                return Member(instance.id, instance.display_name, vnic.private_ip, vnic.public_ip or "")
        raise CloudError("the instance has no primary VNIC", where=instance_id, hint="Run apply again")
