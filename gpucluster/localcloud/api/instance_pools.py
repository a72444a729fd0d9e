"""Instance pools and cluster networks."""

from __future__ import annotations

from functools import partial

from gpucluster.localcloud.api.instance_configurations import CONFIGURATION
from gpucluster.localcloud.api.kinds import TAGS
from gpucluster.localcloud.compute import lifecycle, pools
from gpucluster.localcloud.compute.shape_config import known_shape
from gpucluster.localcloud.state.cloud import CloudState, timestamp
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.names import new_ocid
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
    not_found,
    page,
    required,
)

_LISTED = ("compartmentId", "displayName", "lifecycleState")


def _pool_row(cloud: CloudState, details: Json, placements: list[Json], network: str) -> Resource:
    configuration = cloud.related(CONFIGURATION.name, details["instanceConfigurationId"])
    for placement in placements:
        check_domain(placement)
        subnet = placement.get("primarySubnetId") or (placement.get("primaryVnicSubnets") or {}).get("subnetId")
        cloud.related("subnet", subnet)
    if network:
        shape = known_shape(configuration.body["instanceDetails"]["launchDetails"].get("shape"))
        if not shape.rdma:
            raise invalid(f"Shape {shape.name} has no RDMA network and can't be in a cluster network")
    members = ("compartmentId", "instanceConfigurationId", "instanceDisplayNameFormatter", "instanceHostnameFormatter")
    body = {
        **{name: details[name] for name in (*TAGS, *members) if name in details},
        "size": _size(details["size"]),
        "poolType": "DEFAULT",
        "placementConfigurations": [
            {"faultDomains": [], "secondaryVnicSubnets": [], **placement} for placement in placements
        ],
        "loadBalancers": [],
        "lifecycleState": LifecycleState.PROVISIONING,
    }
    return cloud.new("instancepool", body, {"cluster_network": network})


def _size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise invalid(f"size {value} is not a number of instances")
    return value


def _create_pool(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(body, "compartmentId", "instanceConfigurationId", "placementConfigurations", "size")
    if len(body["placementConfigurations"]) != 1:
        raise invalid(
            "The local cloud puts a pool into one availability domain: give exactly one placement configuration"
        )

    def make() -> tuple[Resource, str]:
        cloud.compartment(body["compartmentId"])
        pool = _pool_row(cloud, body, body["placementConfigurations"], "")
        return pool, _begin(cloud, pool, pool, "CreateInstancePool", "instancepool")

    pool, work_request, new = cloud.create_once(call, make)
    return _started(cloud, pool, _pool_view(cloud, pool), work_request, new)


def _begin(cloud: CloudState, pool: Resource, shown: Resource, operation: str, entity: str) -> str:
    pool.hidden["work_request"] = cloud.begin_work(operation, entity, shown)
    cloud.store.save(pool)
    return str(pool.hidden["work_request"])


def _started(cloud: CloudState, pool: Resource, view: Json, work_request: str, start: bool) -> Reply:
    if start:
        cloud.coordinate(f"pool {pool.id}", partial(pools.converge, cloud, pool.id))
    return Reply(view, headers={"etag": pool.etag, "opc-work-request-id": work_request})


def _pool_view(cloud: CloudState, pool: Resource) -> Json:
    running = [row for row in pools.members(cloud, pool.id) if row.state == LifecycleState.RUNNING]
    return {**pool.body, "currentSize": len(running)}


def _get_pool(cloud: CloudState, call: Call) -> Reply:
    pool = cloud.get("instancepool", call.path["instancePoolId"])
    return Reply(_pool_view(cloud, pool), headers={"etag": pool.etag})


def _list_pools(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    rows = filtered(cloud.store.find("instancepool", gone=None), call, _LISTED)
    return page(rows, call, view=lambda row: {**_pool_view(cloud, row), "availabilityDomains": [
        placement["availabilityDomain"] for placement in row.body["placementConfigurations"]]})  # fmt: skip


def _change_pool(cloud: CloudState, pool: Resource, details: Json) -> bool:
    """Apply an update in the caller's transaction. True if members must be launched or terminated."""
    if pool.state in pools.BUSY:
        raise incorrect_state(f"Instance pool {pool.id} is {pool.state}; one operation at a time")
    names = (*TAGS, "instanceDisplayNameFormatter", "instanceHostnameFormatter", "instanceConfigurationId")
    if "instanceConfigurationId" in details:
        cloud.related(CONFIGURATION.name, details["instanceConfigurationId"])
    pool.body.update({name: details[name] for name in names if name in details})
    scaled = "size" in details and _size(details["size"]) != len(pools.members(cloud, pool.id))
    if "size" in details:
        pool.body["size"] = _size(details["size"])
    cloud.store.save(pool)
    return scaled


def _update_pool(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        pool = cloud.live("instancepool", call.path["instancePoolId"])
        check_etag(call, pool)
        scaled = _change_pool(cloud, pool, call.body())
        work_request = _begin(cloud, pool, pool, "UpdateInstancePool", "instancepool") if scaled else ""
        if scaled:
            pools.set_pool_state(cloud, pool.id, LifecycleState.SCALING)
    pool = cloud.get("instancepool", pool.id)
    return _started(cloud, pool, _pool_view(cloud, pool), work_request, scaled)


def _terminate_pool(cloud: CloudState, pool: Resource, shown: Resource, operation: str, entity: str) -> Reply:
    work_request = _begin(cloud, pool, shown, operation, entity)
    pools.set_pool_state(cloud, pool.id, LifecycleState.TERMINATING)
    cloud.coordinate(f"end {pool.id}", partial(pools.converge, cloud, pool.id))
    return Reply(status=204, headers={"opc-work-request-id": work_request})


def _delete_pool(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        pool = cloud.live("instancepool", call.path["instancePoolId"])
        check_etag(call, pool)
        if pool.hidden["cluster_network"]:
            raise conflict(f"The instance pool {pool.id} belongs to {pool.hidden['cluster_network']}; terminate that")
        return _terminate_pool(cloud, pool, pool, "TerminateInstancePool", "instancepool")


def _member_view(row: Resource) -> Json:
    names = (
        "id",
        "availabilityDomain",
        "compartmentId",
        "displayName",
        "faultDomain",
        "instanceConfigurationId",
        "shape",
        "timeCreated",
    )
    # Here "state" is a capitalised word and not a lifecycleState (observed: "Running").
    return {
        **{name: row.body.get(name) for name in names},
        "region": REGION,
        "state": row.state.capitalize(),
        "loadBalancerBackends": [],
        "instancePoolId": row.hidden["pool"],
        "lifecycleState": LifecycleState.ACTIVE if row.state == LifecycleState.RUNNING else LifecycleState.ATTACHING,
    }


def _pool_members(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    pool = cloud.live("instancepool", call.path["instancePoolId"])
    return page(filtered(pools.members(cloud, pool.id), call, ("displayName",)), call, view=_member_view)


def _pool_member(cloud: CloudState, call: Call) -> Reply:
    for row in pools.members(cloud, call.path["instancePoolId"]):
        if row.id == call.path["instanceId"]:
            return Reply(_member_view(row), headers={"etag": row.etag})
    raise not_found("instance", call.path["instanceId"])


def _detach(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(body, "instanceId")
    with cloud.store.transaction():
        pool = cloud.live("instancepool", call.path["instancePoolId"])
        if pool.state in pools.BUSY:
            raise incorrect_state(f"Instance pool {pool.id} is {pool.state}; one operation at a time")
        instance = cloud.related("instance", body["instanceId"])
        if instance.hidden["pool"] != pool.id:
            raise invalid(f"Instance {instance.id} is not in the pool {pool.id}")
        instance.hidden["pool"] = ""
        cloud.store.save(instance)
        if body.get("isDecrementSize", True):
            pool.body["size"] -= 1
        work_request = _begin(cloud, pool, pool, "DetachInstance", "instancepool")
        ending = bool(body.get("isAutoTerminate", False))
        if ending:
            lifecycle.mark_terminating(cloud, instance)
        pools.set_pool_state(cloud, pool.id, LifecycleState.SCALING)
    if ending:
        lifecycle.start_termination(cloud, instance.id)
    cloud.coordinate(f"detach {pool.id}", partial(pools.converge, cloud, pool.id))
    return Reply(status=204, headers={"opc-work-request-id": work_request})


def _network_view(cloud: CloudState, network: Resource) -> Json:
    pool = cloud.get("instancepool", network.hidden["pool"])
    return {**network.body, "instancePools": [_pool_view(cloud, pool)]}


def _create_network(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(body, "compartmentId", "instancePools", "placementConfiguration")
    if len(body["instancePools"]) != 1:
        raise invalid("A cluster network has exactly one instance pool")
    required(body["instancePools"][0], "instanceConfigurationId", "size")

    def make() -> tuple[Resource, str]:
        cloud.compartment(body["compartmentId"])
        tags = {name: body[name] for name in TAGS if name in body}
        network = cloud.new(
            "clusternetwork",
            {
                **tags,
                "compartmentId": body["compartmentId"],
                "placementConfiguration": body["placementConfiguration"],
                "hpcIslandId": (body.get("clusterConfiguration") or {}).get("hpcIslandId") or new_ocid("hpcisland"),
                "networkBlockIds": [new_ocid("computenetworkblock")],
                "lifecycleState": LifecycleState.PROVISIONING,
                "timeUpdated": timestamp(),
            },
        )
        # Without formatters: CreateClusterNetworkInstancePoolDetails has none.
        details = {name: body["instancePools"][0][name] for name in (*TAGS, "instanceConfigurationId", "size")
                if name in body["instancePools"][0]}  # fmt: skip
        details["compartmentId"] = body["compartmentId"]
        details.setdefault("displayName", network.body["displayName"])
        placement = {
            name: value for name, value in body["placementConfiguration"].items() if name != "placementConstraint"
        }
        pool = _pool_row(cloud, details, [placement], network.id)
        network.hidden["pool"] = pool.id
        cloud.store.save(network)
        return network, _begin(cloud, pool, network, "CreateClusterNetwork", "clusternetwork")

    network, work_request, new = cloud.create_once(call, make)
    pool = cloud.get("instancepool", network.hidden["pool"])
    return _started(cloud, pool, _network_view(cloud, network), work_request, new)


def _get_network(cloud: CloudState, call: Call) -> Reply:
    network = cloud.get("clusternetwork", call.path["clusterNetworkId"])
    return Reply(_network_view(cloud, network), headers={"etag": network.etag})


def _list_networks(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    rows = filtered(cloud.store.find("clusternetwork", gone=None), call, _LISTED)
    return page(rows, call, view=lambda row: _network_view(cloud, row))


def _update_network(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    with cloud.store.transaction():
        network = cloud.live("clusternetwork", call.path["clusterNetworkId"])
        check_etag(call, network)
        pool = cloud.get("instancepool", network.hidden["pool"])
        network.body.update({name: body[name] for name in TAGS if name in body}, timeUpdated=timestamp())
        cloud.store.save(network)
        details: Json = next(iter(body.get("instancePools") or []), {})
        if details.get("id", pool.id) != pool.id:
            raise invalid(f"Instance pool {details['id']} is not in the cluster network {network.id}")
        scaled = bool(details) and _change_pool(cloud, pool, details)
        work_request = _begin(cloud, pool, network, "UpdateClusterNetwork", "clusternetwork") if scaled else ""
        if scaled:
            pools.set_pool_state(cloud, pool.id, LifecycleState.SCALING)
    view = _network_view(cloud, cloud.get("clusternetwork", network.id))
    return _started(cloud, pool, view, work_request, scaled)


def _delete_network(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        network = cloud.live("clusternetwork", call.path["clusterNetworkId"])
        check_etag(call, network)
        pool = cloud.get("instancepool", network.hidden["pool"])
        return _terminate_pool(cloud, pool, network, "TerminateClusterNetwork", "clusternetwork")


def _network_members(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    network = cloud.live("clusternetwork", call.path["clusterNetworkId"])
    rows = filtered(pools.members(cloud, network.hidden["pool"]), call, ("displayName",))
    return page(rows, call, view=_member_view)


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Instance pools, cluster networks and their members."""
    pool, network = f"{CORE}/instancePools", f"{CORE}/clusterNetworks"
    one_pool, one_network = f"{pool}/{{instancePoolId}}", f"{network}/{{clusterNetworkId}}"
    return [
        ApiRoute("POST", pool, "CreateInstancePool", partial(_create_pool, cloud)),
        ApiRoute("GET", pool, "ListInstancePools", partial(_list_pools, cloud)),
        ApiRoute("GET", one_pool, "GetInstancePool", partial(_get_pool, cloud)),
        ApiRoute("PUT", one_pool, "UpdateInstancePool", partial(_update_pool, cloud)),
        ApiRoute("DELETE", one_pool, "TerminateInstancePool", partial(_delete_pool, cloud)),
        ApiRoute("GET", f"{one_pool}/instances", "ListInstancePoolInstances", partial(_pool_members, cloud)),
        ApiRoute(
            "GET", f"{one_pool}/instances/{{instanceId}}", "GetInstancePoolInstance", partial(_pool_member, cloud)
        ),
        ApiRoute("POST", f"{one_pool}/actions/detachInstance", "DetachInstancePoolInstance", partial(_detach, cloud)),
        ApiRoute("POST", network, "CreateClusterNetwork", partial(_create_network, cloud)),
        ApiRoute("GET", network, "ListClusterNetworks", partial(_list_networks, cloud)),
        ApiRoute("GET", one_network, "GetClusterNetwork", partial(_get_network, cloud)),
        ApiRoute("PUT", one_network, "UpdateClusterNetwork", partial(_update_network, cloud)),
        ApiRoute("DELETE", one_network, "TerminateClusterNetwork", partial(_delete_network, cloud)),
        ApiRoute("GET", f"{one_network}/instances", "ListClusterNetworkInstances", partial(_network_members, cloud)),
    ]
