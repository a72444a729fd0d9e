"""Instances: launch, show, change, power actions, terminate."""

from __future__ import annotations

import time
from functools import partial

from gpucluster.localcloud.api.kinds import TAGS
from gpucluster.localcloud.compute import lifecycle, machine_gpus, preemptible
from gpucluster.localcloud.compute.launch_images import choose_image
from gpucluster.localcloud.compute.launching import register
from gpucluster.localcloud.compute.shape_config import shape_config
from gpucluster.localcloud.state.cloud import CloudState, created
from gpucluster.localcloud.state.lifecycle_states import LifecycleState, WorkAction
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.tag_namespaces import check_namespaces
from gpucluster.localcloud.state.wire import (
    CORE,
    ApiRoute,
    Call,
    Reply,
    check_etag,
    filtered,
    incorrect_state,
    invalid,
    newest_first,
    newest_page,
    not_found,
    page,
    show,
)

_UPDATABLE = (
    *TAGS, "metadata", "extendedMetadata", "agentConfig", "instanceOptions", "launchOptions", "availabilityConfig",
    "faultDomain", "platformConfig", "securityAttributes", "capacityReservationId", "timeMaintenanceRebootDue",
)  # fmt: skip
_MERGED = ("agentConfig", "instanceOptions", "launchOptions", "availabilityConfig", "platformConfig")
# cloud-init reads these once, at the first boot; OCI refuses to change them (docs: UpdateInstanceDetails.metadata).
_FIXED_METADATA = ("ssh_authorized_keys", "user_data")
_FILTERS = ("compartmentId", "availabilityDomain", "displayName", "lifecycleState", "capacityReservationId")


def launch_once(cloud: CloudState, call: Call, details: Json, compute_cluster: str = "") -> Reply:
    """Register a launch once per retry token and start it."""
    instance, work_request, new = cloud.create_once(
        call, lambda: register(cloud, details, compute_cluster=compute_cluster)
    )
    if new:
        lifecycle.start_launch(cloud, instance.id)
    return created(instance, work_request)


def _launch(cloud: CloudState, call: Call) -> Reply:
    return launch_once(cloud, call, call.body(), call.headers.get("opc-compute-cluster-id", ""))


def _list(cloud: CloudState, call: Call) -> Reply:
    compartment = cloud.compartment(call.need("compartmentId"), in_body=False)
    # Terminated instances stay in the list for half a day, as on OCI.
    if newest_first(call) and not call.stale_seconds:
        fields = {name: call.query[name] for name in _FILTERS if call.query.get(name)}
        of_cluster = call.query.get("computeClusterId")
        hidden = {"compute_cluster": of_cluster} if of_cluster else {}
        return newest_page(
            call, lambda before, limit: cloud.store.newest("instance", fields, hidden, before=before, limit=limit)
        )
    rows = cloud.store.find("instance", gone=None, compartmentId=compartment)
    if call.stale_seconds:
        rows = as_of(rows, time.time() - call.stale_seconds)
    cluster = call.query.get("computeClusterId")
    if cluster:
        rows = [row for row in rows if row.hidden["compute_cluster"] == cluster]
    return page(filtered(rows, call, _FILTERS), call)


def as_of(rows: list[Resource], when: float) -> list[Resource]:
    """The instances that existed at that time, with the states of that time."""
    existing = []
    for row in rows:
        states = [state for since, state in row.hidden.get("states", []) if since <= when]
        if states:
            row.body["lifecycleState"] = states[-1]
            existing.append(row)
    return existing


def _details(cloud: CloudState, call: Call) -> Json:
    """The body of the instance that the path names, for faults."""
    row = cloud.store.get("instance", call.path["instanceId"])
    return row.body if row else {}


def _details_of_update(cloud: CloudState, call: Call) -> Json:
    """The same, with the image that the request asks for."""
    source: Json = call.body().get("sourceDetails") or {}
    now = _details(cloud, call)
    return {**now, "sourceDetails": {**(now.get("sourceDetails") or {}), **source}}


def _get(cloud: CloudState, call: Call) -> Reply:
    return show(cloud.get("instance", call.path["instanceId"]))


def _update(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    reboots, replaces = False, False
    with cloud.store.transaction():
        instance = cloud.live("instance", call.path["instanceId"])
        check_etag(call, instance)
        preemptible.check_update(instance, body)
        if "definedTags" in body:
            check_namespaces(cloud, body["definedTags"], instance.body.get("definedTags"))
        if "metadata" in body:
            _check_metadata(instance, body["metadata"])
        for name in _UPDATABLE:
            if name in body:
                merged = {**(instance.body.get(name) or {}), **body[name]} if name in _MERGED else body[name]
                instance.body[name] = merged
        if "shape" in body or "shapeConfig" in body:
            before = (instance.body["shape"], instance.body["shapeConfig"])
            shape = str(body.get("shape", instance.body["shape"]))
            config = shape_config(shape, body.get("shapeConfig") or instance.body["shapeConfig"])
            machine_gpus.check_shape(instance, shape)
            instance.body["shape"] = shape
            instance.body["shapeConfig"] = machine_gpus.describe(config, instance.hidden.get(machine_gpus.MEMBER, ()))
            # A running instance is rebooted (docs: UpdateInstanceDetails.shape, shapeConfig).
            reboots = instance.state == LifecycleState.RUNNING and before != (shape, instance.body["shapeConfig"])
        cloud.store.save(instance)
        source: Json = body.get("sourceDetails") or {}
        replaces = source.get("imageId") not in (None, instance.body["imageId"])
        if replaces:
            work_request = _change_image(cloud, instance, source, str(body.get("updateOperationConstraint") or ""))
        elif reboots:
            instance, work_request = lifecycle.begin_action(cloud, instance, "SOFTRESET", "UpdateInstance")
        else:
            # Clients wait for the work request of any update that may need one: without its id, oracle/oci crashes.
            work_request = cloud.begin_work("UpdateInstance", "instance", instance)
    if replaces:
        lifecycle.start_replacement(cloud, instance.id)
    elif reboots:
        cloud.submit(f"reboot {instance.id}", lambda: lifecycle.run_action(cloud, instance.id, work_request))
    else:
        cloud.end_work(work_request, action=WorkAction.UPDATED)
    return show(cloud.get("instance", instance.id), {"opc-work-request-id": work_request})


def _change_image(cloud: CloudState, instance: Resource, source: Json, constraint: str) -> str:
    """Begin the replacement of the boot volume. Returns the work request.

    Virtual machines and bare metal can get one; another distribution and images of the marketplace are refused (docs:
    Replacing a Boot Volume). OCI documents no codes for these refusals: those of other invalid parameters are used.
    """
    if instance.state not in (LifecycleState.RUNNING, LifecycleState.STOPPED) or instance.hidden.get("replacing"):
        raise incorrect_state(f"Instance {instance.id} is {instance.state}; its boot volume can't be replaced now")
    if constraint == "AVOID_DOWNTIME" and instance.state == LifecycleState.RUNNING:
        raise incorrect_state(f"Instance {instance.id} must stop to get another boot volume (AVOID_DOWNTIME)")
    image = choose_image(cloud, {**instance.body, "sourceDetails": source})
    if image.hidden.get("listing"):
        raise invalid(f"Image {image.id} is of the marketplace; a boot volume can't be replaced with it")
    before = cloud.store.get("image", instance.hidden["image"])
    if before is not None and before.body["operatingSystem"] != image.body["operatingSystem"]:
        raise invalid(
            f"Image {image.id} has {image.body['operatingSystem']}, and the boot volume of instance {instance.id} has "
            f"{before.body['operatingSystem']}; it can be replaced with the same distribution only"
        )
    preserve = bool(source.get("isPreserveBootVolumeEnabled", False))
    return lifecycle.change_boot_volume(cloud, instance, image, preserve=preserve)


def _check_metadata(instance: Resource, metadata: Json) -> None:
    now: Json = instance.body["metadata"]
    for name in _FIXED_METADATA:
        if metadata.get(name) != now.get(name):
            raise invalid(f"metadata.{name} can't be changed after the launch")


def _terminate(cloud: CloudState, call: Call) -> Reply:
    keep = call.query.get("preserveBootVolume", "false").lower() == "true"
    with cloud.store.transaction():
        instance = cloud.live("instance", call.path["instanceId"])
        check_etag(call, instance)
        # A repeated request is accepted, and tries again if the engine failed the first time.
        if instance.state == LifecycleState.TERMINATING:
            work_request = str(instance.hidden.get("end_work_request", ""))
        else:
            work_request = lifecycle.mark_terminating(cloud, instance, preserve_boot_volume=keep)
    lifecycle.start_termination(cloud, instance.id)
    return Reply(status=204, headers={"opc-work-request-id": work_request} if work_request else {})


def _action(cloud: CloudState, call: Call) -> Reply:
    action = call.need("action").upper()
    if action not in lifecycle.ACTIONS:
        raise invalid(f"action {action} is not one of {', '.join(lifecycle.ACTIONS)}")
    required_state, transition, _ = lifecycle.ACTIONS[action]
    with cloud.store.transaction():
        instance = cloud.live("instance", call.path["instanceId"])
        check_etag(call, instance)
        preemptible.check_action(instance, action)
        if instance.state == transition:
            return show(instance)
        if instance.hidden.get("replacing"):
            # One that is stopped stays STOPPED meanwhile; the end of the replacement would set that state again.
            raise incorrect_state(f"The boot volume of instance {instance.id} is being replaced; {action} has to wait")
        if instance.state != required_state:
            raise incorrect_state(f"Instance {instance.id} is {instance.state}; {action} needs {required_state}")
        instance, work_request = lifecycle.begin_action(cloud, instance, action, "InstanceAction")
    cloud.submit(f"{action} {instance.id}", lambda: lifecycle.run_action(cloud, instance.id, work_request))
    return show(instance, {"opc-work-request-id": work_request})


def _work_requests(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    rows = cloud.store.find("coreservicesworkrequest", gone=None)
    resource_id = call.query.get("resourceId")
    if resource_id:
        rows = [row for row in rows if any(entry["identifier"] == resource_id for entry in row.body["resources"])]
    return page(rows, call)


def _work_request(cloud: CloudState, call: Call) -> Resource:
    row = cloud.store.get("coreservicesworkrequest", call.path["workRequestId"])
    if row is None:
        raise not_found("work request", call.path["workRequestId"])
    return row


def _work_request_errors(cloud: CloudState, call: Call) -> Reply:
    return Reply(_work_request(cloud, call).hidden["errors"])


def _work_request_logs(cloud: CloudState, call: Call) -> Reply:
    row = _work_request(cloud, call)
    return Reply(
        [{"message": f"{row.body['operationType']} {row.body['status']}", "timestamp": row.body["timeStarted"]}]
    )


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Instances and work requests; both belong to the core services of the API."""
    one, work = f"{CORE}/instances/{{instanceId}}", f"{CORE}/workRequests"
    details = partial(_details, cloud)
    return [
        ApiRoute("POST", f"{CORE}/instances", "LaunchInstance", partial(_launch, cloud), lambda call: call.body()),
        ApiRoute("GET", f"{CORE}/instances", "ListInstances", partial(_list, cloud)),
        ApiRoute("GET", one, "GetInstance", partial(_get, cloud), details),
        ApiRoute("PUT", one, "UpdateInstance", partial(_update, cloud), partial(_details_of_update, cloud)),
        ApiRoute("POST", one, "InstanceAction", partial(_action, cloud), details),
        ApiRoute("DELETE", one, "TerminateInstance", partial(_terminate, cloud), details),
        ApiRoute("GET", work, "ListWorkRequests", partial(_work_requests, cloud)),
        ApiRoute("GET", f"{work}/{{workRequestId}}", "GetWorkRequest", lambda call: show(_work_request(cloud, call))),
        ApiRoute(
            "GET", f"{work}/{{workRequestId}}/errors", "ListWorkRequestErrors", partial(_work_request_errors, cloud)
        ),
        ApiRoute("GET", f"{work}/{{workRequestId}}/logs", "ListWorkRequestLogs", partial(_work_request_logs, cloud)),
    ]
