"""Custom images: commits of an instance's disk, made and removed in the background."""

from __future__ import annotations

from functools import partial

from gpucluster.localcloud.state.cloud import CloudState, launch_facts, log
from gpucluster.localcloud.state.faults import Effect
from gpucluster.localcloud.state.lifecycle_states import LifecycleState, WorkAction
from gpucluster.localcloud.state.store import Resource
from gpucluster.localcloud.state.wire import ApiError

#: Held (`CloudState.locked`) from a look at who uses deleted images until the caller's own change is in its row: two
#: instances that end at the same time would each find the other one, and the image would stay.
USES = "uses of custom images"


def start_commit(cloud: CloudState, image: Resource) -> None:
    """Commit the instance's disk on a worker. A restarted server calls this again."""
    instance = cloud.store.get("instance", image.hidden["instance"])
    try:
        effect = cloud.faults.make_image(launch_facts(cloud, instance.body if instance else {}))
    except ApiError as error:
        log.error("%s", error)
        effect = Effect()
    cloud.submit(f"image {image.id}", partial(commit_disk, cloud, image.id), effect.delay, effect)


def commit_disk(cloud: CloudState, ocid: str) -> None:
    """Commit the instance's disk."""
    image = cloud.get("image", ocid)
    instance = cloud.store.get("instance", image.hidden["instance"])
    try:
        if instance is None or instance.gone_at is not None:
            raise ValueError("the instance of this image is gone")
        with cloud.locked(instance.id):
            cloud.engine.commit(instance.hidden["name"], image.hidden["engine_image"])
    except Exception as error:  # of any kind: the image fails, as the work request reports
        log.exception("image %s failed", ocid)
        with cloud.store.transaction():
            _restore_instance_state(cloud, image)
            cloud.set_state("image", ocid, LifecycleState.DELETED, gone=True)
            cloud.end_work(image.hidden["work_request"], errors=(("InternalError", str(error)),))
        return
    with cloud.store.transaction():
        _restore_instance_state(cloud, image)
        cloud.set_state("image", ocid, LifecycleState.AVAILABLE)
        cloud.end_work(image.hidden["work_request"], action=WorkAction.CREATED)


def _restore_instance_state(cloud: CloudState, image: Resource) -> None:
    """Set the instance to its state before the image was made, unless it was terminated in the meantime."""
    instance = cloud.store.get("instance", image.hidden["instance"])
    if instance is not None and instance.state == LifecycleState.CREATING_IMAGE:
        cloud.set_state("instance", instance.id, LifecycleState(image.hidden["instance_was"]))


def remove_unused(cloud: CloudState, without: str = "") -> None:
    """Remove the disks of deleted custom images that no instance uses.

    OCI allows an image to be deleted while instances of it run; the engine keeps its layers until they are terminated.
    `without` is an instance that was just terminated and does not count, although its row still exists. The caller
    holds the lock `USES`.
    """
    deleted = [row for row in cloud.store.find("image", gone=True) if not row.hidden.get("swept")]
    if not deleted:
        return
    used = {row.hidden["image"] for row in cloud.store.find("instance") if row.id != without}
    for image in deleted:
        if image.hidden.get("platform") or image.id in used:
            continue
        cloud.engine.remove_image(image.hidden["engine_image"])
        image.hidden["swept"] = True
        cloud.store.save(image)
