"""Instance pools and cluster networks: bringing the number of members to the size that was asked for.

One level-based job for growing, shrinking, replacing and ending: it compares the rows with the wish, so a server that
was killed half-way goes on where it stood.
"""

from __future__ import annotations

import copy
import secrets
import string
from collections import Counter
from concurrent.futures import wait

from gpucluster.localcloud.compute import launching, lifecycle
from gpucluster.localcloud.state.cloud import CloudState, log, timestamp
from gpucluster.localcloud.state.names import slug
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import ApiError

BUSY = ("PROVISIONING", "SCALING", "TERMINATING")


def members(cloud: CloudState, pool_id: str) -> list[Resource]:
    """The instances of a pool, oldest first, those that are ending included."""
    return [row for row in cloud.store.find("instance") if row.hidden["pool"] == pool_id]


def set_pool_state(cloud: CloudState, pool_id: str, state: str, *, gone: bool = False) -> None:
    """Move a pool, and the cluster network that it belongs to, to a state."""
    with cloud.store.transaction():
        pool = cloud.set_state("instancepool", pool_id, state, gone=gone)
        network = pool.hidden.get("cluster_network")
        if network:
            cloud.set_state("clusternetwork", network, state, gone=gone)
            cloud.update("clusternetwork", network, timeUpdated=timestamp())


def converge(cloud: CloudState, pool_id: str) -> None:
    """Launch what is missing, end what is too much, and call the pool RUNNING; or end it altogether.

    A first launch that fails ends the whole pool (OCI: the cluster network goes to TERMINATED); a later one leaves it
    RUNNING with fewer members than its size, and the work request says why.
    """
    with cloud.alone(pool_id):
        pool = cloud.get("instancepool", pool_id)
        if pool.gone_at is not None or pool.state == "RUNNING":
            return
        first = pool.state == "PROVISIONING"
        errors: list[str] = []
        if pool.state != "TERMINATING":
            errors = _grow(cloud, pool)
            _shrink(cloud, cloud.get("instancepool", pool_id))
        if cloud.closing.is_set():
            return
        with cloud.store.transaction():
            state = cloud.get("instancepool", pool_id).state
            if state != "TERMINATING" and not (first and errors):
                set_pool_state(cloud, pool_id, "RUNNING")
            else:
                set_pool_state(cloud, pool_id, "TERMINATING")
                state = "TERMINATING"
        if state == "TERMINATING":
            _end(cloud, pool_id)
        for error in errors:
            log.error("instance pool %s: %s", pool.body["displayName"], error)
        request = cloud.get("instancepool", pool_id).hidden.get("work_request", "")
        cloud.end_work(request, errors=tuple(("InternalError", error) for error in errors))


def _grow(cloud: CloudState, pool: Resource) -> list[str]:
    """Register and boot the missing members, several at a time. Returns why some do not run."""
    errors: list[str] = []
    with cloud.store.transaction():
        alive = [row for row in members(cloud, pool.id) if row.state != "TERMINATING"]
        for _ in range(int(pool.body["size"]) - len(alive)):
            try:
                with cloud.store.transaction():
                    launching.register(cloud, _details(cloud, pool), pool=pool.id)
            except ApiError as error:
                errors.append(error.message)
                break
        fresh = [row for row in members(cloud, pool.id) if row.state == "PROVISIONING"]
    wait([lifecycle.begin_launch(cloud, row.id) for row in fresh])
    for row in fresh:
        if cloud.get("instance", row.id).gone_at is not None:
            errors += _why(cloud, row)
    return errors


def _why(cloud: CloudState, instance: Resource) -> list[str]:
    request = cloud.store.get("coreservicesworkrequest", instance.hidden["work_request"])
    found = request.hidden["errors"] if request else []
    return [f"{instance.body['displayName']}: {entry['message']}" for entry in found]


def _shrink(cloud: CloudState, pool: Resource) -> None:
    """End what is too much: fault domains are balanced first, then the oldest goes (docs: size of an instance pool)."""
    with cloud.store.transaction():
        everyone = members(cloud, pool.id)
        alive = [row for row in everyone if row.state != "TERMINATING"]
        ending = [row for row in everyone if row.state == "TERMINATING"]
        while len(alive) > int(pool.body["size"]):
            chosen = next_to_go(alive)
            alive.remove(chosen)
            lifecycle.begin_termination(cloud, chosen)
            ending.append(chosen)
    _await_end(cloud, ending)


def next_to_go(alive: list[Resource]) -> Resource:
    """Whom OCI ends first: the oldest member of the fullest fault domain."""
    counts = Counter(row.body["faultDomain"] for row in alive)
    fullest = max(counts.values())
    return min((row for row in alive if counts[row.body["faultDomain"]] == fullest), key=lambda row: row.seq)


def _end(cloud: CloudState, pool_id: str) -> None:
    with cloud.store.transaction():
        everyone = members(cloud, pool_id)
        for row in everyone:
            if row.state != "TERMINATING":
                lifecycle.begin_termination(cloud, row)
    _await_end(cloud, everyone)
    left = members(cloud, pool_id)
    if left:
        log.error("instance pool %s stays TERMINATING: %d members could not be ended", pool_id, len(left))
        return
    set_pool_state(cloud, pool_id, "TERMINATED", gone=True)


def _await_end(cloud: CloudState, ending: list[Resource]) -> None:
    wait([lifecycle.end_in_background(cloud, row.id) for row in ending])


def member_lost(cloud: CloudState, pool_id: str) -> None:
    """A member ended outside the pool's own doing: OCI launches another one in its place."""
    with cloud.store.transaction():
        pool = cloud.store.get("instancepool", pool_id)
        if pool is None or pool.gone_at is not None or pool.state != "RUNNING":
            return
        alive = [row for row in members(cloud, pool_id) if row.state != "TERMINATING"]
        if len(alive) >= int(pool.body["size"]):
            return
        set_pool_state(cloud, pool_id, "SCALING")
    cloud.coordinate(f"refill {pool_id}", lambda: converge(cloud, pool_id))


def _details(cloud: CloudState, pool: Resource) -> Json:
    """LaunchInstanceDetails of the next member: the instance configuration's, with the pool's subnet and names."""
    configuration = cloud.related("instanceconfiguration", pool.body["instanceConfigurationId"])
    details: Json = copy.deepcopy(configuration.body["instanceDetails"].get("launchDetails") or {})
    placement = pool.body["placementConfigurations"][0]
    subnet_id = placement.get("primarySubnetId") or placement["primaryVnicSubnets"]["subnetId"]
    vnic: Json = {**(details.get("createVnicDetails") or {}), "subnetId": subnet_id}
    name, host = _names(cloud, pool)
    if cloud.related("subnet", subnet_id).body.get("dnsLabel"):
        vnic["hostnameLabel"] = host
    if placement.get("computeClusterId"):
        details["computeClusterId"] = placement["computeClusterId"]
    return {
        **details,
        "compartmentId": details.get("compartmentId") or pool.body["compartmentId"],
        "availabilityDomain": placement["availabilityDomain"],
        "displayName": name,
        "createVnicDetails": vnic,
        "instanceConfigurationId": configuration.id,
    }


def _names(cloud: CloudState, pool: Resource) -> tuple[str, str]:
    """Display name and host name of the next member.

    With a formatter, ${launchCount} counts every launch of the pool from 1 and is never used again. Without one, OCI
    names members inst-<five random letters>-<name of the pool>.
    """
    fresh = cloud.get("instancepool", pool.id)
    count = fresh.hidden["launch_count"] = int(fresh.hidden.get("launch_count", 0)) + 1
    cloud.store.save(fresh)
    letters = "".join(secrets.choice(string.ascii_lowercase) for _ in range(5))
    default = f"inst-{letters}-{fresh.body['displayName']}"
    name = str(fresh.body.get("instanceDisplayNameFormatter") or default)
    host = str(fresh.body.get("instanceHostnameFormatter") or slug(default))
    return name.replace("${launchCount}", str(count)), host.replace("${launchCount}", str(count))
