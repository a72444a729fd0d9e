"""Recovery at the start of the server, after kill -9, a reboot, or containers removed by hand.

It makes the rows and the containers and networks of this machine consistent. A row is always written before its
container, so a container of this home without a row is a leftover and is removed.
"""

from __future__ import annotations

import json
from functools import partial

from gpucluster.localcloud.api import (
    bastions,
    block_volumes,
    console,
    container_engine,
    file_storage,
    identity,
    instance_configurations,
    kinds,
    network,
    node_pools,
)
from gpucluster.localcloud.compute import addresses, custom_images, lifecycle, memory_clusters, memory_fabrics, pools
from gpucluster.localcloud.compute.addresses import engine_networks
from gpucluster.localcloud.engine.protocol import RunState
from gpucluster.localcloud.state.cloud import CloudState, log
from gpucluster.localcloud.state.lifecycle_states import LifecycleState, WorkRequestStatus
from gpucluster.localcloud.state.store import Resource
from gpucluster.localcloud.state.wire import ApiError

# Rows that are gone stay visible for half a day: OCI lists terminated instances about as long.
RETENTION = 12 * 3600.0
_KINDS = (
    *network.KINDS,
    *file_storage.KINDS,
    block_volumes.VOLUME,
    instance_configurations.COMPUTE_CLUSTER,
    identity.COMPARTMENT,
    identity.POLICY,
)


def recover(cloud: CloudState) -> None:
    """Finish or undo interrupted work, start what should run, remove leftovers."""
    _finish_creates_and_deletes(cloud)
    _recreate_networks(cloud)
    for vcn in cloud.store.find("vcn"):
        file_storage.publish(cloud, vcn.id)
    _close_lost_actions(cloud)
    states = _adopt_instances(cloud)
    for image in cloud.store.find("image", lifecycleState=LifecycleState.PROVISIONING):
        custom_images.start_commit(cloud, image)
    for history in cloud.store.find("consolehistory", lifecycleState=LifecycleState.REQUESTED):
        cloud.submit(f"console {history.id}", partial(console.capture, cloud, history.id))
    for target in cloud.store.find("mounttarget", gone=True):
        addresses.release(cloud, target.id)
    for bastion in cloud.store.find("bastion"):
        cloud.submit(f"bastion {bastion.id}", partial(bastions.finish_change, cloud, bastion.id))
    for session in cloud.store.find("bastionsession", lifecycleState=LifecycleState.CREATING):
        cloud.submit(f"session {session.id}", partial(bastions.activate, cloud, session.id))
    block_volumes.recover(cloud)
    container_engine.recover(cloud)
    node_pools.recover(cloud)
    for instance in cloud.store.find("instance"):
        _recover_instance(cloud, instance, states.get(instance.hidden["name"], RunState.ABSENT))
    _continue_pools(cloud)


def _continue_pools(cloud: CloudState) -> None:
    for pool in cloud.store.find("instancepool"):
        if pool.state in pools.BUSY:
            cloud.coordinate(f"pool {pool.id}", partial(pools.converge, cloud, pool.id))
    for cluster in cloud.store.find(memory_fabrics.MEMORY_CLUSTER):
        if cluster.state in memory_clusters.BUSY:
            cloud.coordinate(f"memory cluster {cluster.id}", partial(memory_clusters.converge, cloud, cluster.id))


def _finish_creates_and_deletes(cloud: CloudState) -> None:
    """Finish creates and deletes that were interrupted between the row and the resource behind it."""
    for kind in _KINDS:
        for row in cloud.store.find(kind.name):
            if kind.initial != kind.ready and row.state == kind.initial:
                log.info("finishing the create of %s", row.id)
                try:
                    kinds.finish(cloud, kind, row)
                except ApiError as error:
                    log.error("%s: %s", row.id, error)
            elif row.state == kind.ending and kind.ending != kind.ready:
                log.info("finishing the delete of %s", row.id)
                kinds.remove(cloud, kind, row.id)


def _recreate_networks(cloud: CloudState) -> None:
    present = set(cloud.engine.networks())
    for vcn in cloud.store.find("vcn"):
        for name, block in engine_networks(vcn).items():
            if name not in present:
                log.warning("the network of %s is missing and is created again", vcn.id)
                cloud.engine.create_network(name, block, cloud.labels(vcn.id))


def _close_lost_actions(cloud: CloudState) -> None:
    """End the work requests of power actions and updates, which no job continues but that of a boot volume."""
    going_on = {row.hidden.get("replacement_work_request") for row in cloud.store.find("instance")}
    for request in cloud.store.find("coreservicesworkrequest", status=WorkRequestStatus.IN_PROGRESS):
        if request.body["operationType"] in ("InstanceAction", "UpdateInstance") and request.id not in going_on:
            cloud.end_work(request.id, errors=(("InternalError", "The server of the local cloud was restarted"),))


def _adopt_instances(cloud: CloudState) -> dict[str, RunState]:
    """The states of this home's containers by name. Removes containers and networks without a row.

    `control.status` reports the removed ones (setting "orphans").
    """
    known = {row.hidden["name"] for row in cloud.store.find("instance")} | container_engine.containers(cloud)
    states: dict[str, RunState] = {}
    leftovers = []
    for instance in cloud.engine.instances():
        if instance.name in known:
            states[instance.name] = instance.state
            continue
        log.warning("removing the container %s, which has no row", instance.name)
        leftovers.append(instance.name)
        cloud.engine.terminate(instance.name)
    networks = {name for vcn in cloud.store.find("vcn") for name in engine_networks(vcn)}
    for name in cloud.engine.networks():
        if name not in networks:
            log.warning("removing the network %s, which has no row", name)
            leftovers.append(name)
            cloud.engine.remove_network(name)
    cloud.store.set_setting("orphans", json.dumps(leftovers))
    return states


def _recover_instance(cloud: CloudState, instance: Resource, container_state: RunState) -> None:
    match instance.state:
        case LifecycleState.PROVISIONING:
            # A pool launches its own members. To launch again is safe: the engine replaces a leftover.
            if not instance.hidden["pool"]:
                lifecycle.start_launch(cloud, instance.id)
        case LifecycleState.TERMINATING:
            lifecycle.start_termination(cloud, instance.id)
        case _ if instance.hidden.get("replacing"):
            lifecycle.start_replacement(cloud, instance.id)
        case LifecycleState.STOPPED if instance.hidden.get("stopped_by_itself"):
            cloud.submit(f"start {instance.id}", partial(_start_stopped, cloud, instance.id, container_state))
        case LifecycleState.STOPPED | LifecycleState.STOPPING:
            cloud.submit(f"settle {instance.id}", partial(_stop_running, cloud, instance.id, container_state))
        case LifecycleState.CREATING_IMAGE:
            pass  # the job of its image, which also continues, resets the state
        case _:
            if instance.hidden.get("dead"):
                return
            if container_state != RunState.RUNNING or instance.state != LifecycleState.RUNNING:
                cloud.submit(f"start {instance.id}", partial(_start_stopped, cloud, instance.id, container_state))


def _start_stopped(cloud: CloudState, ocid: str, container_state: RunState) -> None:
    """Start the stopped container of an instance that should run (after a reboot of the host)."""
    with cloud.locked(ocid):
        if container_state == RunState.STOPPED:
            lifecycle.start_stopped(cloud, ocid)
        else:
            lifecycle.sync_state(cloud, ocid)


def _stop_running(cloud: CloudState, ocid: str, container_state: RunState) -> None:
    """Stop the running container of an instance that should not run."""
    with cloud.locked(ocid):
        if container_state == RunState.RUNNING:
            cloud.engine.stop(cloud.get("instance", ocid).hidden["name"])
        lifecycle.sync_state(cloud, ocid)
