"""GPU memory fabrics and their hosts: what `memory_fabrics.json` has, as the API shows it. Both are read only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from gpucluster.localcloud.compute import memory_fabrics
from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import CORE, ApiRoute, Call, Reply, not_found, page

_FABRIC, _HOST = "computegpumemoryfabric", "computebaremetalhost"
# The query parameters of the lists, and the members that they are compared with.
_FABRIC_FILTERS = {
    "compartmentId": "compartmentId",
    "computeGpuMemoryFabricId": "id",
    "displayName": "displayName",
    "computeHpcIslandId": "computeHpcIslandId",
    "computeNetworkBlockId": "computeNetworkBlockId",
    "computeGpuMemoryFabricLifecycleState": "lifecycleState",
    "computeGpuMemoryFabricHealth": "fabricHealth",
}
_HOST_FILTERS = {
    "compartmentId": "compartmentId",
    "availabilityDomain": "availabilityDomain",
    "displayName": "displayName",
    "computeHostLifecycleState": "lifecycleState",
    "computeHostHealth": "health",
}
_NETWORK_RESOURCES = ("hpcIslandId", "networkBlockId", "localBlockId", "gpuMemoryFabricId")


def _matching(views: Iterable[Json], call: Call, filters: Mapping[str, str]) -> list[Json]:
    wanted = {member: call.query[name] for name, member in filters.items() if call.query.get(name)}
    return [view for view in views if all(view.get(member) == value for member, value in wanted.items())]


def _page(kind: str, views: Iterable[Json], call: Call) -> Reply:
    rows = [Resource(view["id"], kind, view, seq=number) for number, view in enumerate(views)]
    reply = page(rows, call)
    return replace(reply, body={"items": reply.body})


def _list_fabrics(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    domain = call.query.get("availabilityDomain")
    there = [fabric for fabric in memory_fabrics.fabrics(cloud) if domain in (None, fabric.domain)]
    views = [memory_fabrics.fabric_view(cloud, fabric) for fabric in there]
    return _page(_FABRIC, _matching(views, call, _FABRIC_FILTERS), call)


def _get_fabric(cloud: CloudState, call: Call) -> Reply:
    ocid = call.path["computeGpuMemoryFabricId"]
    fabric = memory_fabrics.find(cloud, ocid)
    if fabric is None:
        raise not_found(_FABRIC, ocid)
    clusters = [cluster.id for cluster in memory_fabrics.clusters_on(cloud, ocid)]
    return Reply({**memory_fabrics.fabric_view(cloud, fabric), "computeGpuMemoryClusters": clusters})


def _hosts(cloud: CloudState) -> list[Json]:
    return [view for fabric in memory_fabrics.fabrics(cloud) for view in memory_fabrics.host_views(cloud, fabric)]


def _list_hosts(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    views = _matching(_hosts(cloud), call, _HOST_FILTERS)
    if network := call.query.get("networkResourceId"):
        views = [view for view in views if network in (view[member] for member in _NETWORK_RESOURCES)]
    return _page(_HOST, views, call)


def _get_host(cloud: CloudState, call: Call) -> Reply:
    ocid = call.path["computeHostId"]
    for view in _hosts(cloud):
        if view["id"] == ocid:
            return Reply({**view, "additionalData": {}, "lifecycleDetails": {}})
    raise not_found(_HOST, ocid)


def routes(cloud: CloudState) -> list[ApiRoute]:
    """GPU memory fabrics and compute hosts."""
    fabrics, hosts = f"{CORE}/computeGpuMemoryFabrics", f"{CORE}/computeHosts"
    one_fabric, one_host = f"{fabrics}/{{computeGpuMemoryFabricId}}", f"{hosts}/{{computeHostId}}"
    return [
        ApiRoute("GET", fabrics, "ListComputeGpuMemoryFabrics", partial(_list_fabrics, cloud)),
        ApiRoute("GET", one_fabric, "GetComputeGpuMemoryFabric", partial(_get_fabric, cloud)),
        ApiRoute("GET", hosts, "ListComputeHosts", partial(_list_hosts, cloud)),
        ApiRoute("GET", one_host, "GetComputeHost", partial(_get_host, cloud)),
    ]
