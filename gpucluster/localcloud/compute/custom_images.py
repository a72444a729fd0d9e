"""Custom images: commits of an instance's disk, made and removed in the background."""

from __future__ import annotations

from functools import partial

from gpucluster.localcloud.state.cloud import CloudState, launch_facts, log
from gpucluster.localcloud.state.store import Resource
from gpucluster.localcloud.state.wire import ApiError


def begin_bake(cloud: CloudState, image: Resource) -> None:
    """Commit the instance's disk on a worker; also taken up again after a restart."""
    instance = cloud.store.get("instance", image.hidden["instance"])
    try:
        delay = cloud.faults.make_image(launch_facts(cloud, instance.body if instance else {})).delay
    except ApiError as error:
        log.error("%s", error)
        delay = 0.0
    cloud.submit(f"image {image.id}", partial(bake, cloud, image.id), delay)


def bake(cloud: CloudState, ocid: str) -> None:
    """Commit the instance's disk."""
    image = cloud.get("image", ocid)
    instance = cloud.store.get("instance", image.hidden["instance"])
    try:
        if instance is None or instance.gone_at is not None:
            raise ValueError("the instance of this image is gone")
        with cloud.alone(instance.id):
            cloud.engine.commit(instance.hidden["name"], image.hidden["engine_image"])
    except Exception as error:
        log.exception("image %s failed", ocid)
        with cloud.store.transaction():
            _release(cloud, image)
            cloud.set_state("image", ocid, "DELETED", gone=True)
            cloud.end_work(image.hidden["work_request"], errors=(("InternalError", str(error)),))
        return
    with cloud.store.transaction():
        _release(cloud, image)
        cloud.set_state("image", ocid, "AVAILABLE")
        cloud.end_work(image.hidden["work_request"], action="CREATED")


def _release(cloud: CloudState, image: Resource) -> None:
    """The instance is what it was before its image was made; unless it has been terminated meanwhile."""
    instance = cloud.store.get("instance", image.hidden["instance"])
    if instance is not None and instance.state == "CREATING_IMAGE":
        cloud.set_state("instance", instance.id, image.hidden["instance_was"])


def sweep(cloud: CloudState, without: str = "") -> None:
    """Remove the disks of deleted custom images that no instance runs from any more.

    OCI lets an image be deleted while instances of it run; the engine keeps its layers until they end. `without` is an
    instance that has just ended, whatever its row says.
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
