"""What the server does before it answers: it brings the rows and what is on this machine together again.

After kill -9, a reboot, or containers removed by hand. Rows are written before what stands behind them, so whatever
no row knows is an orphan of ours and is removed.
"""

from __future__ import annotations

import json
from functools import partial

from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.api import bastions, console, file_storage, identity, instance_configurations, kinds, network
from gpucluster.localcloud.compute import addresses, custom_images, lifecycle, pools
from gpucluster.localcloud.state.cloud import CloudState, log
from gpucluster.localcloud.state.names import network_name
from gpucluster.localcloud.state.store import Resource
from gpucluster.localcloud.state.wire import ApiError

# Gone rows are shown for half a day: OCI keeps terminated instances listed about as long.
RETENTION = 12 * 3600.0
_KINDS = (
    *network.KINDS,
    *file_storage.KINDS,
    instance_configurations.COMPUTE_CLUSTER,
    identity.COMPARTMENT,
    identity.POLICY,
)


def recover(cloud: CloudState) -> None:
    """Finish or undo what was under way, start what should run, remove orphans."""
    _finish_simple(cloud)
    _networks(cloud)
    for vcn in cloud.store.find("vcn"):
        file_storage.publish(cloud, vcn.id)
    _close_lost_actions(cloud)
    states = _adopt_instances(cloud)
    for image in cloud.store.find("image", lifecycleState="PROVISIONING"):
        custom_images.begin_bake(cloud, image)
    for history in cloud.store.find("consolehistory", lifecycleState="REQUESTED"):
        cloud.submit(f"console {history.id}", partial(console.capture, cloud, history.id))
    for target in cloud.store.find("mounttarget", gone=True):
        addresses.release(cloud, target.id)
    for bastion in cloud.store.find("bastion"):
        cloud.submit(f"bastion {bastion.id}", partial(bastions.settle, cloud, bastion.id))
    for session in cloud.store.find("bastionsession", lifecycleState="CREATING"):
        cloud.submit(f"session {session.id}", partial(bastions.activate, cloud, session.id))
    for instance in cloud.store.find("instance"):
        _instance(cloud, instance, states.get(instance.hidden["name"], "absent"))
    for pool in cloud.store.find("instancepool"):
        if pool.state in pools.BUSY:
            cloud.coordinate(f"pool {pool.id}", partial(pools.converge, cloud, pool.id))


def _finish_simple(cloud: CloudState) -> None:
    """Creates and deletes that stopped between their row and what stands behind it."""
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


def _networks(cloud: CloudState) -> None:
    known = {network_name(vcn.id): vcn for vcn in cloud.store.find("vcn")}
    present = set(cloud.engine.networks())
    for name, vcn in known.items():
        if name not in present:
            log.warning("the network of %s is gone and is made again", vcn.id)
            cloud.engine.create_network(name, vcn.body["cidrBlock"], cloud.labels(vcn.id))


def _close_lost_actions(cloud: CloudState) -> None:
    for request in cloud.store.find("coreservicesworkrequest", status="IN_PROGRESS"):
        if request.body["operationType"] == "InstanceAction":
            cloud.end_work(request.id, errors=(("InternalError", "The server of the local cloud was restarted"),))


def _adopt_instances(cloud: CloudState) -> dict[str, str]:
    """State by name of our machines; those (and networks) that no row knows are removed and noted for `status`."""
    known = {row.hidden["name"] for row in cloud.store.find("instance")}
    states, orphans = {}, []
    for machine in cloud.engine.instances():
        if machine.name in known:
            states[machine.name] = machine.state
            continue
        log.warning("removing the orphaned container %s", machine.name)
        orphans.append(machine.name)
        cloud.engine.terminate(machine.name)
    networks = {network_name(vcn.id) for vcn in cloud.store.find("vcn")}
    for name in cloud.engine.networks():
        if name not in networks:
            log.warning("removing the orphaned network %s", name)
            orphans.append(name)
            cloud.engine.remove_network(name)
    cloud.store.set_setting("orphans", json.dumps(orphans))
    return states


def _instance(cloud: CloudState, instance: Resource, found: str) -> None:
    match instance.state:
        case "PROVISIONING":
            # A pool launches its own members. Starting over is safe: the engine replaces what is left.
            if not instance.hidden["pool"]:
                lifecycle.begin_launch(cloud, instance.id)
        case "TERMINATING":
            lifecycle.end_in_background(cloud, instance.id)
        case "STOPPED" | "STOPPING":
            cloud.submit(f"settle {instance.id}", partial(_rest, cloud, instance.id, found))
        case "CREATING_IMAGE":
            pass  # its image, which is taken up again as well, says when that is over
        case _:
            if instance.hidden.get("dead"):
                return
            if found != "running" or instance.state != "RUNNING":
                cloud.submit(f"wake {instance.id}", partial(_wake, cloud, instance.id, found))


def _wake(cloud: CloudState, ocid: str, found: str) -> None:
    """An instance that should run: start its container if it is only stopped (the host was rebooted)."""
    with cloud.alone(ocid):
        if found == "stopped":
            try:
                cloud.engine.start(cloud.get("instance", ocid).hidden["name"])
            except GpuClusterError as error:
                log.error("can't start %s again: %s", ocid, error)
        lifecycle.settle(cloud, ocid)


def _rest(cloud: CloudState, ocid: str, found: str) -> None:
    """An instance that should not run."""
    with cloud.alone(ocid):
        if found == "running":
            cloud.engine.stop(cloud.get("instance", ocid).hidden["name"])
        lifecycle.settle(cloud, ocid)
