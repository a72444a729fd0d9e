"""GPU memory clusters: instances on the hosts of one GPU memory fabric, which grow, shrink and end together.

Sources: the SDK's docstrings of ComputeGpuMemoryCluster (`size` is the number of its instances, with those that are
being launched) and DeleteComputeGpuMemoryCluster (its instances are terminated). Not documented, and so a choice of the
local cloud: a cluster without an instance after its create is deleted; one with fewer than asked for is ACTIVE with the
size that it has, and its work request has the reason; an instance that is terminated is not replaced, and the size
shrinks; which instances a smaller size terminates (as in an instance pool); how instances are named (as in one, too).
"""

from __future__ import annotations

import copy
import secrets
import string
from concurrent.futures import wait

from gpucluster.localcloud.compute import launching, lifecycle, memory_fabrics, pools
from gpucluster.localcloud.compute.memory_fabrics import MEMORY_CLUSTER, DedicatedHost, Fabric
from gpucluster.localcloud.state.cloud import CloudState, log
from gpucluster.localcloud.state.faults import OUT_OF_CAPACITY
from gpucluster.localcloud.state.lifecycle_states import LifecycleState, WorkAction
from gpucluster.localcloud.state.names import slug
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import ApiError

BUSY = (LifecycleState.CREATING, LifecycleState.UPDATING, LifecycleState.DELETING)


def owns(ocid: str) -> bool:
    """Whether the owner of an instance is a GPU memory cluster, and not an instance pool."""
    return ocid.startswith(f"ocid1.{MEMORY_CLUSTER}.")


def fabric_of(cloud: CloudState, cluster: Resource) -> Fabric | None:
    """The fabric of a cluster; None if the tenancy has lost it."""
    return memory_fabrics.find(cloud, cluster.body["gpuMemoryFabricId"])


def converge(cloud: CloudState, cluster_id: str) -> None:
    """Launch missing instances, terminate surplus ones and set the cluster to ACTIVE; or delete it."""
    with cloud.locked(cluster_id):
        cluster = cloud.get(MEMORY_CLUSTER, cluster_id)
        if cluster.gone_at is not None or cluster.state not in BUSY:
            return
        first, errors = cluster.state == LifecycleState.CREATING, []
        if cluster.state != LifecycleState.DELETING:
            errors = _grow(cloud, cluster)
            _shrink(cloud, cluster_id)
            if cloud.closing.is_set():
                return
        if not _settle(cloud, cluster_id, errors, first=first):
            _delete(cloud, cluster_id, errors)
        for error in errors:
            log.error("GPU memory cluster %s: %s", cluster.body["displayName"], error)


def _settle(cloud: CloudState, cluster_id: str, errors: list[str], *, first: bool) -> bool:
    """Set a cluster to ACTIVE, with the size that it has. False if it has to be deleted."""
    with cloud.store.transaction():
        cluster = cloud.get(MEMORY_CLUSTER, cluster_id)
        size = len(pools.alive(cloud, cluster_id))
        if cluster.state == LifecycleState.DELETING or (first and errors and not size):
            return False
        cluster.body["size"] = size
        cloud.store.save(cluster)
        cloud.set_state(MEMORY_CLUSTER, cluster_id, LifecycleState.ACTIVE)
        _end_work(cloud, cluster, WorkAction.CREATED if first else WorkAction.UPDATED, errors)
        return True


def _end_work(cloud: CloudState, cluster: Resource, action: WorkAction, errors: list[str]) -> None:
    failed = tuple(("InternalError", error) for error in errors)
    cloud.end_work(cluster.hidden.get("work_request", ""), action=action, errors=failed)


def _grow(cloud: CloudState, cluster: Resource) -> list[str]:
    """Register and boot the missing instances. Returns the errors of those that do not run."""
    errors: list[str] = []
    with cloud.store.transaction():
        fabric = fabric_of(cloud, cluster)
        free = iter(memory_fabrics.free_hosts(cloud, fabric) if fabric else ())
        for _ in range(int(cluster.body["size"]) - len(pools.alive(cloud, cluster.id))):
            try:
                with cloud.store.transaction():
                    _register(cloud, cluster, next(free, None))
            except ApiError as error:
                errors.append(error.message)
                break
        fresh = [row for row in pools.members(cloud, cluster.id) if row.state == LifecycleState.PROVISIONING]
    wait([lifecycle.start_launch(cloud, row.id) for row in fresh])
    for row in fresh:
        if cloud.get("instance", row.id).gone_at is not None:
            errors += pools.launch_errors(cloud, row)
    return errors


def _register(cloud: CloudState, cluster: Resource, host: DedicatedHost | None) -> None:
    if host is None:
        raise ApiError(500, "InternalError", OUT_OF_CAPACITY)
    launching.register(cloud, _details(cloud, cluster), pool=cluster.id, dedicated=host)


def _details(cloud: CloudState, cluster: Resource) -> Json:
    """LaunchInstanceDetails of the next instance: those of the instance configuration, which names the subnet."""
    configuration = cloud.related("instanceconfiguration", cluster.body["instanceConfigurationId"])
    details: Json = copy.deepcopy(configuration.body["instanceDetails"].get("launchDetails") or {})
    letters = "".join(secrets.choice(string.ascii_lowercase) for _ in range(5))
    name = f"inst-{letters}-{cluster.body['displayName']}"
    vnic: Json = dict(details.get("createVnicDetails") or {})
    if cloud.related("subnet", vnic.get("subnetId")).body.get("dnsLabel"):
        vnic["hostnameLabel"] = slug(name)
    return {
        **details,
        "compartmentId": cluster.body["compartmentId"],
        "availabilityDomain": cluster.body["availabilityDomain"],
        "computeClusterId": cluster.body["computeClusterId"],
        "displayName": name,
        "createVnicDetails": vnic,
        "instanceConfigurationId": configuration.id,
    }


def _shrink(cloud: CloudState, cluster_id: str) -> None:
    with cloud.store.transaction():
        size = int(cloud.get(MEMORY_CLUSTER, cluster_id).body["size"])
        everyone = pools.members(cloud, cluster_id)
        alive = [row for row in everyone if row.state != LifecycleState.TERMINATING]
        ending = [row for row in everyone if row.state == LifecycleState.TERMINATING]
        while len(alive) > size:
            chosen = pools.next_to_terminate(alive)
            alive.remove(chosen)
            lifecycle.mark_terminating(cloud, chosen)
            ending.append(chosen)
    pools.await_termination(cloud, ending)


def _delete(cloud: CloudState, cluster_id: str, errors: list[str]) -> None:
    with cloud.store.transaction():
        cloud.set_state(MEMORY_CLUSTER, cluster_id, LifecycleState.DELETING)
        everyone = pools.members(cloud, cluster_id)
        for row in everyone:
            if row.state != LifecycleState.TERMINATING:
                lifecycle.mark_terminating(cloud, row)
    pools.await_termination(cloud, everyone)
    left = pools.members(cloud, cluster_id)
    if left and cloud.closing.is_set():
        return  # the next start of the server goes on
    cluster = cloud.get(MEMORY_CLUSTER, cluster_id)
    if left:
        log.error("GPU memory cluster %s stays DELETING: %d instances could not be terminated", cluster_id, len(left))
        _end_work(cloud, cluster, WorkAction.DELETED, errors)
        return
    with cloud.store.transaction():
        cloud.set_state(MEMORY_CLUSTER, cluster_id, LifecycleState.DELETED, gone=True)
        _end_work(cloud, cluster, WorkAction.DELETED, errors)


def member_lost(cloud: CloudState, cluster_id: str) -> None:
    """Make the size of a cluster that of its instances, after one was terminated by itself."""
    with cloud.store.transaction():
        cluster = cloud.store.get(MEMORY_CLUSTER, cluster_id)
        if cluster is not None and cluster.state == LifecycleState.ACTIVE:
            cloud.update(MEMORY_CLUSTER, cluster_id, size=len(pools.alive(cloud, cluster_id)))
