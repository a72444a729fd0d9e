"""Kubernetes Engine (OKE): node pools, whose nodes are instances that join the cluster at their first boot.

One level-triggered job makes, replaces and ends nodes: it compares instances with the pool, so a server that was killed
continues where it was. A node is ACTIVE when Kubernetes reports it as ready; without a control plane, when its
instance runs. Pods are not drained before a node ends: the node pool's eviction settings are kept and have no effect.

Sources: the SDK's models for members and states; Oracle's pages "Creating a Managed Node Pool" and "Modifying Node
Pool and Worker Node Properties"; oracle/oci 8.28.0 for what a client waits for.
"""

from __future__ import annotations

import hashlib
import json
import time
from concurrent.futures import wait
from functools import partial

from gpucluster.localcloud.api.container_engine import KIND as CLUSTER
from gpucluster.localcloud.api.container_engine import NODE_POOL as KIND
from gpucluster.localcloud.api.container_engine import versions
from gpucluster.localcloud.compute import launching, lifecycle
from gpucluster.localcloud.compute.image_catalogue import listed
from gpucluster.localcloud.compute.launch_images import choose_image
from gpucluster.localcloud.compute.shape_config import known_shape
from gpucluster.localcloud.kubernetes import nodes, releases, tokens
from gpucluster.localcloud.state.cloud import CloudState, log
from gpucluster.localcloud.state.lifecycle_states import LifecycleState, WorkAction
from gpucluster.localcloud.state.region import check_domain
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import (
    CONTAINER_ENGINE,
    ApiError,
    ApiRoute,
    Call,
    Reply,
    check_etag,
    filtered,
    incorrect_state,
    invalid,
    not_found,
    page,
    required,
)
from gpucluster.node_agent.rules.labels import is_label

_WORK = "clustersworkrequest"
_READY_S = 600.0
# From this minor release on, nodes may be three minor releases older than the control plane (Kubernetes' version skew).
_SKEW_OF_THREE = 28
_UPDATABLE = (
    "definedTags",
    "freeformTags",
    "initialNodeLabels",
    "kubernetesVersion",
    "name",
    "nodeEvictionNodePoolSettings",
    "nodeMetadata",
    "nodePoolCyclingDetails",
    "nodeShape",
    "nodeShapeConfig",
    "nodeSourceDetails",
    "sshPublicKey",
)
# What a node has from its launch on: with cycling, a change of these replaces the nodes.
_OF_LAUNCH = ("initialNodeLabels", "kubernetesVersion", "nodeMetadata", "nodeShape", "nodeShapeConfig",
              "nodeSourceDetails", "sshPublicKey")  # fmt: skip
_STATES = {
    LifecycleState.PROVISIONING: "CREATING",
    LifecycleState.TERMINATING: "DELETING",
    LifecycleState.TERMINATED: "DELETED",
}


def _create(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(body, "compartmentId", "clusterId", "name", "nodeShape", "nodeSourceDetails", "nodeConfigDetails")

    def make() -> tuple[Resource, str]:
        cluster = cloud.related(CLUSTER, body["clusterId"])
        if cluster.state != LifecycleState.ACTIVE:
            raise incorrect_state(f"Cluster {cluster.id} is {cluster.state}")
        made = {
            "kubernetesVersion": cluster.body["kubernetesVersion"],
            "initialNodeLabels": [],
            "nodeMetadata": {},
            "nodeEvictionNodePoolSettings": None,
            "nodePoolCyclingDetails": None,
            **{name: body[name] for name in _UPDATABLE if name in body},
            "compartmentId": cloud.compartment(body["compartmentId"]),
            "clusterId": cluster.id,
            "nodeConfigDetails": body["nodeConfigDetails"],
            "lifecycleState": LifecycleState.CREATING,
            "lifecycleDetails": "",
        }
        made |= _checked(cloud, cluster, made)
        row = cloud.new(KIND, made, {"launches": 0})
        return row, _begin_work(cloud, row, "NODEPOOL_CREATE")

    row, work_request, new = cloud.create_once(call, make)
    if new:
        cloud.coordinate(f"node pool {row.id}", partial(converge, cloud, row.id))
    return Reply(status=202, headers={"opc-work-request-id": work_request})


def _checked(cloud: CloudState, cluster: Resource, body: Json) -> Json:
    """Check a pool. Returns the members that follow from others.

    The subnets are of the cluster's VCN, the image runs on the shape, the release fits the control plane's, and the
    local cloud has its files.
    """
    config = body["nodeConfigDetails"]
    size = config.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0 or not config.get("placementConfigs"):
        raise invalid("nodeConfigDetails requires size, 0 or more, and placementConfigs")
    for place in config["placementConfigs"]:
        check_domain(place)
        subnet = cloud.related("subnet", place.get("subnetId"))
        if subnet.body["vcnId"] != cluster.body["vcnId"]:
            raise invalid(f"The subnet {subnet.id} is not in the VCN {cluster.body['vcnId']}")
    for label in body["initialNodeLabels"] or []:
        name, value = str(label.get("key") or ""), str(label.get("value") or "")
        if not is_label(name, value):
            # kubelet gets all labels in one option: a comma would make another one of the rest.
            raise invalid(f"Invalid initialNodeLabels: {name!r}: {value!r} is not a label of Kubernetes")
    known_shape(body["nodeShape"])
    image = choose_image(cloud, _launch_details(cloud, cluster, body))
    _check_version(cloud, cluster, str(body["kubernetesVersion"]))
    source = {"sourceType": "IMAGE", "sourceName": image.body["displayName"], "imageId": image.id}
    return {"nodeSource": source, "nodeImageId": image.id, "nodeImageName": image.body["displayName"]}


def _check_version(cloud: CloudState, cluster: Resource, version: str) -> None:
    newest = str(cluster.body["kubernetesVersion"])
    try:
        own, theirs = releases.numbers(version), releases.numbers(newest)
    except ValueError as error:
        raise invalid(f"Invalid kubernetesVersion: {version}") from error
    older = 3 if theirs[1] >= _SKEW_OF_THREE else 2
    if own > theirs or own[1] < theirs[1] - older:
        raise invalid(
            f"Invalid kubernetesVersion: {version}: nodes of a cluster with {newest} are not newer, and at most {older}"
            " minor releases older"
        )
    if version not in (newest, *versions(cloud)):
        raise invalid(f"Invalid kubernetesVersion: {version}: the local cloud has no release files of it")


def _active(cloud: CloudState, call: Call, *also: LifecycleState) -> Resource:
    row = cloud.live(KIND, call.path["nodePoolId"])
    check_etag(call, row)
    if row.state not in (LifecycleState.ACTIVE, LifecycleState.NEEDS_ATTENTION, *also):
        raise incorrect_state(f"Node pool {row.id} is {row.state}")
    return row


def _update(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    with cloud.store.transaction():
        row = _active(cloud, call)
        row.body |= {name: body[name] for name in _UPDATABLE if name in body}
        row.body["nodeConfigDetails"] = {**row.body["nodeConfigDetails"], **(body.get("nodeConfigDetails") or {})}
        row.body |= _checked(cloud, cloud.get(CLUSTER, row.body["clusterId"]), row.body)
        reply = _change(cloud, row, "NODEPOOL_UPDATE", LifecycleState.UPDATING)
    cloud.coordinate(f"node pool {row.id}", partial(converge, cloud, row.id))
    return reply


def _delete(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        row = _active(cloud, call, LifecycleState.FAILED)
        reply = _change(cloud, row, "NODEPOOL_DELETE", LifecycleState.DELETING)
    cloud.coordinate(f"node pool {row.id}", partial(converge, cloud, row.id))
    return reply


def _delete_node(cloud: CloudState, call: Call) -> Reply:
    """End one node. The pool makes another one, unless isDecrementSize reduces its size by one (the default)."""
    with cloud.store.transaction():
        row = _active(cloud, call)
        chosen = [each for each in members(cloud, row.id) if each.id == call.path["nodeId"]]
        if not chosen:
            raise not_found("node", call.path["nodeId"])
        if call.query.get("isDecrementSize", "true").lower() == "true":
            config = row.body["nodeConfigDetails"]
            row.body["nodeConfigDetails"] = {**config, "size": max(config["size"] - 1, 0)}
        row.hidden["ending"] = [chosen[0].id]
        reply = _change(cloud, row, "NODEPOOL_UPDATE", LifecycleState.UPDATING)
    cloud.coordinate(f"node pool {row.id}", partial(converge, cloud, row.id))
    return reply


def _begin_work(cloud: CloudState, row: Resource, operation: str) -> str:
    row.hidden["work_request"] = cloud.begin_work(operation, KIND, row, kind=_WORK)
    cloud.store.save(row)
    return str(row.hidden["work_request"])


def _change(cloud: CloudState, row: Resource, operation: str, state: LifecycleState) -> Reply:
    """Set the state of a running change; in the caller's transaction."""
    work_request = _begin_work(cloud, row, operation)
    cloud.set_state(KIND, row.id, state)
    return Reply(status=202, headers={"opc-work-request-id": work_request})


# nodes


def members(cloud: CloudState, pool: str) -> list[Resource]:
    """The instances of a node pool, oldest first, including those in termination."""
    return [row for row in cloud.store.find("instance") if row.hidden["pool"] == pool]


def converge(cloud: CloudState, ocid: str) -> None:
    """Bring the nodes of a pool to the state that the pool has in the API, and end its work request."""
    with cloud.locked(ocid):
        row = cloud.get(KIND, ocid)
        if row.gone_at is not None:
            return
        cluster = cloud.get(CLUSTER, row.body["clusterId"])
        deleting = row.state == LifecycleState.DELETING
        errors = _end(cloud, cluster, members(cloud, ocid)) if deleting else _shape_up(cloud, cluster, row)
        if cloud.closing.is_set():
            return
        with cloud.store.transaction():
            row = cloud.get(KIND, ocid)
            action = {LifecycleState.CREATING: WorkAction.CREATED, LifecycleState.DELETING: WorkAction.DELETED}
            work_action = action.get(LifecycleState(row.state), WorkAction.UPDATED)
            row.hidden.pop("ending", None)
            row.body["lifecycleDetails"] = "; ".join(errors)
            cloud.store.save(row)
            if deleting and not errors:
                cloud.set_state(KIND, ocid, LifecycleState.DELETED, gone=True)
            else:
                cloud.set_state(KIND, ocid, LifecycleState.NEEDS_ATTENTION if errors else LifecycleState.ACTIVE)
            reasons = tuple(("InternalError", error) for error in errors)
            cloud.end_work(row.hidden["work_request"], action=work_action, errors=reasons)
        for error in errors:
            log.error("node pool %s: %s", row.body["name"], error)


def _shape_up(cloud: CloudState, cluster: Resource, row: Resource) -> list[str]:
    """End surplus nodes, make missing ones, and with cycling replace the others that differ from the pool."""
    leaving = set(row.hidden.get("ending", []))
    errors = _end(cloud, cluster, [each for each in members(cloud, row.id) if each.id in leaving])
    size = int(row.body["nodeConfigDetails"]["size"])
    everyone = members(cloud, row.id)
    surplus = [each for each in everyone if each.state == LifecycleState.TERMINATING]
    alive = [each for each in everyone if each not in surplus]
    errors += _end(cloud, cluster, [*surplus, *alive[: max(len(alive) - size, 0)]])
    errors += _grow(cloud, cluster, row.id)
    cycling = row.body.get("nodePoolCyclingDetails") or {}
    if cycling.get("isNodeCyclingEnabled"):
        template = _template(row)
        for old in members(cloud, row.id):
            if errors or cloud.closing.is_set():
                break
            if old.hidden.get("template", template) != template:
                errors += _end(cloud, cluster, [old]) + _grow(cloud, cluster, row.id)
    return errors


def _grow(cloud: CloudState, cluster: Resource, ocid: str) -> list[str]:
    """Launch missing nodes and wait until all are ready. Returns what went wrong."""
    errors = []
    with cloud.store.transaction():
        row = cloud.get(KIND, ocid)
        places = row.body["nodeConfigDetails"]["placementConfigs"]
        lacking = int(row.body["nodeConfigDetails"]["size"]) - len(members(cloud, ocid))
        for _ in range(lacking):
            number = int(row.hidden["launches"])
            row.hidden["launches"] = number + 1
            details = _launch_details(cloud, cluster, row.body, places[number % len(places)], number)
            try:
                with cloud.store.transaction():
                    instance, _work = launching.register(cloud, details, pool=ocid)
                    instance.hidden["template"] = _template(row)
                    cloud.store.save(instance)
            except ApiError as error:
                errors.append(error.message)
                break
        cloud.store.save(row)
    fresh = [each for each in members(cloud, ocid) if each.state == LifecycleState.PROVISIONING]
    wait([lifecycle.start_launch(cloud, each.id) for each in fresh])
    errors += [f"{each.body['displayName']} did not start" for each in fresh if _is_gone(cloud, each)]
    waiting = [each for each in members(cloud, ocid) if not _is_gone(cloud, each)]
    until = time.monotonic() + _READY_S
    while waiting and time.monotonic() < until and not cloud.closing.is_set():
        waiting = [each for each in waiting if not _is_gone(cloud, each) and not _is_ready(cloud, cluster, each)]
        if waiting:
            cloud.closing.wait(1.0)
    if not cloud.closing.is_set():
        errors += [f"{each.body['displayName']} has not joined in {_READY_S:.0f} s" for each in waiting]
    return errors


def _is_gone(cloud: CloudState, instance: Resource) -> bool:
    return cloud.get("instance", instance.id).gone_at is not None


def _is_ready(cloud: CloudState, cluster: Resource, instance: Resource) -> bool:
    if cloud.get("instance", instance.id).state != LifecycleState.RUNNING:
        return False
    return not cloud.engine.networked or nodes.is_ready(cloud, cluster, tokens.node_name(instance))


def _end(cloud: CloudState, cluster: Resource, ending: list[Resource]) -> list[str]:
    """Delete nodes and terminate their instances. Returns what went wrong."""
    for each in ending:
        if cloud.engine.networked and cluster.gone_at is None:
            nodes.forget(cloud, cluster, tokens.node_name(each))
        with cloud.store.transaction():
            now = cloud.get("instance", each.id)
            if now.gone_at is None and now.state != LifecycleState.TERMINATING:
                lifecycle.mark_terminating(cloud, now)
    wait([lifecycle.start_termination(cloud, each.id) for each in ending])
    return [f"{each.body['displayName']} could not be terminated" for each in ending if not _is_gone(cloud, each)]


def _template(row: Resource) -> str:
    """A digest of what the nodes of a pool have from their launch on."""
    parts = {name: row.body.get(name) for name in _OF_LAUNCH}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _launch_details(
    cloud: CloudState, cluster: Resource, body: Json, place: Json | None = None, number: int = 0
) -> Json:
    """LaunchInstanceDetails of a node. Its name is made as OKE makes it: of the ends of OCIDs and a number."""
    config, source = body["nodeConfigDetails"], body["nodeSourceDetails"]
    where = place or config["placementConfigs"][0]
    ends = (cluster.id[-11:], str(body.get("id", ""))[-11:], str(where.get("subnetId"))[-11:])
    name = "oke-c{}-n{}-s{}-{}".format(*ends, number)
    subnet = cloud.related("subnet", where.get("subnetId"))
    sized = body.get("nodeShapeConfig")
    vnic = {"subnetId": subnet.id, "nsgIds": config.get("nsgIds") or [],
            "assignPublicIp": not subnet.body["prohibitPublicIpOnVnic"]}  # fmt: skip
    details = {
        "compartmentId": body["compartmentId"],
        "availabilityDomain": where.get("availabilityDomain"),
        "displayName": name,
        "shape": body["nodeShape"],
        "sourceDetails": {"sourceType": "image", "imageId": source.get("imageId"),
                          "bootVolumeSizeInGBs": source.get("bootVolumeSizeInGBs")},
        "createVnicDetails": vnic | ({"hostnameLabel": name} if subnet.body.get("dnsLabel") else {}),
        "metadata": nodes.metadata(cluster, {"id": "", **body}),
        "freeformTags": config.get("freeformTags") or {},
        "definedTags": config.get("definedTags") or {},
    }  # fmt: skip
    optional = {
        "shapeConfig": sized,
        "capacityReservationId": where.get("capacityReservationId"),
        "computeClusterId": config.get("computeClusterId"),
    }
    return details | {key: value for key, value in optional.items() if value}


# answers


def _node(cloud: CloudState, cluster: Resource, pool: Resource, instance: Resource) -> Json:
    vnic = cloud.get("vnic", instance.hidden["vnic"]).body
    state = _STATES.get(LifecycleState(instance.state))
    if state is None:
        state = "ACTIVE" if _is_ready(cloud, cluster, instance) else "CREATING"
    return {
        "id": instance.id,
        "name": instance.body["displayName"],
        "kubernetesVersion": pool.body["kubernetesVersion"],
        "availabilityDomain": instance.body["availabilityDomain"],
        "faultDomain": instance.body["faultDomain"],
        "subnetId": vnic["subnetId"],
        "nodePoolId": pool.id,
        "privateIp": vnic["privateIp"],
        "publicIp": vnic["publicIp"],
        "nodeError": None,
        "freeformTags": instance.body["freeformTags"],
        "definedTags": instance.body["definedTags"],
        "lifecycleState": state,
        "lifecycleDetails": "",
    }


def _get(cloud: CloudState, call: Call) -> Reply:
    row = cloud.get(KIND, call.path["nodePoolId"])
    cluster = cloud.get(CLUSTER, row.body["clusterId"])
    nodes = [_node(cloud, cluster, row, each) for each in members(cloud, row.id)]
    return Reply({**row.body, "nodes": nodes}, headers={"etag": row.etag})


def _list(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    # Deleted node pools stay in the list for a while, as on OCI.
    rows = cloud.store.find(KIND, gone=None)
    return page(filtered(rows, call, ("compartmentId", "clusterId", "name", "lifecycleState")), call)


def _options(cloud: CloudState, call: Call) -> Reply:
    if call.path["nodePoolOptionId"] != "all":
        cloud.live(CLUSTER, call.path["nodePoolOptionId"])
    images = listed(cloud.store.find("image", lifecycleState=LifecycleState.AVAILABLE))
    sources = [{"sourceType": "IMAGE", "sourceName": each.body["displayName"], "imageId": each.id} for each in images]
    return Reply({"kubernetesVersions": list(versions(cloud)), "shapes": [], "images": [], "sources": sources})


def recover(cloud: CloudState) -> None:
    """Finish what a stop of the server has interrupted."""
    for row in cloud.store.find(KIND):
        if row.state in (LifecycleState.CREATING, LifecycleState.UPDATING, LifecycleState.DELETING):
            cloud.coordinate(f"node pool {row.id}", partial(converge, cloud, row.id))


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Node pools."""
    pools = f"{CONTAINER_ENGINE}/nodePools"
    one = f"{pools}/{{nodePoolId}}"
    return [
        ApiRoute("POST", pools, "CreateNodePool", partial(_create, cloud)),
        ApiRoute("GET", pools, "ListNodePools", partial(_list, cloud)),
        ApiRoute("GET", one, "GetNodePool", partial(_get, cloud)),
        ApiRoute("PUT", one, "UpdateNodePool", partial(_update, cloud)),
        ApiRoute("DELETE", one, "DeleteNodePool", partial(_delete, cloud)),
        ApiRoute("DELETE", f"{one}/node/{{nodeId}}", "DeleteNode", partial(_delete_node, cloud)),
        ApiRoute("GET", f"{CONTAINER_ENGINE}/nodePoolOptions/{{nodePoolOptionId}}", "GetNodePoolOptions",
              partial(_options, cloud)),
    ]  # fmt: skip
