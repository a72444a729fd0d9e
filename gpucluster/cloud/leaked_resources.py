"""Leaked resources: they have a cluster's tag and are not in Terraform's state.

If Terraform is killed after a create request and before it writes its state, it leaves a resource that it does not
know. OCI bills it until it is removed. `destroy` finds such resources by their tag and removes them.

A subscription to a Marketplace listing has no tags, costs nothing and may serve others in the compartment. It is not
removed.
"""

from __future__ import annotations

import http
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gpucluster.cloud.client import Access, all_pages, home_region, refusals
from gpucluster.errors import CloudError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.oci import tags
from gpucluster.oci.states import ENDED, GONE
from gpucluster.waiting import wait_until

_POLL = 0.5
_TIMEOUT = 30 * 60.0


@dataclass(frozen=True)
class _Kind:
    """How one kind of resource is listed, read and removed: the names of the SDK's methods.

    Args:
        needs_domain: it is listed by availability domain.
        in_tenancy: it may also be in the tenancy's root compartment, and is only written in the home region. An
            operator who is not allowed to list it has not created any.
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


# In the order in which they can be removed: a resource before those that it uses.
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
class LeakedResource:
    """A resource with the cluster's tag: its kind, OCID and display name.

    Args:
        state: its lifecycle state; empty for kinds without one.
        pool: the pool that its tags name; empty if they name none.
        elastic: an instance that Terraform did not create: an elastic node or a builder.
    """

    kind: str
    id: str
    name: str
    state: str = ""
    pool: str = ""
    elastic: bool = False


class LeakedResources:
    """Finds and removes the resources with the tag of a cluster.

    Args:
        cluster: the name of the cluster.
        keep: OCIDs of resources that cluster.yml names and gpucluster did not create. They are never removed, whatever
            tags they have.
    """

    def __init__(self, access: Access, cluster: str, on_event: Sink, *, keep: AbstractSet[str] = frozenset()) -> None:
        self._access = access
        self._cluster = cluster
        self._on_event = on_event
        self._keep = keep

    def find(self) -> tuple[LeakedResource, ...]:
        """Every resource that has the tag and is not gone."""
        with refusals("listing the resources that an earlier run left"):
            domains = self._domains()
            return tuple(
                _described(kind, resource, self._cluster)
                for kind in _KINDS
                for resource in self._list(kind, domains)
                if self._ours(resource)
            )

    def remove(self, resources: Sequence[LeakedResource]) -> None:
        """Remove these resources in the order of their dependencies, and wait until each is deleted."""
        kinds: Mapping[str, _Kind] = {kind.name: kind for kind in _KINDS}
        order = list(kinds)
        for resource in sorted(resources, key=lambda leaked: order.index(leaked.kind)):
            kind = kinds[resource.kind]
            client = self._client(kind)
            verb = "terminate" if kind.name in _TERMINATED_KINDS else "delete"
            self._on_event(Event(EventKind.RESOURCE, f"{resource.kind} {resource.name}", "deleting"))
            with refusals(f"removing the {resource.kind} {resource.name} that an earlier run left"):
                getattr(client, kind.method(verb))(resource.id)
                self._wait_until_gone(getattr(client, kind.method("get")), resource)
            self._on_event(
                Event(EventKind.RESOURCE, f"{resource.kind} {resource.name}", "deleted", "left by a killed run")
            )

    def _domains(self) -> tuple[str, ...]:
        identity = self._access.client("identity", "IdentityClient")
        listed = identity.list_availability_domains(self._access.compartment_id).data
        return tuple(domain.name for domain in listed)

    @cached_property
    def _home(self) -> Access:
        """The access to the home region: groups and policies are only written there."""
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
            return [resource for place in places for resource in _allowed(call, place)]
        if kind.needs_domain:
            return [resource for domain in domains for resource in all_pages(call, compartment, domain)]
        if kind.service == "core" and kind.client == "VirtualNetworkClient":
            return all_pages(call, compartment_id=compartment)
        return all_pages(call, compartment)

    def _ours(self, resource: Any) -> bool:
        gone = str(getattr(resource, "lifecycle_state", "")).upper() in GONE
        tagged = tags.of_cluster(getattr(resource, "freeform_tags", None), self._cluster)
        return tagged and not gone and resource.id not in self._keep

    def _wait_until_gone(self, get: Callable[[str], Any], resource: LeakedResource) -> None:
        def gone() -> bool:
            try:
                state = getattr(get(resource.id).data, "lifecycle_state", None)
            except Exception as error:
                if getattr(error, "status", None) == http.HTTPStatus.NOT_FOUND:
                    return True
                raise
            return state is None or str(state).upper() in ENDED

        if not wait_until(gone, _TIMEOUT, _POLL):
            raise CloudError(
                f"the {resource.kind} {resource.name} is not deleted after {_TIMEOUT / 60:.0f} min",
                where=resource.id,
                hint="Run: gpucluster destroy",
            )


def _described(kind: _Kind, resource: Any, cluster: str) -> LeakedResource:
    found: Mapping[str, str] = resource.freeform_tags
    state = str(getattr(resource, "lifecycle_state", None) or "")
    elastic = kind.name == "instance" and tags.elastic_or_builder(found, cluster)
    return LeakedResource(kind.name, resource.id, _name(resource), state, found.get(tags.POOL, ""), elastic)


def _name(resource: Any) -> str:
    """Most resources have a display name, some a name, a few neither."""
    return str(getattr(resource, "display_name", None) or getattr(resource, "name", None) or resource.id)


def _allowed(call: Callable[..., Any], place: str) -> list[Any]:
    """A listing; empty if the operator may not list there. OCI answers a missing compartment in the same way."""
    try:
        return all_pages(call, place)
    except Exception as error:
        if getattr(error, "status", None) in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.FORBIDDEN):
            return []
        raise
