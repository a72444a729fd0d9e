"""Volumes on instances: what an attachment does behind its row, and what becomes of it with its instance.

A volume outlives its instances. Every step can be repeated: the next start of the server continues a killed job.
"""

from __future__ import annotations

from pathlib import Path

from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.state.cloud import CloudState, ensure_private, log
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.names import short
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import invalid

KIND = "volumeattachment"


def file_of(cloud: CloudState, volume_id: str) -> Path:
    """The file of this machine that has the content of a volume."""
    return ensure_private(cloud.home / "volumes") / short(volume_id)


def resized(volume: Resource, changes: Json) -> Json:
    """The changes of a volume or a boot volume with both of its sizes. It can't be made smaller."""
    before = int(volume.body["sizeInGBs"])
    size = int(changes.get("sizeInGBs") or before)
    if size < before:
        raise invalid(f"{volume.id} has {before} GB and can't be made smaller")
    return {**changes, "sizeInGBs": size, "sizeInMBs": size * 1024}


def of_instance(cloud: CloudState, ocid: str) -> list[Resource]:
    """The attachments of an instance that are not detached."""
    return cloud.store.find(KIND, instanceId=ocid)


def finish(cloud: CloudState, ocid: str) -> None:
    """Finish what the row of an attachment has begun: ATTACHING or DETACHING."""
    attachment = cloud.get(KIND, ocid)
    instance = cloud.get("instance", attachment.body["instanceId"])
    with cloud.locked(instance.id):
        attachment = cloud.get(KIND, ocid)
        file = file_of(cloud, attachment.body["volumeId"])
        where = (instance.hidden["name"], attachment.body["device"], file)
        if attachment.state == LifecycleState.ATTACHING:
            try:
                cloud.engine.attach_volume(*where)
            except GpuClusterError as error:
                log.error("volume %s: %s", attachment.body["volumeId"], error)
                cloud.set_state(KIND, ocid, LifecycleState.DETACHED, gone=True)
            else:
                cloud.set_state(KIND, ocid, LifecycleState.ATTACHED)
        elif attachment.state == LifecycleState.DETACHING:
            cloud.engine.detach_volume(*where)
            cloud.set_state(KIND, ocid, LifecycleState.DETACHED, gone=True)


def restore(cloud: CloudState, ocid: str) -> None:
    """Give an instance that was started its volumes again."""
    name = cloud.get("instance", ocid).hidden["name"]
    for attachment in of_instance(cloud, ocid):
        if attachment.state == LifecycleState.ATTACHED:
            try:
                file = file_of(cloud, attachment.body["volumeId"])
                cloud.engine.attach_volume(name, attachment.body["device"], file)
            except GpuClusterError as error:
                log.error("volume %s of %s: %s", attachment.body["volumeId"], ocid, error)


def release(cloud: CloudState, ocid: str) -> None:
    """Detach the volumes of an instance whose container is gone. The volumes stay."""
    name = cloud.get("instance", ocid).hidden["name"]
    for attachment in of_instance(cloud, ocid):
        file = file_of(cloud, attachment.body["volumeId"])
        cloud.engine.detach_volume(name, attachment.body["device"], file)
        cloud.set_state(KIND, attachment.id, LifecycleState.DETACHED, gone=True)
