"""Block volumes and their attachments: a volume is a sparse file of this machine (`engine/volumes`).

Attachments are paravirtualized, for writing, and to one instance at a time. OCI has others, too: iSCSI, read-only and
shareable ones are refused here.

Sources: SDK models Volume, CreateVolumeDetails, ParavirtualizedVolumeAttachment; "Creating a Volume" for the sizes. The
refusals, as users have reported them: a second attachment oracle/yo#12 and oracle/terraform-provider-oci#547 (409), an
invalid device oracle/oci-cloud-controller-manager#492 (400 InvalidParameter). Not verified: the code and the text of
the refusal for another availability domain, and for the deletion of an attached volume.
"""

from __future__ import annotations

import os
from functools import partial

from gpucluster.localcloud.api import kinds
from gpucluster.localcloud.api.kinds import ResourceKind
from gpucluster.localcloud.compute import attachments
from gpucluster.localcloud.compute.attachments import KIND, file_of
from gpucluster.localcloud.engine.volumes import DEVICES
from gpucluster.localcloud.state.cloud import CloudState, created
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import (
    CORE,
    ApiRoute,
    Call,
    Reply,
    check_etag,
    conflict,
    incorrect_state,
    invalid,
    page,
    required,
    show,
)

_MIN_GB, _MAX_GB, _DEFAULT_GB = 50, 32768, 1024
_VPUS = range(0, 121, 10)
_GB = 1 << 30
_USABLE = (LifecycleState.RUNNING, LifecycleState.STOPPED)


def _check_values(body: Json) -> None:
    size, vpus = int(body["sizeInGBs"]), int(body["vpusPerGB"])
    if not _MIN_GB <= size <= _MAX_GB:
        raise invalid(f"sizeInGBs {size} must be between {_MIN_GB} and {_MAX_GB}")
    if vpus not in _VPUS:
        raise invalid(f"vpusPerGB {vpus} must be 0, 10, 20 and so on up to 120")


def _prepare(_cloud: CloudState, body: Json) -> Json:
    _check_values(body)
    size = int(body["sizeInGBs"])
    return {**body, "sizeInGBs": size, "sizeInMBs": size * 1024, "isHydrated": True, "autotunePolicies": []}


def _resize(cloud: CloudState, volume: Resource) -> None:
    """Make the file, or make it larger."""
    file = file_of(cloud, volume.id)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.truncate(descriptor, int(volume.body["sizeInGBs"]) * _GB)
    finally:
        os.close(descriptor)


def _check_update(_cloud: CloudState, volume: Resource, changes: Json) -> Json:
    changes = attachments.resized(volume, changes)
    _check_values({**volume.body, **changes})
    return changes


def _not_attached(cloud: CloudState, volume: Resource) -> None:
    for attachment in cloud.store.find(KIND, volumeId=volume.id):
        raise conflict(f"Volume {volume.id} is attached to {attachment.body['instanceId']}")


def _remove_file(cloud: CloudState, volume: Resource) -> None:
    file_of(cloud, volume.id).unlink(missing_ok=True)


VOLUME = ResourceKind(
    "volume", f"{CORE}/volumes", "Volume", "Volumes", "volumeId",
    required=("compartmentId", "availabilityDomain"),
    fields=("availabilityDomain", "sizeInGBs", "vpusPerGB", "isAutoTuneEnabled"),
    defaults={"sizeInGBs": _DEFAULT_GB, "vpusPerGB": 10, "isAutoTuneEnabled": False},
    updatable=("sizeInGBs", "vpusPerGB", "isAutoTuneEnabled"),
    filters=("compartmentId", "availabilityDomain", "displayName", "lifecycleState"),
    initial=LifecycleState.PROVISIONING, zoned=True, need_compartment=False,
    prepare=_prepare, create_backing=_resize, check_update=_check_update, update_backing=_resize,
    check_delete=_not_attached, remove_backing=_remove_file,
)  # fmt: skip


def _attach(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    attachment, _, new = cloud.create_once(call, lambda: (_register(cloud, body), ""))
    if new:
        cloud.submit(f"attach {attachment.id}", partial(attachments.finish, cloud, attachment.id))
    return created(attachment)


def _register(cloud: CloudState, body: Json) -> Resource:
    """Check an attachment and write its row, in the caller's transaction."""
    required(body, "type", "instanceId", "volumeId")
    if body["type"] != "paravirtualized" or body.get("isReadOnly") or body.get("isShareable"):
        raise invalid("The local cloud has paravirtualized attachments for one writer only")
    instance, volume = cloud.related("instance", body["instanceId"]), cloud.related("volume", body["volumeId"])
    if instance.state not in _USABLE:
        raise incorrect_state(f"Instance {instance.id} is {instance.state}; a volume can't be attached to it now")
    if instance.body["availabilityDomain"] != volume.body["availabilityDomain"]:
        raise invalid(f"Volume {volume.id} and instance {instance.id} are in different availability domains")
    for _ in cloud.store.find(KIND, volumeId=volume.id):
        raise conflict(
            f"Volume {volume.id} cannot be attached, because one of the volume attachments is not configured as "
            "shareable. To attach a volume to more than one instance, all volume attachments must be configured as "
            "shareable."
        )
    taken = [each.body["device"] for each in attachments.of_instance(cloud, instance.id)]
    free = [device for device in DEVICES if device not in taken]
    device = body.get("device") or next(iter(free), None)
    if device not in free:
        raise invalid(
            f"The volume cannot be attached to the instance {instance.id} because the specified device attribute "
            f"{device} is invalid."
        )
    return cloud.new(
        KIND,
        {
            "attachmentType": "paravirtualized",
            "availabilityDomain": instance.body["availabilityDomain"],
            "compartmentId": instance.body["compartmentId"],
            **({"displayName": body["displayName"]} if body.get("displayName") else {}),
            "device": device,
            "instanceId": instance.id,
            "volumeId": volume.id,
            "isReadOnly": False,
            "isShareable": False,
            "isPvEncryptionInTransitEnabled": bool(body.get("isPvEncryptionInTransitEnabled", False)),
            "isMultipath": False,
            "isVolumeCreatedDuringLaunch": False,
            "lifecycleState": LifecycleState.ATTACHING,
        },
    )


def _detach(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        attachment = cloud.live(KIND, call.path["volumeAttachmentId"])
        check_etag(call, attachment)
        if attachment.state == LifecycleState.ATTACHING:
            raise incorrect_state(f"Volume attachment {attachment.id} is {attachment.state}")
        cloud.set_state(KIND, attachment.id, LifecycleState.DETACHING)
    cloud.submit(f"detach {attachment.id}", partial(attachments.finish, cloud, attachment.id))
    return Reply(status=204)


def _list(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    names = ("compartmentId", "availabilityDomain", "instanceId", "volumeId")
    exact = {name: call.query[name] for name in names if call.query.get(name)}
    # Detached attachments stay in the list for a while, as those of boot volumes do.
    return page(cloud.store.find(KIND, gone=None, **exact), call)


def recover(cloud: CloudState) -> None:
    """Continue what was interrupted."""
    for state in (LifecycleState.ATTACHING, LifecycleState.DETACHING):
        for attachment in cloud.store.find(KIND, lifecycleState=state):
            cloud.submit(f"{state} {attachment.id}", partial(attachments.finish, cloud, attachment.id))


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Volumes and their attachments."""
    collection = f"{CORE}/volumeAttachments"
    one = f"{collection}/{{volumeAttachmentId}}"
    return [
        *kinds.routes(cloud, VOLUME),
        ApiRoute("POST", collection, "AttachVolume", partial(_attach, cloud)),
        ApiRoute("GET", collection, "ListVolumeAttachments", partial(_list, cloud)),
        ApiRoute(
            "GET", one, "GetVolumeAttachment", lambda call: show(cloud.get(KIND, call.path["volumeAttachmentId"]))
        ),
        ApiRoute("DELETE", one, "DetachVolume", partial(_detach, cloud)),
    ]
