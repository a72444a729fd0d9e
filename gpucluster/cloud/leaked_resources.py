"""What carries a cluster's tag and is in nobody's books.

A terraform that is killed between a create call and its own state file leaves a resource that it will never mention
again; on a real cloud it is billed for ever. `destroy` looks for such things by tag, and removes them.

A subscription to a listing of the Marketplace has no tags, costs nothing and may serve others in the compartment: it
is left alone.
"""

from __future__ import annotations

import http
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gpucluster.cloud.client import Access, everything, home_region, refusals
from gpucluster.errors import CloudError
from gpucluster.events import Event, Sink

_GONE = frozenset({"TERMINATING", "TERMINATED", "DELETING", "DELETED"})
_POLL = 0.5
_PATIENCE = 30 * 60.0


@dataclass(frozen=True)
class _Kind:
    """How one kind of resource is listed, read and removed: names of the SDK's methods.

    Args:
        in_tenancy: it may lie in the tenancy's root as well, and is written in the home region alone. Not every
            operator may list it; who may not has made none.
    """

    name: str
    service: str
    client: str
    needs_domain: bool = False
    in_tenancy: bool = False

    def method(self, verb: str, *, plural: bool = False) -> str:
        if not plural:
            return f"{verb}_{self.name}"
        return f"{verb}_{'policies' if self.name == 'policy' else f'{self.name}s'}"


# In the order in which they can be removed: users before what they use.
_KINDS = (
    _Kind("policy", "identity", "IdentityClient", in_tenancy=True),
    _Kind("dynamic_group", "identity", "IdentityClient", in_tenancy=True),
    _Kind("bastion", "bastion", "BastionClient"),
    _Kind("cluster_network", "core", "ComputeManagementClient"),
    _Kind("instance", "core", "ComputeClient"),
    _Kind("instance_configuration", "core", "ComputeManagementClient"),
    _Kind("compute_cluster", "core", "ComputeClient"),
    _Kind("mount_target", "file_storage", "FileStorageClient", needs_domain=True),
    _Kind("file_system", "file_storage", "FileStorageClient", needs_domain=True),
    _Kind("subnet", "core", "VirtualNetworkClient"),
    _Kind("route_table", "core", "VirtualNetworkClient"),
    _Kind("security_list", "core", "VirtualNetworkClient"),
    _Kind("network_security_group", "core", "VirtualNetworkClient"),
    _Kind("internet_gateway", "core", "VirtualNetworkClient"),
    _Kind("nat_gateway", "core", "VirtualNetworkClient"),
    _Kind("service_gateway", "core", "VirtualNetworkClient"),
    _Kind("vcn", "core", "VirtualNetworkClient"),
)
_TERMINATED_KINDS = frozenset({"cluster_network", "instance"})


@dataclass(frozen=True)
class Orphan:
    """A resource with the cluster's tag: its kind, OCID and display name."""

    kind: str
    id: str
    name: str


class Orphans:
    """Finds and removes what carries a free-form tag.

    Args:
        tag: the key and the value that mark this cluster's resources.
        keep: OCIDs of what cluster.yml names and gpucluster did not make: never touched, whatever tag is on it.
    """

    def __init__(
        self, access: Access, tag: tuple[str, str], on_event: Sink, *, keep: AbstractSet[str] = frozenset()
    ) -> None:
        self._access = access
        self._tag = tag
        self._on_event = on_event
        self._keep = keep

    def find(self) -> tuple[Orphan, ...]:
        """Everything that carries the tag and is not gone yet."""
        with refusals("looking for what an earlier run left behind"):
            domains = self._domains()
            return tuple(
                Orphan(kind.name, thing.id, _name(thing))
                for kind in _KINDS
                for thing in self._list(kind, domains)
                if self._ours(thing)
            )

    def remove(self, orphans: Sequence[Orphan]) -> None:
        """Remove these, in an order that works, and wait until each is gone."""
        kinds: Mapping[str, _Kind] = {kind.name: kind for kind in _KINDS}
        for orphan in sorted(orphans, key=lambda one: [kind.name for kind in _KINDS].index(one.kind)):
            kind = kinds[orphan.kind]
            client = self._client(kind)
            verb = "terminate" if kind.name in _TERMINATED_KINDS else "delete"
            self._on_event(Event("resource", f"{orphan.kind} {orphan.name}", "deleting"))
            with refusals(f"removing the {orphan.kind} {orphan.name} that an earlier run left behind"):
                getattr(client, kind.method(verb))(orphan.id)
                self._wait_until_gone(getattr(client, kind.method("get")), orphan)
            self._on_event(Event("resource", f"{orphan.kind} {orphan.name}", "deleted", "left by a killed run"))

    def _domains(self) -> tuple[str, ...]:
        identity = self._access.client("identity", "IdentityClient")
        listed = identity.list_availability_domains(self._access.compartment_id).data
        return tuple(domain.name for domain in listed)

    @cached_property
    def _home(self) -> Access:
        """The same in the home region, where alone groups and policies are written."""
        if self._access.endpoint:
            return self._access
        return replace(self._access, config={**self._access.config, "region": home_region(self._access)})

    def _client(self, kind: _Kind) -> Any:
        return (self._home if kind.in_tenancy else self._access).client(kind.service, kind.client)

    def _list(self, kind: _Kind, domains: Sequence[str]) -> list[Any]:
        call: Callable[..., Any] = getattr(self._client(kind), kind.method("list", plural=True))
        compartment = self._access.compartment_id
        if kind.in_tenancy:
            places = dict.fromkeys((compartment, self._access.config["tenancy"]))
            return [thing for place in places for thing in _allowed(call, place)]
        if kind.needs_domain:
            return [thing for domain in domains for thing in everything(call, compartment, domain)]
        if kind.service == "core" and kind.client == "VirtualNetworkClient":
            return everything(call, compartment_id=compartment)
        return everything(call, compartment)

    def _ours(self, thing: Any) -> bool:
        key, value = self._tag
        tags = getattr(thing, "freeform_tags", None) or {}
        gone = str(getattr(thing, "lifecycle_state", "")).upper() in _GONE
        return tags.get(key) == value and not gone and thing.id not in self._keep

    def _wait_until_gone(self, get: Callable[[str], Any], orphan: Orphan) -> None:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            try:
                state = getattr(get(orphan.id).data, "lifecycle_state", None)
            except Exception as error:
                if getattr(error, "status", None) == http.HTTPStatus.NOT_FOUND:
                    return
                raise
            if state is None or str(state).upper() in ("TERMINATED", "DELETED"):
                return
            time.sleep(_POLL)
        raise CloudError(f"the {orphan.kind} {orphan.name} does not go away", where=orphan.id, hint="Run destroy again")


def _name(thing: Any) -> str:
    """Most things have a display name, some a name, a few none."""
    return str(getattr(thing, "display_name", None) or getattr(thing, "name", None) or thing.id)


def _allowed(call: Callable[..., Any], place: str) -> list[Any]:
    """A listing, empty for one who may not list there: OCI does not tell that from a place that is not there."""
    try:
        return everything(call, place)
    except Exception as error:
        if getattr(error, "status", None) in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.FORBIDDEN):
            return []
        raise
