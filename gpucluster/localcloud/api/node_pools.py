"""Kubernetes Engine (OKE): node pools. A node pool is a row: no instance is made for its nodes, and `nodes` is empty.

Sources: the SDK's models for members and states; oracle/oci 8.28.0 for what a client waits for.
"""

from __future__ import annotations

from functools import partial

from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.lifecycle_states import LifecycleState, WorkAction
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import (
    CONTAINER_ENGINE,
    Call,
    Reply,
    Route,
    check_etag,
    filtered,
    incorrect_state,
    invalid,
    page,
    required,
    show,
)

KIND = "nodepool"
_CLUSTER, _WORK = "cluster", "clustersworkrequest"
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


def _create(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(body, "compartmentId", "clusterId", "name", "nodeShape", "nodeSourceDetails", "nodeConfigDetails")

    def make() -> tuple[Resource, str]:
        cluster = cloud.related(_CLUSTER, body["clusterId"])
        if cluster.state != LifecycleState.ACTIVE:
            raise incorrect_state(f"Cluster {cluster.id} is {cluster.state}")
        made = {
            "kubernetesVersion": cluster.body["kubernetesVersion"],
            "initialNodeLabels": [],
            "nodeMetadata": {},
            "freeformTags": {},
            "definedTags": {},
            **{name: body[name] for name in _UPDATABLE if name in body},
            "compartmentId": cloud.compartment(body["compartmentId"]),
            "clusterId": cluster.id,
            "nodeConfigDetails": body["nodeConfigDetails"],
            "nodes": [],
            "lifecycleState": LifecycleState.CREATING,
            "lifecycleDetails": "",
        }
        _check(cloud, cluster, made)
        row = cloud.new(KIND, made)
        row.hidden["work_request"] = cloud.begin_work("NODEPOOL_CREATE", KIND, row, kind=_WORK)
        cloud.store.save(row)
        return row, row.hidden["work_request"]

    row, work_request, new = cloud.create_once(call, make)
    if new:
        cloud.submit(f"node pool {row.id}", partial(finish_change, cloud, row.id))
    return Reply(status=202, headers={"opc-work-request-id": work_request})


def _check(cloud: CloudState, cluster: Resource, body: Json) -> None:
    """The subnets are the cluster's VCN's, the image exists, and no node is newer than the control plane."""
    config = body["nodeConfigDetails"]
    if not isinstance(config.get("size"), int) or config["size"] < 0 or not config.get("placementConfigs"):
        raise invalid("nodeConfigDetails requires size, 0 or more, and placementConfigs")
    for place in config["placementConfigs"]:
        subnet = cloud.related("subnet", place.get("subnetId"))
        if subnet.body["vcnId"] != cluster.body["vcnId"]:
            raise invalid(f"The subnet {subnet.id} is not in the VCN {cluster.body['vcnId']}")
    image = cloud.related("image", body["nodeSourceDetails"].get("imageId"))
    body["nodeSource"] = {"sourceType": "IMAGE", "sourceName": image.body["displayName"], "imageId": image.id}
    version, newest = (
        tuple(int(part) for part in str(text).removeprefix("v").split("."))
        for text in (body["kubernetesVersion"], cluster.body["kubernetesVersion"])
    )
    if version > newest:
        raise invalid(
            f"kubernetesVersion {body['kubernetesVersion']} is newer than {cluster.body['kubernetesVersion']}, "
            "that of the cluster"
        )


def _active(cloud: CloudState, call: Call) -> Resource:
    row = cloud.live(KIND, call.path["nodePoolId"])
    check_etag(call, row)
    if row.state != LifecycleState.ACTIVE:
        raise incorrect_state(f"Node pool {row.id} is {row.state}")
    return row


def _update(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    with cloud.store.transaction():
        row = _active(cloud, call)
        changes = {name: body[name] for name in _UPDATABLE if name in body}
        config = {**row.body["nodeConfigDetails"], **(body.get("nodeConfigDetails") or {})}
        wanted = {**row.body, **changes, "nodeConfigDetails": config}
        _check(cloud, cloud.get(_CLUSTER, row.body["clusterId"]), wanted)
        row.hidden["changes"] = {**changes, "nodeConfigDetails": config, "nodeSource": wanted["nodeSource"]}
        reply = _begin(cloud, row, "NODEPOOL_UPDATE", LifecycleState.UPDATING)
    cloud.submit(f"node pool {row.id}", partial(finish_change, cloud, row.id))
    return reply


def _delete(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        row = _active(cloud, call)
        reply = _begin(cloud, row, "NODEPOOL_DELETE", LifecycleState.DELETING)
    cloud.submit(f"node pool {row.id}", partial(finish_change, cloud, row.id))
    return reply


def _begin(cloud: CloudState, row: Resource, operation: str, state: LifecycleState) -> Reply:
    """Set the state of a running change; in the caller's transaction."""
    row.hidden["work_request"] = cloud.begin_work(operation, KIND, row, kind=_WORK)
    cloud.store.save(row)
    cloud.set_state(KIND, row.id, state)
    return Reply(status=202, headers={"opc-work-request-id": row.hidden["work_request"]})


def finish_change(cloud: CloudState, ocid: str) -> None:
    """Finish a create, an update or a delete. A restarted server calls this again."""
    with cloud.store.transaction():
        row = cloud.get(KIND, ocid)
        work_request = row.hidden.get("work_request", "")
        if row.state == LifecycleState.CREATING:
            cloud.set_state(KIND, ocid, LifecycleState.ACTIVE)
            cloud.end_work(work_request, action=WorkAction.CREATED)
        elif row.state == LifecycleState.UPDATING:
            row.body.update(row.hidden.pop("changes", {}))
            cloud.store.save(row)
            cloud.set_state(KIND, ocid, LifecycleState.ACTIVE)
            cloud.end_work(work_request, action=WorkAction.UPDATED)
        elif row.state == LifecycleState.DELETING:
            cloud.set_state(KIND, ocid, LifecycleState.DELETED, gone=True)
            cloud.end_work(work_request, action=WorkAction.DELETED)


def _list(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    # Deleted node pools stay in the list for a while, as on OCI.
    rows = cloud.store.find(KIND, gone=None)
    return page(filtered(rows, call, ("compartmentId", "clusterId", "name", "lifecycleState")), call)


def recover(cloud: CloudState) -> None:
    """Finish what a stop of the server has interrupted."""
    for row in cloud.store.find(KIND):
        cloud.submit(f"node pool {row.id}", partial(finish_change, cloud, row.id))


def routes(cloud: CloudState) -> list[Route]:
    """Node pools."""
    pools = f"{CONTAINER_ENGINE}/nodePools"
    one = f"{pools}/{{nodePoolId}}"
    return [
        Route("POST", pools, "CreateNodePool", partial(_create, cloud)),
        Route("GET", pools, "ListNodePools", partial(_list, cloud)),
        Route("GET", one, "GetNodePool", lambda call: show(cloud.get(KIND, call.path["nodePoolId"]))),
        Route("PUT", one, "UpdateNodePool", partial(_update, cloud)),
        Route("DELETE", one, "DeleteNodePool", partial(_delete, cloud)),
    ]
