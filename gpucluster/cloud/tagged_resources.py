"""The resources with a cluster's tag: what exists of it in the cloud, whatever a state or this machine knows.

Before a plan they are compared with Terraform's state, and what no state knows is adopted (`handover.adoption`). Before
and after a destroy they are removed.

Three kinds of things that belong to a cluster are not listed here, because others own them: baked images
(`baked_images`), subscriptions to Marketplace listings (they have no tags, cost nothing and may serve others in the
compartment), and the shapes that an image is made compatible with (a property of a user's image).
"""

from __future__ import annotations

import http
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from gpucluster.cloud.client import CloudAccess, SharedClients, all_pages, home_region, refusals, unless_refused
from gpucluster.errors import CloudError
from gpucluster.events import Event, EventKind, Sink, info
from gpucluster.oci import tags
from gpucluster.oci.states import ENDED, GONE, STARTING
from gpucluster.waiting import wait_until

_POLL = 0.5
_TIMEOUT = 90 * 60.0  # bare metal is wiped when an instance ends
_LAUNCH_TIMEOUT = 60 * 60.0  # bare metal: the firmware tests the hardware first
# How long a delete is repeated while another resource that is being deleted still uses this one.
_IN_USE = 30.0
_WORKERS = 10
_REFUSED = (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.FORBIDDEN)


@dataclass(frozen=True)
class _Kind:
    """How one kind of resource is listed, read and removed: the names of the SDK's methods.

    Args:
        needs_domain: it is listed by availability domain.
        in_tenancy: it may also be in the tenancy's root compartment, and is only written in the home region.
        elastic: it may also be in the compartment of elastic nodes.
        always: every cluster has it. Of other kinds, an operator who is not allowed to list them has not created any.
    """

    name: str
    service: str
    client: str
    needs_domain: bool = False
    in_tenancy: bool = False
    elastic: bool = False
    always: bool = False

    def method(self, verb: str, *, plural: bool = False) -> str:
        if not plural:
            return "detach_volume" if (verb, self.name) == ("delete", "volume_attachment") else f"{verb}_{self.name}"
        return f"{verb}_{'policies' if self.name == 'policy' else f'{self.name}s'}"


_EXPORT = _Kind("export", "file_storage", "FileStorageClient")
_ATTACHMENT = _Kind("volume_attachment", "core", "ComputeClient")
# They have no tags: an export is found by its mount target, an attachment by its volume.
_UNTAGGED = (_EXPORT, _ATTACHMENT)
# In the order in which they can be removed: a resource before those that it uses.
_KINDS = (
    _Kind("policy", "identity", "IdentityClient", in_tenancy=True),
    _Kind("dynamic_group", "identity", "IdentityClient", in_tenancy=True),
    _Kind("bastion", "bastion", "BastionClient"),
    _Kind("node_pool", "container_engine", "ContainerEngineClient"),
    _Kind("cluster", "container_engine", "ContainerEngineClient"),
    _Kind("cluster_network", "core", "ComputeManagementClient"),
    _Kind("compute_gpu_memory_cluster", "core", "ComputeClient"),
    _Kind("instance", "core", "ComputeClient", elastic=True, always=True),
    _ATTACHMENT,
    _Kind("volume", "core", "BlockstorageClient"),
    _Kind("instance_configuration", "core", "ComputeManagementClient", elastic=True),
    _Kind("compute_cluster", "core", "ComputeClient", elastic=True),
    _EXPORT,
    _Kind("mount_target", "file_storage", "FileStorageClient", needs_domain=True),
    _Kind("file_system", "file_storage", "FileStorageClient", needs_domain=True),
    _Kind("subnet", "core", "VirtualNetworkClient", always=True),
    _Kind("route_table", "core", "VirtualNetworkClient", always=True),
    _Kind("security_list", "core", "VirtualNetworkClient", always=True),
    _Kind("network_security_group", "core", "VirtualNetworkClient"),
    _Kind("internet_gateway", "core", "VirtualNetworkClient", always=True),
    _Kind("nat_gateway", "core", "VirtualNetworkClient", always=True),
    _Kind("service_gateway", "core", "VirtualNetworkClient", always=True),
    _Kind("vcn", "core", "VirtualNetworkClient", always=True),
)
KINDS: Mapping[str, int] = {kind.name: position for position, kind in enumerate(_KINDS)}
_BY_NAME: Mapping[str, _Kind] = {kind.name: kind for kind in _KINDS}
_TERMINATED_KINDS = frozenset({"cluster_network", "instance"})
# The attributes in which a resource names others that it uses, as the SDK has them.
_USES = ("cluster_id", "vcn_id", "subnet_id", "target_subnet_id", "route_table_id", "file_system_id")


def certainly_listed(resources: Iterable[TaggedResource]) -> frozenset[str]:
    """The kinds of which a listing certainly has all: those that every operator may list, and those of a service of
    which it has something. Who may not list a kind gets an empty list of it. Groups and policies are never certain:
    their rights are given one by one.
    """
    services = {_BY_NAME[each.kind].service for each in resources}
    return frozenset(kind.name for kind in _KINDS if kind.always or (kind.service in services and not kind.in_tenancy))


@dataclass(frozen=True)
class TaggedResource:
    """A resource of a cluster.

    Args:
        name: the display name; of an export, its path.
        state: the lifecycle state; empty for a kind that has none.
        tags: the free-form tags; an export has none.
        created: when, in RFC 3339, so that it can be compared as text.
        uses: OCIDs of resources that this one needs.
        image_id: of an instance, the OCID of the image that it was launched from.
        launched_by_others: an instance that Terraform does not launch by itself: the member of a cluster network, an
            elastic node, or a builder.
    """

    kind: str
    id: str
    name: str
    state: str = ""
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)
    created: str = ""
    uses: frozenset[str] = frozenset()
    image_id: str = ""
    launched_by_others: bool = False

    @property
    def ending(self) -> bool:
        """Whether it is being deleted: it can't be used any more."""
        return self.state in GONE

    @property
    def elastic(self) -> bool:
        """Whether it is an elastic node or a builder."""
        return bool({tags.NODE, tags.BUILDER} & self.tags.keys())

    @property
    def pool(self) -> str:
        """The pool that it belongs to; empty if it belongs to none."""
        return self.tags.get(tags.POOL, "")

    def __str__(self) -> str:
        return f"{self.kind.replace('_', ' ')} {self.name}"


class TaggedResources:
    """Finds and removes the resources with the tag of a cluster.

    Args:
        cluster: the name of the cluster.
        keep: OCIDs of resources that cluster.yml names and gpucluster did not create. They are not listed, whatever
            tags they have.
    """

    def __init__(
        self, access: CloudAccess, cluster: str, on_event: Sink, *, keep: AbstractSet[str] = frozenset()
    ) -> None:
        self._access = access
        self._clients = SharedClients(access)
        self._cluster = cluster
        self._on_event = on_event
        self._keep = keep

    def find(self) -> tuple[TaggedResource, ...]:
        """Every resource that has the tag and exists, in the order in which they can be removed. Some may be ending.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        with refusals("listing the resources of the cluster"), ThreadPoolExecutor(_WORKERS) as workers:
            listed = workers.map(self._of_kind, [kind for kind in _KINDS if kind not in _UNTAGGED])
            tagged = [resource for resources in listed for resource in resources]
            parts = list(workers.map(self._parts, tagged))
        members = {part for resource_parts in parts for part in resource_parts if isinstance(part, str)}
        exports = [part for resource_parts in parts for part in resource_parts if isinstance(part, TaggedResource)]
        marked = (replace(each, launched_by_others=True) if each.id in members else each for each in tagged)
        return tuple(sorted([*marked, *exports], key=lambda resource: KINDS[resource.kind]))

    def volumes(self) -> tuple[TaggedResource, ...]:
        """The block volumes among them.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        with refusals("listing the volumes of the cluster"):
            return tuple(self._of_kind(_BY_NAME["volume"]))

    def remove(self, resources: Sequence[TaggedResource], *, leave_used: bool = False) -> tuple[TaggedResource, ...]:
        """Remove these resources in the order of their dependencies, and wait until each is deleted.

        What is gone already, or ends by itself, is only waited for.

        Args:
            leave_used: leave what another resource still uses, and return it.

        Raises:
            CloudError: the cloud refused, or a resource does not end.
        """
        left = []
        for resource in sorted(resources, key=lambda each: KINDS[each.kind]):
            try:
                self._remove(resource)
            except CloudError as error:
                if not leave_used or error.status != http.HTTPStatus.CONFLICT:
                    raise
                left.append(resource)
        return tuple(left)

    def wait_for_instances(self, resources: Iterable[TaggedResource]) -> None:
        """Wait until each instance among these runs: before that, Terraform can't read all of it.

        Raises:
            CloudError: one ended, or does not run in time; or the cloud refused.
        """
        for each in resources:
            if each.kind != "instance" or each.state not in STARTING:
                continue
            info(self._on_event, "cluster", f"waiting until {each} runs: it was launched by an earlier run ({each.id})")
            get = self._client(_BY_NAME["instance"]).get_instance
            with refusals(f"waiting for the {each}"):
                state = wait_until(partial(_settled_state, get, each.id), _LAUNCH_TIMEOUT, _POLL)
            if not state:
                raise CloudError(
                    f"the {each} does not run after {_LAUNCH_TIMEOUT / 60:.0f} min",
                    where=each.id,
                    hint="Look at it in the console of the cloud, then run the same command again",
                )
            if state in GONE:
                raise CloudError(f"the {each} has ended", where=each.id, hint="Run the same command again")

    def image_of(self, instance_configuration_id: str) -> str:
        """The OCID of the image that instances of a configuration had before one was baked: that of permanent nodes."""
        with refusals("reading an instance configuration"):
            client = self._clients.get("core", "ComputeManagementClient")
            launch = client.get_instance_configuration(instance_configuration_id).data.instance_details.launch_details
            image = self._clients.get("core", "ComputeClient").get_image(launch.source_details.image_id).data
        baked = (image.freeform_tags or {}).get(tags.ROLE) == tags.IMAGE
        return str(image.base_image_id if baked and image.base_image_id else image.id)

    # --- listing -----

    @cached_property
    def _compartments(self) -> tuple[str, ...]:
        return self._access.compartments(self._clients.get("identity", "IdentityClient"))

    @cached_property
    def _home(self) -> SharedClients:
        """The clients of the home region: groups and policies are only written there."""
        if self._access.endpoint:
            return self._clients
        config = {**self._access.config, "region": home_region(self._access)}
        return SharedClients(replace(self._access, config=config))

    def _client(self, kind: _Kind) -> Any:
        return (self._home if kind.in_tenancy else self._clients).get(kind.service, kind.client)

    def _of_kind(self, kind: _Kind) -> list[TaggedResource]:
        def found() -> list[TaggedResource]:
            return [_tagged(kind.name, each) for each in self._list(kind) if self._ours(kind, each)]

        return unless_refused(found, *(() if kind.always else _REFUSED)) or []

    def _list(self, kind: _Kind) -> Iterator[Any]:
        call: Callable[..., Any] = getattr(self._client(kind), kind.method("list", plural=True))
        compartment = self._access.compartment_id
        if kind.in_tenancy:
            for place in dict.fromkeys((compartment, self._access.config["tenancy"])):
                yield from _allowed(call, place)
        elif kind.needs_domain:
            identity = self._clients.get("identity", "IdentityClient")
            for domain in identity.list_availability_domains(compartment).data:
                yield from all_pages(call, compartment, domain.name)
        else:
            for place in self._compartments if kind.elastic else (compartment,):
                yield from all_pages(call, compartment_id=place)

    def _ours(self, kind: _Kind, resource: Any) -> bool:
        freeform_tags = getattr(resource, "freeform_tags", None)
        tagged = tags.of_cluster(freeform_tags, self._cluster) and tags.of_compartment(
            freeform_tags, self._access.compartment_id
        )
        # The nodes of a node pool go with it.
        listed = tagged and not (kind.name == "instance" and tags.managed_node(freeform_tags))
        return listed and _state(resource) not in ENDED and resource.id not in self._keep

    def _parts(self, resource: TaggedResource) -> list[TaggedResource | str]:
        """The exports of a mount target, or the OCIDs of the members of a cluster network or GPU memory cluster."""
        if resource.ending:
            return []
        if resource.kind == "cluster_network":
            call = self._clients.get("core", "ComputeManagementClient").list_cluster_network_instances
            return [str(member.id) for member in all_pages(call, self._access.compartment_id, resource.id)]
        if resource.kind == "compute_gpu_memory_cluster":
            call = self._clients.get("core", "ComputeClient").list_compute_gpu_memory_cluster_instances
            return [str(member.id) for member in all_pages(call, resource.id)]
        if resource.kind == "volume":
            compute = self._clients.get("core", "ComputeClient")
            attachments = all_pages(
                compute.list_volume_attachments, compartment_id=self._access.compartment_id, volume_id=resource.id
            )
            return [
                TaggedResource(
                    "volume_attachment", str(each.id), _name(each), _state(each), uses=frozenset({resource.id})
                )
                for each in attachments
                if _state(each) not in ENDED
            ]
        if resource.kind == "mount_target":
            client = self._clients.get("file_storage", "FileStorageClient")
            export_set = client.get_mount_target(resource.id).data.export_set_id
            exports = all_pages(client.list_exports, export_set_id=export_set)
            return [
                TaggedResource(
                    "export",
                    str(export.id),
                    str(export.path),
                    _state(export),
                    uses=frozenset({resource.id, str(export.file_system_id)}),
                )
                for export in exports
                if _state(export) not in ENDED
            ]
        return []

    # --- removal -----

    def _remove(self, resource: TaggedResource) -> None:
        kind = _BY_NAME[resource.kind]
        client = self._client(kind)
        get = getattr(client, kind.method("get"))
        delete = getattr(client, kind.method("terminate" if kind.name in _TERMINATED_KINDS else "delete"))
        begun = time.monotonic()
        self._on_event(Event(EventKind.RESOURCE, str(resource), "deleting", data={"id": resource.id}))
        with refusals(f"removing the {resource}"):
            if not resource.ending:
                self._delete(delete, get, resource, begun + _IN_USE)
            self._wait_until_gone(get, resource)
        elapsed = time.monotonic() - begun
        self._on_event(
            Event(EventKind.RESOURCE, str(resource), "deleted", "in no state", elapsed, data={"id": resource.id})
        )

    def _delete(
        self, delete: Callable[[str], Any], get: Callable[[str], Any], resource: TaggedResource, deadline: float
    ) -> None:
        """Ask for the removal; again for a while if something that is being deleted still uses the resource."""

        def accepted() -> bool:
            try:
                delete(resource.id)
            except Exception as error:  # those of the SDK with a status; all others are raised again
                if getattr(error, "status", None) == http.HTTPStatus.NOT_FOUND:
                    return True
                if getattr(error, "status", None) != http.HTTPStatus.CONFLICT:
                    raise
                if _present_state(get, resource.id) in GONE:
                    return True
                if time.monotonic() > deadline:
                    raise
                return False
            return True

        wait_until(accepted, 2 * _IN_USE, _POLL)

    def _wait_until_gone(self, get: Callable[[str], Any], resource: TaggedResource) -> None:
        if not wait_until(lambda: _present_state(get, resource.id) in ENDED, _TIMEOUT, _POLL):
            raise CloudError(
                f"the {resource} is not deleted after {_TIMEOUT / 60:.0f} min",
                where=resource.id,
                hint="Run the same command again",
            )


def _tagged(kind: str, resource: Any) -> TaggedResource:
    own_tags = dict(resource.freeform_tags or {})
    others = bool(getattr(resource, "instance_configuration_id", None) or {tags.NODE, tags.BUILDER} & own_tags.keys())
    created = getattr(resource, "time_created", None)
    return TaggedResource(
        kind,
        str(resource.id),
        _name(resource),
        _state(resource),
        own_tags,
        created.isoformat() if created else "",
        frozenset(_uses(resource)),
        str(getattr(resource, "image_id", None) or ""),
        kind == "instance" and others,
    )


def _uses(resource: Any) -> Iterator[str]:
    for attribute in _USES:
        if used := getattr(resource, attribute, None):
            yield str(used)
    for used in getattr(resource, "security_list_ids", None) or ():
        yield str(used)
    for rule in getattr(resource, "route_rules", None) or ():
        yield str(rule.network_entity_id)
    for pool in getattr(resource, "instance_pools", None) or ():
        yield str(pool.instance_configuration_id)


def _state(resource: Any) -> str:
    return str(getattr(resource, "lifecycle_state", None) or "").upper()


def _settled_state(get: Callable[[str], Any], ocid: str) -> str:
    """The lifecycle state of an instance that does not start any more; "" of one that does."""
    state = _present_state(get, ocid)
    return "" if state in STARTING else state


def _present_state(get: Callable[[str], Any], ocid: str) -> str:
    """The lifecycle state now; DELETED for a resource that the cloud does not know any more."""
    answer = unless_refused(lambda: get(ocid), http.HTTPStatus.NOT_FOUND)
    return "DELETED" if answer is None else _state(answer.data)


def _name(resource: Any) -> str:
    """Most resources have a display name, some a name, a few neither."""
    return str(getattr(resource, "display_name", None) or getattr(resource, "name", None) or resource.id)


def _allowed(call: Callable[..., Any], place: str) -> list[Any]:
    """A listing; empty if the operator may not list there. OCI answers a missing compartment in the same way."""
    return unless_refused(lambda: all_pages(call, place), *_REFUSED) or []
