"""Instance pools and cluster networks: a job that brings the number of members to the desired size.

One level-triggered job grows, shrinks, refills and terminates: it compares the rows with the desired size, so a server
that was killed continues where it was.
"""

from __future__ import annotations

import copy
import secrets
import string
from collections import Counter
from concurrent.futures import wait

from gpucluster.localcloud.compute import launching, lifecycle
from gpucluster.localcloud.state.cloud import CloudState, log, timestamp
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.names import slug
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import ApiError

BUSY = (LifecycleState.PROVISIONING, LifecycleState.SCALING, LifecycleState.TERMINATING)


def members(cloud: CloudState, pool_id: str) -> list[Resource]:
    """The instances of a pool, oldest first, including those in termination."""
    return [row for row in cloud.store.find("instance") if row.hidden["pool"] == pool_id]


def alive(cloud: CloudState, pool_id: str) -> list[Resource]:
    """The members of a pool that are not in termination, oldest first."""
    return [row for row in members(cloud, pool_id) if row.state != LifecycleState.TERMINATING]


def set_pool_state(cloud: CloudState, pool_id: str, state: LifecycleState, *, gone: bool = False) -> None:
    """Set the state of a pool and of its cluster network."""
    with cloud.store.transaction():
        pool = cloud.set_state("instancepool", pool_id, state, gone=gone)
        network = pool.hidden.get("cluster_network")
        if network:
            cloud.set_state("clusternetwork", network, state, gone=gone)
            cloud.update("clusternetwork", network, timeUpdated=timestamp())


def converge(cloud: CloudState, pool_id: str) -> None:
    """Launch missing members, terminate surplus ones and set the pool to RUNNING; or terminate the whole pool.

    If the first launch fails, the whole pool is terminated (OCI: the cluster network becomes TERMINATED). If a later
    launch fails, the pool is RUNNING with fewer members than its size, and the work request has the reason.
    """
    with cloud.locked(pool_id):
        pool = cloud.get("instancepool", pool_id)
        if pool.gone_at is not None or pool.state == LifecycleState.RUNNING:
            return
        first = pool.state == LifecycleState.PROVISIONING
        errors: list[str] = []
        state = LifecycleState(pool.state)
        while state in (LifecycleState.PROVISIONING, LifecycleState.SCALING):
            errors = _grow(cloud, cloud.get("instancepool", pool_id))
            _shrink(cloud, cloud.get("instancepool", pool_id))
            if cloud.closing.is_set():
                return
            state = _settle(cloud, pool_id, errors, first=first)
        if state == LifecycleState.TERMINATING:
            _terminate_all(cloud, pool_id, errors)
        for error in errors:
            log.error("instance pool %s: %s", pool.body["displayName"], error)


def _settle(cloud: CloudState, pool_id: str, errors: list[str], *, first: bool) -> LifecycleState:
    """Set the state of a pool after its members were launched and terminated. Returns it.

    It stays what it is where a member was lost in the meantime, which `member_lost` leaves to `converge` then.
    """
    with cloud.store.transaction():
        pool = cloud.get("instancepool", pool_id)
        state = LifecycleState(pool.state)
        if first and errors:
            state = LifecycleState.TERMINATING
            set_pool_state(cloud, pool_id, state)
        elif state != LifecycleState.TERMINATING and (errors or len(alive(cloud, pool_id)) >= int(pool.body["size"])):
            state = LifecycleState.RUNNING
            set_pool_state(cloud, pool_id, state)
            _end_work(cloud, pool_id, errors)
        return state


def _end_work(cloud: CloudState, pool_id: str, errors: list[str]) -> None:
    """End the work request of a pool, in the transaction of its new state: the next request may follow that at once."""
    request = cloud.get("instancepool", pool_id).hidden.get("work_request", "")
    cloud.end_work(request, errors=tuple(("InternalError", error) for error in errors))


def _grow(cloud: CloudState, pool: Resource) -> list[str]:
    """Register and boot the missing members, several at a time. Returns the errors of those that do not run."""
    errors: list[str] = []
    with cloud.store.transaction():
        for _ in range(int(pool.body["size"]) - len(alive(cloud, pool.id))):
            try:
                with cloud.store.transaction():
                    launching.register(cloud, _details(cloud, pool), pool=pool.id)
            except ApiError as error:
                errors.append(error.message)
                break
        fresh = [row for row in members(cloud, pool.id) if row.state == LifecycleState.PROVISIONING]
    wait([lifecycle.start_launch(cloud, row.id) for row in fresh])
    for row in fresh:
        if cloud.get("instance", row.id).gone_at is not None:
            errors += launch_errors(cloud, row)
    return errors


def launch_errors(cloud: CloudState, instance: Resource) -> list[str]:
    """Why an instance was not launched, with its name."""
    request = cloud.store.get("coreservicesworkrequest", instance.hidden["work_request"])
    errors = request.hidden["errors"] if request else []
    return [f"{instance.body['displayName']}: {entry['message']}" for entry in errors]


def _shrink(cloud: CloudState, pool: Resource) -> None:
    """Terminate surplus members: balance fault domains first, then oldest first (docs: size of an instance pool)."""
    with cloud.store.transaction():
        everyone = members(cloud, pool.id)
        alive = [row for row in everyone if row.state != LifecycleState.TERMINATING]
        ending = [row for row in everyone if row.state == LifecycleState.TERMINATING]
        while len(alive) > int(pool.body["size"]):
            chosen = next_to_terminate(alive)
            alive.remove(chosen)
            lifecycle.mark_terminating(cloud, chosen)
            ending.append(chosen)
    await_termination(cloud, ending)


def next_to_terminate(alive: list[Resource]) -> Resource:
    """The member that OCI terminates first: the oldest one of the fault domain with the most members."""
    counts = Counter(row.body["faultDomain"] for row in alive)
    fullest = max(counts.values())
    return min((row for row in alive if counts[row.body["faultDomain"]] == fullest), key=lambda row: row.seq)


def _terminate_all(cloud: CloudState, pool_id: str, errors: list[str]) -> None:
    with cloud.store.transaction():
        everyone = members(cloud, pool_id)
        for row in everyone:
            if row.state != LifecycleState.TERMINATING:
                lifecycle.mark_terminating(cloud, row)
    await_termination(cloud, everyone)
    left = members(cloud, pool_id)
    if left and cloud.closing.is_set():
        return  # the next start of the server goes on
    if left:
        log.error("instance pool %s stays TERMINATING: %d members could not be terminated", pool_id, len(left))
        _end_work(cloud, pool_id, errors)
        return
    with cloud.store.transaction():
        set_pool_state(cloud, pool_id, LifecycleState.TERMINATED, gone=True)
        _end_work(cloud, pool_id, errors)


def await_termination(cloud: CloudState, ending: list[Resource]) -> None:
    """Terminate instances that are TERMINATING, several at a time."""
    wait([lifecycle.start_termination(cloud, row.id) for row in ending])


def member_lost(cloud: CloudState, pool_id: str) -> None:
    """Replace a member that was not terminated by the pool itself, as OCI does."""
    with cloud.store.transaction():
        pool = cloud.store.get("instancepool", pool_id)
        if pool is None or pool.gone_at is not None or pool.state != LifecycleState.RUNNING:
            return
        if len(alive(cloud, pool_id)) >= int(pool.body["size"]):
            return
        set_pool_state(cloud, pool_id, LifecycleState.SCALING)
    cloud.coordinate(f"refill {pool_id}", lambda: converge(cloud, pool_id))


def _details(cloud: CloudState, pool: Resource) -> Json:
    """LaunchInstanceDetails of the next member: the instance configuration with the pool's subnet and names."""
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

    With a formatter, ${launchCount} counts the launches of the pool from 1; no number is used twice. Without one, OCI
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
