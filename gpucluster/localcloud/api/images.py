"""Images: platform images, images of the app catalog, and custom images, which are commits of an instance's disk.

Tags of an image state what it contains, which its name may not show: see image/systems.toml.
"""

from __future__ import annotations

from functools import partial

from gpucluster.localcloud.api import kinds
from gpucluster.localcloud.api.kinds import ResourceKind
from gpucluster.localcloud.compute import image_catalogue
from gpucluster.localcloud.compute.custom_images import USES, remove_unused, start_commit
from gpucluster.localcloud.compute.launch_images import image_body
from gpucluster.localcloud.compute.shape_config import known_shape
from gpucluster.localcloud.state.cloud import CloudState, created
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.names import short
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import (
    CORE,
    ApiRoute,
    Call,
    Reply,
    filtered,
    incorrect_state,
    invalid,
    not_found,
    page,
    required,
)

_FILTERS = ("displayName", "operatingSystem", "operatingSystemVersion", "lifecycleState")

IMAGE = ResourceKind(
    "image", f"{CORE}/images", "Image", "Images", "imageId",
    updatable=("operatingSystem", "operatingSystemVersion"), creatable=False, deletable=False,
)  # fmt: skip


def _list(cloud: CloudState, call: Call) -> Reply:
    compartment = cloud.compartment(call.need("compartmentId"), in_body=False)
    shape = call.query.get("shape")
    visible = [
        row
        for row in image_catalogue.listed(cloud.store.find("image"))
        if row.body["compartmentId"] in (None, compartment) and (not shape or shape in image_catalogue.shapes_of(row))
    ]
    return page(filtered(visible, call, _FILTERS), call)


def _create(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(body, "compartmentId")
    if "instanceId" not in body:
        raise invalid("The local cloud makes images of instances only: instanceId is required")

    def make() -> tuple[Resource, str]:
        cloud.compartment(body["compartmentId"])
        instance = cloud.related("instance", body["instanceId"])
        if instance.state not in (LifecycleState.RUNNING, LifecycleState.STOPPED):
            raise incorrect_state(f"Instance {instance.id} is {instance.state}; it must be RUNNING or STOPPED")
        base = cloud.get("image", instance.hidden["image"])
        full = image_body(
            body.get("displayName") or f"image-of-{instance.body['displayName']}",
            body["compartmentId"],
            base.id,
            base.body["operatingSystem"],
            base.body["operatingSystemVersion"],
        )
        tags: Json = {name: body[name] for name in ("freeformTags", "definedTags") if name in body}
        # A custom image has the shapes and the login user of the image that the instance was launched from.
        hidden: Json = {name: base.hidden[name] for name in ("shapes", "login_user") if name in base.hidden}
        hidden["instance"] = instance.id
        image = cloud.new("image", {**full, **tags, "lifecycleState": LifecycleState.PROVISIONING}, hidden)
        image.hidden["engine_image"] = f"localhost/gpucluster/custom:{short(image.id)}"
        image.hidden["work_request"] = cloud.begin_work("CreateImage", "image", image)
        image.hidden["instance_was"] = instance.state
        cloud.set_state("instance", instance.id, LifecycleState.CREATING_IMAGE)
        cloud.store.save(image)
        return image, image.hidden["work_request"]

    image, work_request, new = cloud.create_once(call, make)
    if new:
        start_commit(cloud, image)
    return created(image, work_request)


def _delete(cloud: CloudState, call: Call) -> Reply:
    image = cloud.live("image", call.path["imageId"])
    if image.hidden.get("platform"):
        raise incorrect_state(f"Image {image.id} is a platform image and can't be deleted")
    if image.state != LifecycleState.AVAILABLE:
        raise incorrect_state(f"Image {image.id} is {image.state}")
    with cloud.locked(USES):
        cloud.set_state("image", image.id, LifecycleState.DELETED, gone=True)
        remove_unused(cloud)
    return Reply(status=204)


def _compatibility(image: str, shape: str) -> Json:
    return {"imageId": image, "shape": shape, "memoryConstraints": None, "ocpuConstraints": None}


def _list_compatibility(cloud: CloudState, call: Call) -> Reply:
    image = cloud.live("image", call.path["imageId"])
    rows = [
        Resource(name, "compatibility", _compatibility(image.id, name), seq=number)
        for number, name in enumerate(image_catalogue.shapes_of(image), start=1)
    ]
    return page(rows, call)


def _get_compatibility(cloud: CloudState, call: Call) -> Reply:
    image, shape = cloud.live("image", call.path["imageId"]), known_shape(call.path["shapeName"]).name
    if shape not in image_catalogue.shapes_of(image):
        raise not_found("compatible shape", shape)
    return Reply(_compatibility(image.id, shape))


def _change_compatibility(cloud: CloudState, add: bool, call: Call) -> Reply:
    shape = known_shape(call.path["shapeName"]).name
    with cloud.store.transaction():
        image = cloud.live("image", call.path["imageId"])
        if image.hidden.get("platform"):
            # Platform images and the images of listings belong to Oracle.
            raise not_found("custom image", image.id)
        others = [name for name in image_catalogue.shapes_of(image) if name != shape]
        if not add and len(others) == len(image_catalogue.shapes_of(image)):
            raise not_found("compatible shape", shape)
        image.hidden["shapes"] = [*others, shape] if add else others
        cloud.store.save(image)
    return Reply(_compatibility(image.id, shape)) if add else Reply(status=204)


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Images and the shapes that run them."""
    generic = [route for route in kinds.routes(cloud, IMAGE) if route.operation != "ListImages"]
    one = f"{CORE}/images/{{imageId}}"
    entry = f"{one}/shapes/{{shapeName}}"
    return [
        *generic,
        ApiRoute("GET", f"{CORE}/images", "ListImages", partial(_list, cloud)),
        ApiRoute("POST", f"{CORE}/images", "CreateImage", partial(_create, cloud)),
        ApiRoute("DELETE", one, "DeleteImage", partial(_delete, cloud)),
        ApiRoute("GET", f"{one}/shapes", "ListImageShapeCompatibilityEntries", partial(_list_compatibility, cloud)),
        ApiRoute("GET", entry, "GetImageShapeCompatibilityEntry", partial(_get_compatibility, cloud)),
        ApiRoute("PUT", entry, "AddImageShapeCompatibilityEntry", partial(_change_compatibility, cloud, True)),
        ApiRoute("DELETE", entry, "RemoveImageShapeCompatibilityEntry", partial(_change_compatibility, cloud, False)),
    ]
