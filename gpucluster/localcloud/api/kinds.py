"""Create, get, list, update and delete for resources that differ only in their fields and a few checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpucluster.localcloud.compute import service_limits
from gpucluster.localcloud.state.cloud import CloudState, created
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.region import check_domain
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import ApiError, ApiRoute, Call, Reply, check_etag, filtered, page, required, show

TAGS = ("displayName", "freeformTags", "definedTags")


def _same(_cloud: CloudState, body: Json) -> Json:
    return body


def _nothing(_cloud: CloudState, _resource: Resource) -> None:
    """The default: do nothing."""


def _any_change(_cloud: CloudState, _resource: Resource, changes: Json) -> Json:
    return changes


@dataclass(frozen=True)
class ResourceKind:
    """The description of one kind of resource.

    Attributes:
        name: the OCID's type, also the kind of its rows.
        path: the collection, with the API's version.
        noun: as in the SDK's operations (CreateVcn); `nouns` its plural.
        param: name of the id in the path, as the SDK calls it.
        fields: what a create may set besides tags and display name; includes `required` and `defaults`.
        updatable: what an update may set besides tags and display name.
        filters: query parameters of the list that are compared with members of the body.
        initial: state after the commit of the create; `ready` is the state after `create_backing`, `ending` during the
            delete, `gone` at its end. None for `initial` and `ready`: the kind has no life cycle.
        zoned: each resource is in an availability domain.
        need_compartment: a list must name a compartment.
        collection: the list is {"items": [...]}, as in the newer operations of OCI, and not a bare array.
        prepare: completes and checks the body, in the transaction of the create.
        create_backing: creates the resource behind the row, after the commit; if it fails, the row is dropped.
        check_update: checks and completes changes, in the transaction.
        update_backing: changes the resource behind the row, after the commit.
        check_delete: raises 409 while the resource is in use, in the transaction.
        remove_backing: removes the resource behind the row; runs again after a crash.
        summary: what the list shows of a row.
        detail: what a get shows of a row, if it has values that are counted for each request.
    """

    name: str
    path: str
    noun: str
    nouns: str
    param: str
    required: tuple[str, ...] = ("compartmentId",)
    fields: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    updatable: tuple[str, ...] = ()
    filters: tuple[str, ...] = ("compartmentId", "displayName", "lifecycleState")
    initial: LifecycleState | None = LifecycleState.AVAILABLE
    ready: LifecycleState | None = LifecycleState.AVAILABLE
    ending: LifecycleState = LifecycleState.TERMINATING
    gone: LifecycleState = LifecycleState.TERMINATED
    zoned: bool = False
    creatable: bool = True
    deletable: bool = True
    need_compartment: bool = True
    collection: bool = False
    prepare: Callable[[CloudState, Json], Json] = _same
    create_backing: Callable[[CloudState, Resource], None] = _nothing
    check_update: Callable[[CloudState, Resource, Json], Json] = _any_change
    update_backing: Callable[[CloudState, Resource], None] = _nothing
    check_delete: Callable[[CloudState, Resource], None] = _nothing
    remove_backing: Callable[[CloudState, Resource], None] = _nothing
    summary: Callable[[Resource], Json] = lambda resource: resource.body
    detail: Callable[[CloudState, Resource], Json] = lambda _cloud, resource: resource.body


def routes(cloud: CloudState, kind: ResourceKind) -> list[ApiRoute]:
    """The operations of one kind."""
    one = f"{kind.path}/{{{kind.param}}}"
    operations = [
        ApiRoute("GET", one, f"Get{kind.noun}", lambda call: _get(cloud, kind, call)),
        ApiRoute("GET", kind.path, f"List{kind.nouns}", lambda call: _list(cloud, kind, call)),
        ApiRoute("PUT", one, f"Update{kind.noun}", lambda call: _update(cloud, kind, call)),
    ]
    if kind.creatable:
        operations.append(ApiRoute("POST", kind.path, f"Create{kind.noun}", lambda call: _create(cloud, kind, call)))
    if kind.deletable:
        operations.append(ApiRoute("DELETE", one, f"Delete{kind.noun}", lambda call: _delete(cloud, kind, call)))
    return operations


def add(cloud: CloudState, kind: ResourceKind, body: Json) -> Resource:
    """Insert a row as the create of its kind does; for resources that come with another (a VCN's route table)."""
    if "compartmentId" in kind.required:
        cloud.compartment(body.get("compartmentId"))
    members = {name: body[name] for name in (*TAGS, "compartmentId", *kind.fields) if name in body}
    full = kind.prepare(cloud, {**kind.defaults, **members})
    if kind.initial:
        full["lifecycleState"] = kind.initial
    return cloud.new(kind.name, full)


def finish(cloud: CloudState, kind: ResourceKind, resource: Resource) -> Resource:
    """Create the resource behind a new row and set it to ready."""
    try:
        kind.create_backing(cloud, resource)
    except ApiError:
        cloud.store.drop(resource.id)
        raise
    if kind.ready is not None and kind.ready != kind.initial:
        return cloud.set_state(kind.name, resource.id, kind.ready)
    return cloud.get(kind.name, resource.id)


def remove(cloud: CloudState, kind: ResourceKind, ocid: str) -> None:
    """Finish a delete: remove the resource behind the row. Safe to repeat."""
    resource = cloud.get(kind.name, ocid)
    kind.remove_backing(cloud, resource)
    if resource.state:
        cloud.set_state(kind.name, ocid, kind.gone, gone=True)
    else:
        cloud.store.drop(ocid)


def _create(cloud: CloudState, kind: ResourceKind, call: Call) -> Reply:
    body = call.body()
    required(body, *kind.required)
    if kind.zoned:
        check_domain(body)

    def make() -> tuple[Resource, str]:
        service_limits.check_one_more(cloud, kind.name, body.get("availabilityDomain", ""))
        return add(cloud, kind, body), ""

    resource, _, new = cloud.create_once(call, make)
    return created(finish(cloud, kind, resource) if new else resource)


def _get(cloud: CloudState, kind: ResourceKind, call: Call) -> Reply:
    resource = cloud.get(kind.name, call.path[kind.param])
    return Reply(kind.detail(cloud, resource), headers={"etag": resource.etag})


def _list(cloud: CloudState, kind: ResourceKind, call: Call) -> Reply:
    if kind.need_compartment:
        cloud.compartment(call.need("compartmentId"), in_body=False)
    reply = page(filtered(cloud.store.find(kind.name), call, kind.filters), call, view=kind.summary)
    return replace(reply, body={"items": reply.body}) if kind.collection else reply


def _update(cloud: CloudState, kind: ResourceKind, call: Call) -> Reply:
    body = call.body()
    with cloud.store.transaction():
        resource = cloud.live(kind.name, call.path[kind.param])
        check_etag(call, resource)
        changes = {name: body[name] for name in (*TAGS, *kind.updatable) if name in body}
        resource.body.update(kind.check_update(cloud, resource, changes))
        cloud.store.save(resource)
    kind.update_backing(cloud, resource)
    return show(resource)


def _delete(cloud: CloudState, kind: ResourceKind, call: Call) -> Reply:
    with cloud.store.transaction():
        resource = cloud.live(kind.name, call.path[kind.param])
        check_etag(call, resource)
        kind.check_delete(cloud, resource)
        if resource.state:
            cloud.set_state(kind.name, resource.id, kind.ending)
    remove(cloud, kind, resource.id)
    return Reply(status=204)
