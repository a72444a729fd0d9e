"""Who the members of a pool are.

Terraform does not wait for the members of a cluster network and does not know their addresses
(see docs/adr/0001-pool-ownership.md); the SDK does.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gpucluster.cloud.client import Access, everything, model, refusals
from gpucluster.cloud.cluster_network import ClusterNetwork, Failure, Look
from gpucluster.errors import CloudError
from gpucluster.events import Event, Sink

_POLL = 1.0
# How long a network rests before we believe that it will not move by itself: its listings may lag behind.
_SETTLED = 5.0


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


def numbered_names(pool: str, names: Mapping[str, str], wished: Sequence[str]) -> dict[str, str]:
    """The name of each member that has a place: its own where that is wished, else the first wished one that is free.

    Left out is who has no place: a member whose name `<pool>-<number>` is not wished, and what is more than was wished.

    Args:
        names: the present display name by instance OCID.
        wished: the names that the members are to have, `<pool>-<number>`, in the order in which they are given.
    """
    kept: dict[str, str] = {}
    for instance_id, name in sorted(names.items()):
        if name in wished and name not in kept:
            kept[name] = instance_id
    named = {instance_id: name for name, instance_id in kept.items()}
    nameless = (
        one for one in sorted(names) if one not in named and (names[one] in kept or not _number(pool, names[one]))
    )
    free = (name for name in wished if name not in kept)
    return named | dict(zip(nameless, free, strict=False))


class Instances:
    """Reads (and names) the instances of a compartment."""

    def __init__(self, access: Access, on_event: Sink) -> None:
        self._access = access
        self._on_event = on_event

    def members(self, pool: str, cluster_network_id: str, names: Sequence[str], deadline: float) -> tuple[Member, ...]:
        """The members of a pool's cluster network, once they all run, each with one of `names`.

        OCI gives the members of a cluster network random names and takes no pattern for them; we give each new one the
        first name that is free. The name is kept by the cloud, as the instance's display name.

        Args:
            names: those that the members are to have; as many members are waited for.
            deadline: seconds; bare metal takes up to 30 minutes for the first 20 nodes.

        Raises:
            CloudError: they do not run in time, or can't: with the reason that the cloud gives.
        """
        compute = self._access.client("core", "ComputeClient")
        network = ClusterNetwork(self._access, cluster_network_id, self._on_event)
        look = self._complete(network, pool, names, deadline)
        given = numbered_names(pool, look.members, names)
        with refusals("reading the members of a cluster network"), ThreadPoolExecutor(max_workers=8) as workers:
            found = list(
                workers.map(lambda one: self._named(compute, one, look.members[one], given[one]), sorted(given))
            )
        return tuple(sorted(found, key=lambda member: _number(pool, member.name)))

    def member(self, instance_id: str) -> Member:
        """One instance, with its address."""
        with refusals("reading an instance"):
            return self._member(self._access.client("core", "ComputeClient"), instance_id)

    def _complete(self, network: ClusterNetwork, pool: str, names: Sequence[str], deadline: float) -> Look:
        """The network once each of its members runs and has a name of those that are wished."""
        until = time.monotonic() + deadline
        announced, hopeless_since = -1, math.inf
        while True:
            look = network.look()
            whole = len(look.members) == len(numbered_names(pool, look.members, names)) == len(names)
            if whole and look.running == look.members.keys() and look.state == "RUNNING":
                return look
            trouble = _trouble(network, look, pool, names)
            hopeless_since = min(hopeless_since, time.monotonic()) if trouble else math.inf
            if trouble and (look.gone or time.monotonic() - hopeless_since >= _SETTLED):
                raise trouble
            if len(look.running) != announced:
                announced = len(look.running)
                self._on_event(Event("resource", look.name, "updating", f"{announced} of {len(names)} members run"))
            if time.monotonic() > until:
                raise CloudError(
                    f"only {announced} of {len(names)} members run after {deadline:.0f} s "
                    f"(the cluster network is {look.state})",
                    where=network.id,
                    hint="Look at its work requests for the reason, such as no capacity, and run apply again",
                )
            time.sleep(_POLL)

    def _named(self, compute: Any, instance_id: str, present: str, name: str) -> Member:
        if present != name:
            compute.update_instance(instance_id, model("core", "UpdateInstanceDetails", display_name=name))
        return self._member(compute, instance_id)

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


def _trouble(network: ClusterNetwork, look: Look, pool: str, names: Sequence[str]) -> CloudError | None:
    """Why the members will not become those that are wished, however long we wait; None while they may."""
    count = f"{len(look.running)} of {len(names)} members run"
    if not look.resting:
        return None
    if look.gone:
        failure = network.failure()
        why = f": {failure.words}" if failure else ""
        return CloudError(f"the cluster network is gone{why}", where=_where(network, failure), hint="Run apply again")
    placed = numbered_names(pool, look.members, names)
    surplus = sorted(name for one, name in look.members.items() if one not in placed)
    if surplus:
        return CloudError(
            f"the cluster network has members that cluster.yml does not wish for: {', '.join(surplus)}",
            where=network.id,
            hint="Run apply: it drains and removes them",
        )
    failure = network.failure() if len(look.members) < len(names) else None
    if failure is None:
        return None
    return CloudError(
        f"only {count}, and no more come: {failure.words}",
        where=_where(network, failure),
        hint="Run apply again to ask for them again, set `count` to what there is, or take another availability_domain",
    )


def _where(network: ClusterNetwork, failure: Failure | None) -> str:
    return f"{network.id}, work request {failure.work_request_id}" if failure else network.id
