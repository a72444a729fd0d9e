"""Create, get, list, update and delete for all resources that differ only in their fields and a few checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpucluster.localcloud.compute import service_limits
from gpucluster.localcloud.state.cloud import CloudState, created
from gpucluster.localcloud.state.region import check_domain
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import ApiError, Call, Reply, Route, check_etag, filtered, page, required, show

TAGS = ("displayName", "freeformTags", "definedTags")


def _same(_cloud: CloudState, body: Json) -> Json:
    return body


def _nothing(_cloud: CloudState, _resource: Resource) -> None:
    """Most kinds need nothing here."""


def _any_change(_cloud: CloudState, _resource: Resource, changes: Json) -> Json:
    return changes


@dataclass(frozen=True)
class ResourceKind:
    """What sets one kind of resource apart.

    Attributes:
        name: the OCID's type, also the kind of its rows.
        path: the collection, with the API's version.
        noun: as in the SDK's operations (CreateVcn); `nouns` its plural.
        param: name of the id in the path, as the SDK calls it.
        fields: what a create may set beside tags and display name; `required` and `defaults` among them.
        updatable: what an update may set beside tags and display name.
        filters: query parameters of the list that equal members of the body.
        initial: state right after the create is committed; `ready` when `made` is done, `gone` at the end.
        need_compartment: the list must name one.
        collection: the list is {"items": [...]}, as the newer operations of OCI answer, and no bare array.
        prepare: completes and checks the body, in the transaction of the create.
        made: makes what stands behind the row, after the commit; if it fails, the row is dropped.
        check_update: checks changes and may complete them, in the transaction.
        check_delete: refuses with 409 while in use, in the transaction.
        unmade: removes what stands behind the row; runs again after a crash.
        view: what the list shows of a row.
        shown: what a get shows of a row, where that is counted anew each time.
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
    initial: str = "AVAILABLE"
    ready: str = "AVAILABLE"
    ending: str = "TERMINATING"
    gone: str = "TERMINATED"
    zoned: bool = False
    creatable: bool = True
    deletable: bool = True
    need_compartment: bool = True
    collection: bool = False
    prepare: Callable[[CloudState, Json], Json] = _same
    made: Callable[[CloudState, Resource], None] = _nothing
    check_update: Callable[[CloudState, Resource, Json], Json] = _any_change
    check_delete: Callable[[CloudState, Resource], None] = _nothing
    unmade: Callable[[CloudState, Resource], None] = _nothing
    view: Callable[[Resource], Json] = lambda resource: resource.body
    shown: Callable[[CloudState, Resource], Json] = lambda _cloud, resource: resource.body


def routes(cloud: CloudState, kind: ResourceKind) -> list[Route]:
    """The operations of one kind."""
    one = f"{kind.path}/{{{kind.param}}}"
    found = [
        Route("GET", one, f"Get{kind.noun}", lambda call: _get(cloud, kind, call)),
        Route("GET", kind.path, f"List{kind.nouns}", lambda call: _list(cloud, kind, call)),
        Route("PUT", one, f"Update{kind.noun}", lambda call: _update(cloud, kind, call)),
    ]
    if kind.creatable:
        found.append(Route("POST", kind.path, f"Create{kind.noun}", lambda call: _create(cloud, kind, call)))
    if kind.deletable:
        found.append(Route("DELETE", one, f"Delete{kind.noun}", lambda call: _delete(cloud, kind, call)))
    return found


def add(cloud: CloudState, kind: ResourceKind, body: Json) -> Resource:
    """Insert a row of a kind as its create would; for things that come with another (a VCN's route table)."""
    if "compartmentId" in kind.required:
        cloud.compartment(body.get("compartmentId"))
    wanted = {name: body[name] for name in (*TAGS, "compartmentId", *kind.fields) if name in body}
    full = kind.prepare(cloud, {**kind.defaults, **wanted})
    if kind.initial:
        full["lifecycleState"] = kind.initial
    return cloud.new(kind.name, full)


def finish(cloud: CloudState, kind: ResourceKind, resource: Resource) -> Resource:
    """Make what stands behind a fresh row and call it ready."""
    try:
        kind.made(cloud, resource)
    except ApiError:
        cloud.store.drop(resource.id)
        raise
    if kind.ready != kind.initial:
        return cloud.set_state(kind.name, resource.id, kind.ready)
    return cloud.get(kind.name, resource.id)


def remove(cloud: CloudState, kind: ResourceKind, ocid: str) -> None:
    """The second half of a delete: take away what stands behind the row; safe to run again."""
    resource = cloud.get(kind.name, ocid)
    kind.unmade(cloud, resource)
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
        service_limits.take_one(cloud, kind.name, body.get("availabilityDomain", ""))
        return add(cloud, kind, body), ""

    resource, _, new = cloud.create_once(call, make)
    return created(finish(cloud, kind, resource) if new else resource)


def _get(cloud: CloudState, kind: ResourceKind, call: Call) -> Reply:
    resource = cloud.get(kind.name, call.path[kind.param])
    return Reply(kind.shown(cloud, resource), headers={"etag": resource.etag})


def _list(cloud: CloudState, kind: ResourceKind, call: Call) -> Reply:
    if kind.need_compartment:
        cloud.compartment(call.need("compartmentId"), in_body=False)
    reply = page(filtered(cloud.store.find(kind.name), call, kind.filters), call, view=kind.view)
    return replace(reply, body={"items": reply.body}) if kind.collection else reply


def _update(cloud: CloudState, kind: ResourceKind, call: Call) -> Reply:
    body = call.body()
    with cloud.store.transaction():
        resource = cloud.live(kind.name, call.path[kind.param])
        check_etag(call, resource)
        changes = {name: body[name] for name in (*TAGS, *kind.updatable) if name in body}
        resource.body.update(kind.check_update(cloud, resource, changes))
        cloud.store.save(resource)
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
