"""The life cycle of an accepted instance: boot, stop, start, termination.

Every step can be repeated: the next start of the server continues a killed job from the state of the row.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.compute import attachments, machine_gpus, preemptible
from gpucluster.localcloud.compute.addresses import engine_network
from gpucluster.localcloud.compute.custom_images import USES, remove_unused
from gpucluster.localcloud.compute.image_catalogue import BASE_USER
from gpucluster.localcloud.compute.launching import boot_rows
from gpucluster.localcloud.engine.link_local import METADATA_ADDRESS
from gpucluster.localcloud.engine.protocol import Engine, LaunchRequest, RunState
from gpucluster.localcloud.state.cloud import CloudState, launch_facts, log
from gpucluster.localcloud.state.faults import Effect
from gpucluster.localcloud.state.lifecycle_states import LifecycleState, WorkAction
from gpucluster.localcloud.state.region import SERVICE_HOSTS
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import ApiError
from gpucluster.oci.states import ENDING

# action -> the required state, the state during the action, what the engine does (docs: InstanceAction)
ACTIONS: dict[str, tuple[LifecycleState, LifecycleState, Callable[[Engine, str], None]]] = {}


def _restart(engine: Engine, name: str) -> None:
    engine.stop(name)
    engine.start(name)


ACTIONS.update(
    STOP=(LifecycleState.RUNNING, LifecycleState.STOPPING, lambda engine, name: engine.stop(name)),
    SOFTSTOP=(LifecycleState.RUNNING, LifecycleState.STOPPING, lambda engine, name: engine.stop(name)),
    START=(LifecycleState.STOPPED, LifecycleState.STARTING, lambda engine, name: engine.start(name)),
    RESET=(LifecycleState.RUNNING, LifecycleState.STARTING, _restart),
    SOFTRESET=(LifecycleState.RUNNING, LifecycleState.STARTING, _restart),
)


@dataclass(frozen=True)
class _Parts:
    """Rows that are created and removed with an instance, and their states when it runs and when it is gone."""

    kind: str
    member: str
    running: LifecycleState
    gone: LifecycleState


_PARTS = (
    _Parts("vnic", "vnic", LifecycleState.AVAILABLE, LifecycleState.TERMINATED),
    _Parts("vnicattachment", "vnic_attachment", LifecycleState.ATTACHED, LifecycleState.DETACHED),
    _Parts("bootvolumeattachment", "boot_volume_attachment", LifecycleState.ATTACHED, LifecycleState.DETACHED),
    _Parts("bootvolume", "boot_volume", LifecycleState.AVAILABLE, LifecycleState.TERMINATED),
)


def start_launch(cloud: CloudState, ocid: str) -> Future[None]:
    """Boot a PROVISIONING instance in the background; the future is done when it runs or has failed."""
    instance = cloud.get("instance", ocid)
    try:
        effect = cloud.faults.boot(launch_facts(cloud, instance.body))
    except ApiError as error:
        effect = Effect(error=error)
    delay = effect.delay
    try:
        delay += cloud.engine.boot_seconds()
    except GpuClusterError as error:
        log.error("%s", error)  # the launch fails with the same error
    return cloud.submit(f"launch {ocid}", lambda: launch(cloud, ocid, effect), delay, effect)


def launch(cloud: CloudState, ocid: str, effect: Effect) -> bool:
    """Boot a PROVISIONING instance. True if it runs; False if the boot failed and it is TERMINATED."""
    with cloud.locked(ocid):
        instance = cloud.get("instance", ocid)
        if instance.state != LifecycleState.PROVISIONING:
            return instance.state == LifecycleState.RUNNING
        try:
            if effect.error is not None:
                raise effect.error
            if not effect.dead:
                cloud.engine.launch(_request(cloud, instance))
        except Exception as error:
            # Of any kind: it terminates this instance and no other; OCI reports a late failure in the same way.
            known = isinstance(error, (GpuClusterError, ApiError))
            log.error("launch of %s (%s) failed: %s", instance.body["displayName"], ocid, error, exc_info=not known)
            with cloud.store.transaction():
                cloud.end_work(instance.hidden["work_request"], errors=_errors_of(error))
                cloud.set_state("instance", ocid, LifecycleState.TERMINATING)
            finish_termination(cloud, ocid)
            return False
        # Before anyone sees it RUNNING, who may then remove the fault.
        taken_back = _reclaim(cloud, instance)
        with cloud.store.transaction():
            fresh = cloud.get("instance", ocid)
            if fresh.state == LifecycleState.PROVISIONING:
                fresh.hidden["dead"] = effect.dead
                cloud.store.save(fresh)
                cloud.set_state("instance", ocid, LifecycleState.RUNNING)
                for part in _PARTS:
                    cloud.set_state(part.kind, instance.hidden[part.member], part.running)
            cloud.end_work(instance.hidden["work_request"], action=WorkAction.CREATED)
    if taken_back is not None:
        _reclaim_later(cloud, ocid, taken_back)
    return True


def _errors_of(error: Exception) -> tuple[tuple[str, str], ...]:
    """The errors of a work request that ends with an exception: (code, message)."""
    return ((error.code, error.message) if isinstance(error, ApiError) else ("InternalError", str(error)),)


def _reclaim(cloud: CloudState, instance: Resource) -> Effect | None:
    """When the capacity of an instance is taken back; None if it is not."""
    if not preemptible.is_preemptible(instance):
        return None
    try:
        return cloud.faults.reclaim(launch_facts(cloud, instance.body))
    except ApiError as error:
        log.error("%s", error)
        return None


def _reclaim_later(cloud: CloudState, ocid: str, effect: Effect) -> None:
    """End a preemptible instance by itself."""

    def reclaim() -> None:
        with cloud.store.transaction():
            instance = cloud.get("instance", ocid)
            if instance.state in ENDING:
                return
            mark_terminating(cloud, instance)
        log.info("the capacity of %s is taken back", ocid)
        start_termination(cloud, ocid)

    cloud.submit(f"reclaim {ocid}", reclaim, effect.delay, effect)


def _request(cloud: CloudState, instance: Resource) -> LaunchRequest:
    hidden, metadata = instance.hidden, instance.body["metadata"]
    keys = str(metadata.get("ssh_authorized_keys", "")).splitlines()
    network, gateway = engine_network(cloud.get("vcn", hidden["vcn"]), hidden["ip"])
    return LaunchRequest(
        name=hidden["name"],
        hostname=hidden["hostname"],
        image=hidden["engine_image"],
        network=network,
        ip=hidden["ip"],
        user_data=base64.b64decode(metadata["user_data"]) if metadata.get("user_data") else None,
        metadata=metadata,
        ssh_authorized_keys=tuple(key.strip() for key in keys if key.strip()),
        labels=cloud.labels(instance.id),
        exports_dir=cloud.exports_dir(hidden["vcn"]),
        login_user=hidden.get("login_user", ""),
        domain=_domain(cloud, instance),
        name_server=METADATA_ADDRESS,
        hosts={gateway: SERVICE_HOSTS},
        trusted_ca=cloud.home / "credentials" / "ca.pem",
        folders=cloud.node_folders(),
        devices=tuple(hidden.get(machine_gpus.MEMBER, ())),
    )


def _domain(cloud: CloudState, instance: Resource) -> str:
    """The domain of the instance's subnet; empty where it or its VCN has no DNS label."""
    subnet = cloud.get("subnet", cloud.get("vnic", instance.hidden["vnic"]).body["subnetId"])
    return str(subnet.body.get("subnetDomainName") or "")


def mark_terminating(cloud: CloudState, instance: Resource, *, preserve_boot_volume: bool = False) -> str:
    """Set an instance to TERMINATING, in the caller's transaction. Returns the id of the work request."""
    instance.hidden["preserve_boot_volume"] = preserve_boot_volume
    instance.hidden["end_work_request"] = cloud.begin_work("TerminateInstance", "instance", instance)
    cloud.store.save(instance)
    cloud.set_state("instance", instance.id, LifecycleState.TERMINATING)
    return str(instance.hidden["end_work_request"])


def start_termination(cloud: CloudState, ocid: str) -> Future[None]:
    """Finish the termination of a TERMINATING instance on a worker."""
    instance = cloud.get("instance", ocid)
    try:
        effect = cloud.faults.end(launch_facts(cloud, instance.body))
    except ApiError as error:
        log.error("%s", error)
        effect = Effect()
    return cloud.submit(f"terminate {ocid}", lambda: terminate(cloud, ocid), effect.delay, effect)


def terminate(cloud: CloudState, ocid: str) -> None:
    """Finish the termination of an instance, if it is TERMINATING."""
    with cloud.locked(ocid):
        if cloud.get("instance", ocid).state == LifecycleState.TERMINATING:
            finish_termination(cloud, ocid)


def finish_termination(cloud: CloudState, ocid: str) -> None:
    """Remove the container, addresses and attachments of an instance, and set it to TERMINATED.

    If the engine can't remove the container, the instance stays TERMINATING: another DELETE, or the next start of the
    server, tries again.
    """
    instance = cloud.get("instance", ocid)
    cloud.engine.terminate(instance.hidden["name"])
    attachments.release(cloud, ocid)
    keep = instance.hidden.get("preserve_boot_volume", False)
    with cloud.locked(USES):
        remove_unused(cloud, without=ocid)
        _record_termination(cloud, instance, keep=keep)


def _record_termination(cloud: CloudState, instance: Resource, *, keep: bool) -> None:
    """Set an instance and all that goes with it to gone. `keep` the boot volume."""
    ocid = instance.id
    with cloud.store.transaction():
        for part in _PARTS:
            kept = part.kind == "bootvolume" and keep
            cloud.set_state(part.kind, instance.hidden[part.member], part.running if kept else part.gone, gone=not kept)
        for kind, member in (("privateip", "private_ip"), ("publicip", "public_ip_id")):
            row = cloud.store.get(kind, instance.hidden.get(member, ""))
            if row is not None:
                row.gone_at = time.time()
                cloud.store.save(row)
        for row in cloud.store.find("privateip", vnicId=instance.hidden["vnic"]):
            # The secondary addresses that the VNIC has now.
            row.gone_at = time.time()
            cloud.store.save(row)
        cloud.store.release_addresses(ocid)
        cloud.set_state("instance", ocid, LifecycleState.TERMINATED, gone=True)
        cloud.end_work(instance.hidden["work_request"], errors=(("Terminated", "The instance was terminated"),))
        cloud.end_work(instance.hidden.get("end_work_request", ""), action=WorkAction.DELETED)
        if instance.hidden["pool"]:
            # With the row of the instance: a pool that lacks a member is not seen as RUNNING.
            cloud.member_lost(instance.hidden["pool"])


def run_action(cloud: CloudState, ocid: str, work_request: str) -> None:
    """Run the power action that the row names."""
    with cloud.locked(ocid):
        instance = cloud.get("instance", ocid)
        action = instance.hidden.get("action")
        if action is None or instance.state != ACTIONS[action][1]:
            return
        errors: tuple[tuple[str, str], ...] = ()
        try:
            ACTIONS[action][2](cloud.engine, instance.hidden["name"])
            if instance.state == LifecycleState.STARTING:
                attachments.restore(cloud, ocid)
        except GpuClusterError as error:
            errors = (("InternalError", str(error)),)
            log.error("%s of %s failed: %s", action, ocid, error)
        sync_state(cloud, ocid, work_request=work_request, errors=errors)


def begin_action(cloud: CloudState, instance: Resource, action: str, operation: str) -> tuple[Resource, str]:
    """Note a power action and its work request in the row, in the caller's transaction."""
    instance.hidden["action"] = action
    cloud.store.save(instance)
    work_request = cloud.begin_work(operation, "instance", instance)
    return cloud.set_state("instance", instance.id, ACTIONS[action][1]), work_request


# What an instance has of its boot volume: it gets the old values again if a replacement fails.
_OF_BOOT_VOLUME = ("image", "engine_image", "login_user", "boot_volume", "boot_volume_attachment")


def change_boot_volume(cloud: CloudState, instance: Resource, image: Resource, *, preserve: bool) -> str:
    """Give an instance a boot volume made from another image, in the caller's transaction. Returns the work request.

    `start_replacement` boots it. The instance stops, and returns to the state that it had; it keeps its OCID, its
    addresses and its metadata. What was on the disk is gone, unless the old volume is preserved (docs: Replacing a Boot
    Volume).

    Args:
        preserve: keep the old volume.
    """
    old = {name: instance.hidden.get(name, "") for name in _OF_BOOT_VOLUME}
    source: Json = instance.body["sourceDetails"]
    instance.hidden["replacing"] = {"old": old, "source": source, "preserve": preserve, "state": instance.state}
    instance.body |= {"imageId": image.id, "image": image.id, "sourceDetails": {**source, "imageId": image.id}}
    instance.hidden |= boot_rows(cloud, instance, {}, image)
    instance.hidden |= {
        "image": image.id,
        "engine_image": image.hidden["engine_image"],
        "login_user": image.hidden.get("login_user", BASE_USER),
    }
    work_request = cloud.begin_work("UpdateInstance", "instance", instance)
    instance.hidden["replacement_work_request"] = work_request
    cloud.store.save(instance)
    if instance.state == LifecycleState.RUNNING:
        cloud.set_state("instance", instance.id, LifecycleState.STOPPING)
    return work_request


def start_replacement(cloud: CloudState, ocid: str) -> None:
    """Boot an instance from its new boot volume, in the background."""
    try:
        effect = cloud.faults.replace_boot_volume(launch_facts(cloud, cloud.get("instance", ocid).body))
    except ApiError as error:
        effect = Effect(error=error)
    cloud.submit(f"boot volume of {ocid}", lambda: _replace(cloud, ocid, effect), effect.delay, effect)


def _replace(cloud: CloudState, ocid: str, effect: Effect) -> None:
    with cloud.locked(ocid):
        instance = cloud.get("instance", ocid)
        if not instance.hidden.get("replacing") or instance.state == LifecycleState.TERMINATING:
            return
        stopped = instance.hidden["replacing"]["state"] == LifecycleState.STOPPED
        errors: tuple[tuple[str, str], ...] = ()
        work_request = instance.hidden.get("replacement_work_request", "")
        try:
            cloud.engine.terminate(instance.hidden["name"])
            if not stopped:
                cloud.set_state("instance", ocid, LifecycleState.STARTING)
            if effect.error is not None:
                raise effect.error
            if not effect.dead:
                cloud.engine.launch(_request(cloud, instance))
                attachments.restore(cloud, ocid)
        except (GpuClusterError, ApiError) as error:
            log.error("the boot volume of %s can't be replaced: %s", ocid, error)
            errors = _errors_of(error)
            _roll_back(cloud, ocid)
        else:
            _end_replacement(cloud, ocid, dead=effect.dead)
        if stopped:
            cloud.engine.stop(instance.hidden["name"])
        sync_state(cloud, ocid, work_request=work_request, errors=errors)


def _end_replacement(cloud: CloudState, ocid: str, *, dead: bool) -> None:
    """The new volume is attached, and the old one is detached; it is gone unless it is preserved."""
    with cloud.store.transaction():
        fresh = cloud.get("instance", ocid)
        replacing: Json = fresh.hidden.pop("replacing")
        fresh.hidden.pop("replacement_work_request", None)
        fresh.hidden["dead"] = dead
        cloud.store.save(fresh)
        for part in _PARTS:
            if part.kind.startswith("bootvolume"):
                kept = part.kind == "bootvolume" and replacing["preserve"]
                cloud.set_state(
                    part.kind, replacing["old"][part.member], part.running if kept else part.gone, gone=not kept
                )
                cloud.set_state(part.kind, fresh.hidden[part.member], part.running)


def _roll_back(cloud: CloudState, ocid: str) -> None:
    """Boot an instance from its old volume, and delete the new one, as OCI tries to (docs: Rollback for Boot Volume
    Replacement)."""
    with cloud.store.transaction():
        fresh = cloud.get("instance", ocid)
        replacing: Json = fresh.hidden.pop("replacing")
        fresh.hidden.pop("replacement_work_request", None)
        new = {member: fresh.hidden[member] for member in ("boot_volume", "boot_volume_attachment")}
        fresh.hidden |= replacing["old"]
        image = replacing["old"]["image"]
        fresh.body |= {"imageId": image, "image": image, "sourceDetails": replacing["source"]}
        cloud.store.save(fresh)
        for part in _PARTS:
            if part.kind.startswith("bootvolume"):
                cloud.set_state(part.kind, new[part.member], part.gone, gone=True)
    try:
        cloud.engine.launch(_request(cloud, cloud.get("instance", ocid)))
        attachments.restore(cloud, ocid)
    except GpuClusterError as error:
        log.error("%s does not boot from its old boot volume either: %s", ocid, error)


def start_stopped(cloud: CloudState, ocid: str) -> None:
    """Start the container of an instance that should run, and bring its row up to date. The caller holds its lock."""
    before = cloud.get("instance", ocid)
    try:
        cloud.engine.start(before.hidden["name"])
        attachments.restore(cloud, ocid)
    except GpuClusterError as error:
        log.error("can't start %s: %s", ocid, error)
    sync_state(cloud, ocid, before=before)


def sync_state(
    cloud: CloudState,
    ocid: str,
    *,
    by_itself: bool = False,
    before: Resource | None = None,
    work_request: str = "",
    errors: tuple[tuple[str, str], ...] = (),
) -> None:
    """Set the row of an instance to the state of its container: RUNNING, STOPPED, or TERMINATED if there is none.

    Args:
        by_itself: no caller has asked the API for a change of state. The next start of the server boots such an
            instance if it is stopped: a restart of this machine stops the containers, too.
        before: the row as a caller that no request has asked has found it. A request that has come since is left alone:
            its own work shows how it ends.
        work_request: ends with the change, and with these errors: who waits for it then finds the state, too.
    """
    instance = cloud.get("instance", ocid)
    container_state = cloud.engine.state(instance.hidden["name"])
    if container_state == RunState.ABSENT and instance.hidden.get("dead"):
        container_state = RunState.RUNNING  # a dead instance looks like a running one
    if container_state == RunState.ABSENT:
        log.error("the container of %s (%s) is gone", instance.body["displayName"], ocid)
        with cloud.store.transaction():
            cloud.end_work(work_request, action=WorkAction.UPDATED, errors=errors)
            cloud.set_state("instance", ocid, LifecycleState.TERMINATING)
        finish_termination(cloud, ocid)
        return
    with cloud.store.transaction():
        cloud.end_work(work_request, action=WorkAction.UPDATED, errors=errors)
        fresh = cloud.get("instance", ocid)
        if fresh.state == LifecycleState.TERMINATING:
            return
        if before is not None and _asked(fresh) != _asked(before):
            return
        fresh.hidden.pop("action", None)
        # A request may have stopped it since the caller has looked at the containers.
        by_request = fresh.state == LifecycleState.STOPPED and not fresh.hidden.get("stopped_by_itself")
        fresh.hidden["stopped_by_itself"] = by_itself and container_state == RunState.STOPPED and not by_request
        cloud.store.save(fresh)
        cloud.set_state(
            "instance", ocid, LifecycleState.RUNNING if container_state == RunState.RUNNING else LifecycleState.STOPPED
        )


def _asked(instance: Resource) -> tuple[str, object, object]:
    """What changes where a request asks for another state."""
    return instance.state, instance.hidden.get("action"), instance.hidden.get("replacing")
