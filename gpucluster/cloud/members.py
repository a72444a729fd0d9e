"""The members of a pool: their names and addresses.

Terraform does not wait for the members of a cluster network and does not know their addresses
(see docs/adr/0001-pool-ownership.md); the SDK does.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from gpucluster.cloud.client import CloudAccess, all_pages, model, refusals
from gpucluster.cloud.cluster_network import ClusterNetwork, Failure, NetworkStatus
from gpucluster.cloud.gpu_memory_cluster import launched_together
from gpucluster.errors import CloudError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.oci import tags
from gpucluster.oci.states import LifecycleState
from gpucluster.waiting import wait_until

_POLL = 1.0
# How long a network must be idle before we conclude that no more members are launched: its listings may lag behind.
_SETTLED = 5.0


@dataclass(frozen=True)
class PoolMember:
    """One running instance of a pool."""

    id: str
    name: str
    private_ip: str
    public_ip: str = ""


@dataclass(frozen=True)
class TaggedHosts:
    """The running hosts of a cluster as the cloud knows them: the controller, None without one, nodes by pool, and the
    login nodes."""

    controller: PoolMember | None
    nodes: Mapping[str, tuple[PoolMember, ...]]
    login: tuple[PoolMember, ...] = ()


def _number(pool: str, name: str) -> int:
    """The number in a name `<pool>-<number>`; 0 for any other name."""
    match = re.fullmatch(rf"{re.escape(pool)}-([1-9][0-9]*)", name)
    return int(match.group(1)) if match else 0


def _trailing_number(name: str) -> tuple[int, str]:
    """By which login nodes are sorted: `demo-login-10` is after `demo-login-2`."""
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0, name


def numbered_names(pool: str, names: Mapping[str, str], desired: Sequence[str]) -> dict[str, str]:
    """The name that each member of a pool should have, by instance OCID.

    A member keeps its name if that is desired. A member without a name of ours gets the first desired name that is
    free. Left out are members that should not exist: those named `<pool>-<number>` whose name is not desired, and those
    for which no name is left.

    Args:
        names: the present display name by instance OCID.
        desired: the names that the members should have, `<pool>-<number>`, in the order in which they are given.
    """
    holders: dict[str, str] = {}
    for instance_id, name in sorted(names.items()):
        if name in desired and name not in holders:
            holders[name] = instance_id
    named = {instance_id: name for name, instance_id in holders.items()}
    unnamed = (
        ocid
        for ocid in sorted(names)
        if ocid not in named and (names[ocid] in holders or not _number(pool, names[ocid]))
    )
    free = (name for name in desired if name not in holders)
    return named | dict(zip(unnamed, free, strict=False))


class PoolMembers:
    """Reads, waits for and names the members of pools."""

    def __init__(self, access: CloudAccess, on_event: Sink) -> None:
        self._access = access
        self._on_event = on_event

    def members(
        self, pool: str, cluster_network_id: str, names: Sequence[str], deadline: float
    ) -> tuple[PoolMember, ...]:
        """The members of a pool's cluster network, once all of them run and each has one of `names`.

        OCI gives the members of a cluster network random names and accepts no pattern for them. We give each new member
        the first name that is free. The cloud keeps it, as the instance's display name.

        Args:
            names: the names that the members should have. The number of names is the number of members to wait for.
            deadline: seconds from now. Bare metal takes up to 30 minutes for the first 20 nodes.

        Raises:
            CloudError: not all members run in time, or OCI will not launch them; the text has the reason.
        """
        compute = self._access.client("core", "ComputeClient")
        network = launched_together(self._access, cluster_network_id, self._on_event)
        present = _Completion(network, pool, names, self._on_event).wait(deadline).members
        name_of = numbered_names(pool, present, names)
        with refusals("reading the members of a cluster network"), ThreadPoolExecutor(max_workers=8) as workers:
            named = list(
                workers.map(lambda ocid: self._named(compute, ocid, present[ocid], name_of[ocid]), sorted(name_of))
            )
        return tuple(sorted(named, key=lambda member: _number(pool, member.name)))

    def present(self, pool: str, cluster_network_id: str, names: Sequence[str]) -> tuple[PoolMember, ...]:
        """The members that run now and have one of `names`, or will get one. Reads only, and waits for nothing.

        Raises:
            CloudError: the cloud refused. A network that was deleted has no members.
        """
        status = launched_together(self._access, cluster_network_id, self._on_event).present()
        if status is None:
            return ()
        name_of = numbered_names(pool, {ocid: status.members[ocid] for ocid in status.running}, names)
        with refusals("reading the members of a cluster network"), ThreadPoolExecutor(max_workers=8) as workers:
            compute = self._access.client("core", "ComputeClient")
            unnamed = workers.map(lambda ocid: self._member(compute, ocid), name_of)
            named = [replace(member, name=name_of[member.id]) for member in unnamed]
        return tuple(sorted(named, key=lambda member: _number(pool, member.name)))

    def tagged(self, cluster: str) -> TaggedHosts:
        """The controller, the login nodes and the permanent nodes of a cluster, found by their tags alone: Terraform's
        state is not needed. Instances that do not run are left out.

        Raises:
            CloudError: the cloud refused, or there is more than one controller.
        """
        with refusals("listing the instances of the cluster"), ThreadPoolExecutor(max_workers=8) as workers:
            compute = self._access.client("core", "ComputeClient")
            listed = [
                instance
                for compartment in self._access.compartments()
                for instance in all_pages(compute.list_instances, compartment)
                if instance.lifecycle_state == LifecycleState.RUNNING
            ]
            controllers = [each for each in listed if tags.controller(each.freeform_tags, cluster)]
            nodes = [each for each in listed if tags.permanent_node_pool(each.freeform_tags, cluster)]
            login = [each for each in listed if tags.of_cluster(each.freeform_tags, cluster)]
            login = [each for each in login if tags.login_node(each.freeform_tags)]
            hosts = [*controllers, *login, *nodes]
            if len(controllers) > 1:
                raise CloudError(
                    f"the compartment has {len(controllers)} controllers with the tag {tags.CLUSTER}={cluster}",
                    where=", ".join(sorted(each.id for each in controllers)),
                    hint="Terminate those that are not the cluster's, then run the same command again",
                )
            members = dict(
                zip(
                    (each.id for each in hosts),
                    workers.map(lambda each: self._member(compute, each.id), hosts),
                    strict=True,
                )
            )
        pools: dict[str, list[PoolMember]] = {}
        for node in nodes:
            pools.setdefault(tags.permanent_node_pool(node.freeform_tags, cluster), []).append(members[node.id])
        return TaggedHosts(
            members[controllers[0].id] if controllers else None,
            {
                pool: tuple(sorted(of_pool, key=lambda member: (_number(pool, member.name), member.name)))
                for pool, of_pool in sorted(pools.items())
            },
            tuple(sorted((members[each.id] for each in login), key=lambda member: _trailing_number(member.name))),
        )

    def member(self, instance_id: str) -> PoolMember:
        """One instance, with its address."""
        with refusals("reading an instance"):
            return self._member(self._access.client("core", "ComputeClient"), instance_id)

    def _named(self, compute: Any, instance_id: str, present: str, name: str) -> PoolMember:
        if present != name:
            compute.update_instance(instance_id, model("core", "UpdateInstanceDetails", display_name=name))
        return self._member(compute, instance_id)

    def _member(self, compute: Any, instance_id: str) -> PoolMember:
        network = self._access.client("core", "VirtualNetworkClient")
        instance = compute.get_instance(instance_id).data
        attachments = all_pages(compute.list_vnic_attachments, instance.compartment_id, instance_id=instance_id)
        for attachment in attachments:
            if attachment.lifecycle_state != LifecycleState.ATTACHED:
                continue
            vnic = network.get_vnic(attachment.vnic_id).data
            if vnic.is_primary:
                return PoolMember(instance.id, instance.display_name, vnic.private_ip, vnic.public_ip or "")
        raise CloudError("the instance has no primary VNIC", where=instance_id, hint="Run: gpucluster apply")


@dataclass
class _Completion:
    """The wait for all members of a cluster network.

    Args:
        names: the names that the members should have.
    """

    network: ClusterNetwork
    pool: str
    names: Sequence[str]
    on_event: Sink
    _announced: int = -1
    _blocked_since: float = math.inf

    def wait(self, timeout: float) -> NetworkStatus:
        """Return the network's status once each member runs and can have one of the names.

        Raises:
            CloudError: the time is over, or OCI will not launch the members that are missing.
        """
        status = wait_until(self._complete, timeout, _POLL)
        if status is None:
            raise CloudError(
                f"only {self._announced} of {len(self.names)} members run after {timeout:.0f} s "
                f"(the {self.network.noun} is {self.network.status().state})",
                where=self.network.id,
                hint="Read its work requests in the console for the reason, such as no capacity, then run: "
                "gpucluster apply",
            )
        return status

    def _complete(self) -> NetworkStatus | None:
        status = self.network.status()
        placed = numbered_names(self.pool, status.members, self.names)
        complete = len(status.members) == len(placed) == len(self.names)
        if complete and status.running == status.members.keys() and status.state == LifecycleState.RUNNING:
            return status
        self._raise_if_blocked(status)
        if len(status.running) != self._announced:
            self._announced = len(status.running)
            message = f"{self._announced} of {len(self.names)} members run"
            self.on_event(Event(EventKind.RESOURCE, status.name, "updating", message))
        return None

    def _raise_if_blocked(self, status: NetworkStatus) -> None:
        """Raise if the network is gone, or if it has been idle for a while without the desired members."""
        error = _blocking_error(self.network, status, self.pool, self.names)
        self._blocked_since = min(self._blocked_since, time.monotonic()) if error else math.inf
        if error and (status.gone or time.monotonic() - self._blocked_since >= _SETTLED):
            raise error


def _blocking_error(
    network: ClusterNetwork, status: NetworkStatus, pool: str, names: Sequence[str]
) -> CloudError | None:
    """The error if OCI will not launch or remove members by itself; None as long as it may."""
    if not status.idle:
        return None
    if status.gone:
        failure = network.failure()
        why = f": {failure.reason}" if failure else ""
        return CloudError(
            f"the {network.noun} is gone{why}", where=_where(network, failure), hint="Run: gpucluster apply"
        )
    placed = numbered_names(pool, status.members, names)
    surplus = sorted(name for ocid, name in status.members.items() if ocid not in placed)
    if surplus:
        return CloudError(
            f"the {network.noun} has members that are not in cluster.yml: {', '.join(surplus)}",
            where=network.id,
            hint="Run: gpucluster apply. It drains and removes them",
        )
    failure = network.failure() if len(status.members) < len(names) else None
    if failure is None:
        return None
    return CloudError(
        f"only {len(status.running)} of {len(names)} members run, and OCI launches no more: {failure.reason}",
        where=_where(network, failure),
        hint="Run: gpucluster apply. It asks for them again. If OCI does not launch them, set `count` in cluster.yml "
        "to the number that runs, or name another `availability_domain`",
    )


def _where(network: ClusterNetwork, failure: Failure | None) -> str:
    return f"{network.id}, work request {failure.work_request_id}" if failure else network.id
