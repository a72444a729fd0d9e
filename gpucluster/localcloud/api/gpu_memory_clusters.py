"""GPU memory clusters: instances on the hosts of one GPU memory fabric, in one compute cluster.

Sources: Oracle's pages "Creating GPU Memory Clusters" and "GPU Memory Fabric States", and the SDK's docstrings. The
statuses of the refusals are not documented: 400 InvalidParameter, 409 IncorrectState and 409 Conflict are those that
OCI has elsewhere for such reasons. Scaling to a target size and reserved addresses are refused: the first is not open
to every tenancy (oci-hpc, mgmt/lib/ociwrap.py), the second needs addresses that are reserved in the VCN.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpucluster.localcloud.api.instance_configurations import COMPUTE_CLUSTER, CONFIGURATION
from gpucluster.localcloud.api.kinds import TAGS
from gpucluster.localcloud.compute import memory_clusters, memory_fabrics, pools
from gpucluster.localcloud.compute.memory_fabrics import MEMORY_CLUSTER, Fabric
from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.region import REGION, check_domain
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import (
    CORE,
    ApiRoute,
    Call,
    Reply,
    check_etag,
    conflict,
    filtered,
    incorrect_state,
    invalid,
    page,
    related_not_found,
    required,
)

_MEMBERS = ("compartmentId", "availabilityDomain", "computeClusterId", "instanceConfigurationId", "gpuMemoryFabricId")
# The local cloud needs these two, which OCI can choose itself.
_REQUIRED = (*_MEMBERS, "size")
_NOT_THERE = ("gpuMemoryClusterScaleConfig", "privateIpIds")
_FILTERS = ("compartmentId", "availabilityDomain", "displayName", "computeClusterId")
# The members of a summary lack these.
_DETAILS_ONLY = ("computeClusterId", "instanceConfigurationId")


def _check_members(details: Json) -> None:
    for name in _NOT_THERE:
        if details.get(name):
            raise invalid(f"The local cloud makes GPU memory clusters without {name}")


def _size(value: object, fabric: Fabric) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= fabric.size:
        raise invalid(f"size {value} must be from 1 to {fabric.size}, the number of hosts of the fabric {fabric.id}")
    return value


def _check_free(cloud: CloudState, fabric: Fabric, more: int) -> None:
    free = len(memory_fabrics.free_hosts(cloud, fabric))
    if more > free:
        raise conflict(f"The GPU memory fabric {fabric.id} has {free} available hosts; {more} are needed")


def _check_fabric(cloud: CloudState, body: Json) -> Fabric:
    """The fabric of a new cluster, which must be able to take it."""
    fabric = memory_fabrics.find(cloud, body["gpuMemoryFabricId"])
    if fabric is None:
        raise related_not_found("computegpumemoryfabric", str(body["gpuMemoryFabricId"]))
    if fabric.domain != body["availabilityDomain"]:
        raise invalid(f"The GPU memory fabric {fabric.id} is in another availability domain")
    state = memory_fabrics.state_of(cloud, fabric)
    if state in memory_fabrics.UNUSABLE:
        raise incorrect_state(f"The GPU memory fabric {fabric.id} is {state}")
    for other in memory_fabrics.clusters_on(cloud, fabric.id):
        if other.body["computeClusterId"] == body["computeClusterId"]:
            raise conflict(
                f"The GPU memory fabric {fabric.id} is in use by the GPU memory cluster {other.id} of the same compute "
                "cluster; several on one fabric need different compute clusters"
            )
    return fabric


def _check_configuration(cloud: CloudState, ocid: object, fabric: Fabric) -> None:
    configuration = cloud.related(CONFIGURATION.name, ocid)
    launch: Json = configuration.body["instanceDetails"].get("launchDetails") or {}
    if launch.get("shape") != fabric.shape:
        raise invalid(f"The hosts of the GPU memory fabric {fabric.id} have the shape {fabric.shape}")
    cloud.related("subnet", (launch.get("createVnicDetails") or {}).get("subnetId"))


def _make(cloud: CloudState, body: Json) -> tuple[Resource, str]:
    cloud.compartment(body["compartmentId"])
    compute_cluster = cloud.related(COMPUTE_CLUSTER.name, body["computeClusterId"])
    for name in ("compartmentId", "availabilityDomain"):
        if compute_cluster.body[name] != body[name]:
            raise invalid(f"The compute cluster {compute_cluster.id} has another {name}")
    fabric = _check_fabric(cloud, body)
    _check_configuration(cloud, body["instanceConfigurationId"], fabric)
    size = _size(body["size"], fabric)
    _check_free(cloud, fabric, size)
    members = {name: body[name] for name in (*TAGS, *_MEMBERS) if name in body}
    cluster = cloud.new(MEMORY_CLUSTER, {**members, "size": size, "lifecycleState": LifecycleState.CREATING})
    return cluster, _begin(cloud, cluster, "CreateComputeGpuMemoryCluster")


def _begin(cloud: CloudState, cluster: Resource, operation: str) -> str:
    cluster.hidden["work_request"] = cloud.begin_work(operation, MEMORY_CLUSTER, cluster)
    cloud.store.save(cluster)
    return str(cluster.hidden["work_request"])


def _start(cloud: CloudState, ocid: str) -> None:
    cloud.coordinate(f"memory cluster {ocid}", partial(memory_clusters.converge, cloud, ocid))


def _shown(cluster: Resource, work_request: str = "") -> Reply:
    headers = {"opc-work-request-id": work_request} if work_request else {}
    return Reply(cluster.body, headers={"etag": cluster.etag, **headers})


def _create(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(body, *_REQUIRED)
    check_domain(body)
    _check_members(body)
    cluster, work_request, new = cloud.create_once(call, lambda: _make(cloud, body))
    if new:
        _start(cloud, cluster.id)
    return _shown(cluster, work_request)


def _get(cloud: CloudState, call: Call) -> Reply:
    return _shown(cloud.get(MEMORY_CLUSTER, call.path["computeGpuMemoryClusterId"]))


def _list(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    rows = filtered(cloud.store.find(MEMORY_CLUSTER, gone=None), call, _FILTERS)
    for name, member in (("computeGpuMemoryClusterId", "id"), ("computeGpuMemoryFabricId", "gpuMemoryFabricId")):
        if wanted := call.query.get(name):
            rows = [row for row in rows if row.body[member] == wanted]
    reply = page(rows, call, view=lambda row: {k: v for k, v in row.body.items() if k not in _DETAILS_ONLY})
    return replace(reply, body={"items": reply.body})


def _idle(cloud: CloudState, call: Call) -> Resource:
    cluster = cloud.live(MEMORY_CLUSTER, call.path["computeGpuMemoryClusterId"])
    check_etag(call, cluster)
    if cluster.state in memory_clusters.BUSY:
        raise incorrect_state(f"The GPU memory cluster {cluster.id} is {cluster.state}; one operation at a time")
    return cluster


def _update(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    _check_members(body)
    with cloud.store.transaction():
        cluster = _idle(cloud, call)
        fabric = memory_clusters.fabric_of(cloud, cluster)
        if fabric is None:
            raise related_not_found("computegpumemoryfabric", cluster.body["gpuMemoryFabricId"])
        if "instanceConfigurationId" in body:
            _check_configuration(cloud, body["instanceConfigurationId"], fabric)
        changed = {name: body[name] for name in (*TAGS, "instanceConfigurationId") if name in body}
        cluster.body.update(changed)
        cloud.store.save(cluster)
        scaled = "size" in body and _size(body["size"], fabric) != cluster.body["size"]
        if scaled:
            _check_free(cloud, fabric, body["size"] - cluster.body["size"])
            cluster.body |= {"size": body["size"], "lifecycleState": LifecycleState.UPDATING}
        work_request = _begin(cloud, cluster, "UpdateComputeGpuMemoryCluster") if scaled else ""
    if scaled:
        _start(cloud, cluster.id)
    return _shown(cloud.get(MEMORY_CLUSTER, cluster.id), work_request)


def _delete(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        cluster = _idle(cloud, call)
        work_request = _begin(cloud, cluster, "DeleteComputeGpuMemoryCluster")
        cloud.set_state(MEMORY_CLUSTER, cluster.id, LifecycleState.DELETING)
    _start(cloud, cluster.id)
    return Reply(status=202, headers={"opc-work-request-id": work_request})


def _instance(row: Resource) -> Json:
    names = (
        "id", "availabilityDomain", "compartmentId", "displayName", "faultDomain", "instanceConfigurationId",
        "lifecycleState", "timeCreated",
    )  # fmt: skip
    return {**{name: row.body.get(name) for name in names}, "region": REGION, "instanceShape": row.body["shape"]}


def _list_instances(cloud: CloudState, call: Call) -> Reply:
    cluster = cloud.live(MEMORY_CLUSTER, call.path["computeGpuMemoryClusterId"])
    reply = page(pools.members(cloud, cluster.id), call, view=_instance)
    return replace(reply, body={"items": reply.body})


def routes(cloud: CloudState) -> list[ApiRoute]:
    """GPU memory clusters."""
    clusters = f"{CORE}/computeGpuMemoryClusters"
    one = f"{clusters}/{{computeGpuMemoryClusterId}}"
    return [
        ApiRoute("POST", clusters, "CreateComputeGpuMemoryCluster", partial(_create, cloud)),
        ApiRoute("GET", clusters, "ListComputeGpuMemoryClusters", partial(_list, cloud)),
        ApiRoute("GET", one, "GetComputeGpuMemoryCluster", partial(_get, cloud)),
        ApiRoute("PUT", one, "UpdateComputeGpuMemoryCluster", partial(_update, cloud)),
        ApiRoute("DELETE", one, "DeleteComputeGpuMemoryCluster", partial(_delete, cloud)),
        ApiRoute("GET", f"{one}/instances", "ListComputeGpuMemoryClusterInstances", partial(_list_instances, cloud)),
    ]
