"""Images: the platform's, those of the app catalog, and custom ones, which are commits of an instance's disk.

Whatever an image is called, Debian 13 boots beneath it: catalogue.py says what there is.
"""

from __future__ import annotations

from functools import partial

from gpucluster.localcloud import catalogue
from gpucluster.localcloud.api import kinds
from gpucluster.localcloud.api.app_catalog import check_subscribed
from gpucluster.localcloud.api.kinds import Kind
from gpucluster.localcloud.api.shapes import known_shape
from gpucluster.localcloud.catalogue import Offer
from gpucluster.localcloud.cloud import Cloud, created, launch_facts, log, short
from gpucluster.localcloud.store import Json, Resource
from gpucluster.localcloud.wire import (
    CORE,
    ApiError,
    Call,
    Reply,
    Route,
    filtered,
    incorrect_state,
    invalid,
    not_found,
    page,
    required,
)

_FILTERS = ("displayName", "operatingSystem", "operatingSystemVersion", "lifecycleState")

IMAGE = Kind(
    "image", f"{CORE}/images", "Image", "Images", "imageId",
    updatable=("operatingSystem", "operatingSystemVersion"), creatable=False, deletable=False,
)  # fmt: skip


def _body(name: str, compartment: str | None, base: str | None, system: str, version: str) -> Json:
    return {
        "displayName": name,
        "compartmentId": compartment,
        "baseImageId": base,
        "operatingSystem": system,
        "operatingSystemVersion": version,
        "createImageAllowed": True,
        "launchMode": "NATIVE",
        "launchOptions": {
            "bootVolumeType": "PARAVIRTUALIZED",
            "firmware": "UEFI_64",
            "networkType": "PARAVIRTUALIZED",
            "remoteDataVolumeType": "PARAVIRTUALIZED",
            "isPvEncryptionInTransitEnabled": False,
            "isConsistentVolumeNamingEnabled": True,
        },
        "agentFeatures": {"isMonitoringSupported": False, "isManagementSupported": False},
        "listingType": None,
        "sizeInMBs": 51200,
        "billableSizeInGBs": 2,
    }


def publish_images(cloud: Cloud) -> None:
    """Have rows for the images of the catalogue.

    A rebuilt base image gives new platform images, as on OCI; the old ones stay. The image of a listing's version is
    always the same one. Neither has a compartment (docs: Image.compartmentId).
    """
    engine_image = cloud.engine.platform_image()
    with cloud.store.transaction():
        rows = cloud.store.find("image")
        for offer in catalogue.platform():
            if not any(
                row.hidden.get("platform")
                and row.hidden["engine_image"] == engine_image
                and row.body["displayName"] == offer.name
                for row in rows
            ):
                _publish(cloud, offer, offer.name, engine_image, {})
        listed = {(row.hidden["listing"], row.hidden["version"]): row for row in rows if row.hidden.get("listing")}
        for listing, offer in catalogue.listings().items():
            for version in offer.versions:
                _publish_version(cloud, offer, version, engine_image, listed.get((listing, version)))


def _publish(cloud: Cloud, offer: Offer, name: str, engine_image: str, hidden: Json) -> None:
    body = _body(name, None, None, offer.operating_system, offer.version)
    hidden = {
        "engine_image": engine_image,
        "platform": True,
        "shapes": offer.fitting(),
        "login_user": offer.login_user,
        **hidden,
    }
    cloud.new("image", {**body, "lifecycleState": "AVAILABLE"}, hidden)


def _publish_version(cloud: Cloud, offer: Offer, version: str, engine_image: str, row: Resource | None) -> None:
    if row is None:
        _publish(cloud, offer, version, engine_image, {"listing": offer.listing_id, "version": version})
    elif row.hidden["engine_image"] != engine_image:
        row.hidden["engine_image"] = engine_image
        cloud.store.save(row)


def choose_image(cloud: Cloud, details: Json) -> Resource:
    """The image of a launch: by OCID, or the newest that instanceSourceImageFilterDetails describes.

    It must run on the shape; that of a listing needs a subscription in the compartment.
    """
    source: Json = details.get("sourceDetails") or {}
    if source.get("sourceType", "image") != "image":
        raise invalid("The local cloud launches from images only (sourceDetails.sourceType image)")
    wanted = source.get("imageId") or details.get("imageId")
    if wanted is None and "instanceSourceImageFilterDetails" in source:
        asked: Json = source["instanceSourceImageFilterDetails"]
        fitting = [
            row
            for row in cloud.store.find("image", lifecycleState="AVAILABLE")
            if details["shape"] in catalogue.shapes_of(row)
            and not row.hidden.get("listing")
            and all(asked.get(name) in (None, row.body[name]) for name in ("operatingSystem", "operatingSystemVersion"))
        ]
        if not fitting:
            raise invalid("No image fits instanceSourceImageFilterDetails")
        return fitting[-1]
    image = cloud.related("image", wanted)
    if image.state != "AVAILABLE":
        raise incorrect_state(f"Image {image.id} is {image.state}")
    known_shape(details["shape"])
    if image.hidden.get("listing"):
        check_subscribed(cloud, image, details["compartmentId"])
    catalogue.check_fits(image, details["shape"])
    return image


def _list(cloud: Cloud, call: Call) -> Reply:
    compartment = cloud.compartment(call.need("compartmentId"), in_body=False)
    shape = call.query.get("shape")
    visible = [
        row
        for row in cloud.store.find("image")
        if row.body["compartmentId"] in (None, compartment)
        and not row.hidden.get("listing")
        and (not shape or shape in catalogue.shapes_of(row))
    ]
    return page(filtered(visible, call, _FILTERS), call)


def _create(cloud: Cloud, call: Call) -> Reply:
    body = call.body()
    required(body, "compartmentId")
    if "instanceId" not in body:
        raise invalid("The local cloud makes images of instances only: instanceId is required")

    def make() -> tuple[Resource, str]:
        cloud.compartment(body["compartmentId"])
        instance = cloud.related("instance", body["instanceId"])
        if instance.state not in ("RUNNING", "STOPPED"):
            raise incorrect_state(f"Instance {instance.id} is {instance.state}; it must be RUNNING or STOPPED")
        base = cloud.get("image", instance.hidden["image"])
        full = _body(
            body.get("displayName") or f"image-of-{instance.body['displayName']}",
            body["compartmentId"],
            base.id,
            base.body["operatingSystem"],
            base.body["operatingSystemVersion"],
        )
        tags: Json = {name: body[name] for name in ("freeformTags", "definedTags") if name in body}
        # What it runs on and who logs in are those of the image that the instance was made of.
        hidden: Json = {name: base.hidden[name] for name in ("shapes", "login_user") if name in base.hidden}
        hidden["instance"] = instance.id
        image = cloud.new("image", {**full, **tags, "lifecycleState": "PROVISIONING"}, hidden)
        image.hidden["engine_image"] = f"localhost/gpucluster/custom:{short(image.id)}"
        image.hidden["work_request"] = cloud.begin_work("CreateImage", "image", image, "IN_PROGRESS")
        image.hidden["instance_was"] = instance.state
        cloud.set_state("instance", instance.id, "CREATING_IMAGE")
        cloud.store.save(image)
        return image, image.hidden["work_request"]

    image, work_request, new = cloud.create_once(call, make)
    if new:
        begin_bake(cloud, image)
    return created(image, work_request)


def begin_bake(cloud: Cloud, image: Resource) -> None:
    """Commit the instance's disk on a worker; also taken up again after a restart."""
    instance = cloud.store.get("instance", image.hidden["instance"])
    try:
        delay = cloud.faults.make_image(launch_facts(cloud, instance.body if instance else {})).delay
    except ApiError as error:
        log.error("%s", error)
        delay = 0.0
    cloud.submit(f"image {image.id}", partial(bake, cloud, image.id), delay)


def bake(cloud: Cloud, ocid: str) -> None:
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


def _release(cloud: Cloud, image: Resource) -> None:
    """The instance is what it was before its image was made; unless it has been terminated meanwhile."""
    instance = cloud.store.get("instance", image.hidden["instance"])
    if instance is not None and instance.state == "CREATING_IMAGE":
        cloud.set_state("instance", instance.id, image.hidden["instance_was"])


def _delete(cloud: Cloud, call: Call) -> Reply:
    image = cloud.live("image", call.path["imageId"])
    if image.hidden.get("platform"):
        raise incorrect_state(f"Image {image.id} is a platform image and can't be deleted")
    if image.state != "AVAILABLE":
        raise incorrect_state(f"Image {image.id} is {image.state}")
    cloud.set_state("image", image.id, "DELETED", gone=True)
    sweep(cloud)
    return Reply(status=204)


def sweep(cloud: Cloud, without: str = "") -> None:
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


def _compatibility(image: str, shape: str) -> Json:
    return {"imageId": image, "shape": shape, "memoryConstraints": None, "ocpuConstraints": None}


def _list_compatibility(cloud: Cloud, call: Call) -> Reply:
    image = cloud.live("image", call.path["imageId"])
    rows = [
        Resource(name, "compatibility", _compatibility(image.id, name), seq=number)
        for number, name in enumerate(catalogue.shapes_of(image), start=1)
    ]
    return page(rows, call)


def _get_compatibility(cloud: Cloud, call: Call) -> Reply:
    image, shape = cloud.live("image", call.path["imageId"]), known_shape(call.path["shapeName"]).name
    if shape not in catalogue.shapes_of(image):
        raise not_found("compatible shape", shape)
    return Reply(_compatibility(image.id, shape))


def _change_compatibility(cloud: Cloud, add: bool, call: Call) -> Reply:
    shape = known_shape(call.path["shapeName"]).name
    with cloud.store.transaction():
        image = cloud.live("image", call.path["imageId"])
        if image.hidden.get("platform"):
            # Platform images are Oracle's, and so are those of listings.
            raise not_found("custom image", image.id)
        others = [name for name in catalogue.shapes_of(image) if name != shape]
        if not add and len(others) == len(catalogue.shapes_of(image)):
            raise not_found("compatible shape", shape)
        image.hidden["shapes"] = [*others, shape] if add else others
        cloud.store.save(image)
    return Reply(_compatibility(image.id, shape)) if add else Reply(status=204)


def routes(cloud: Cloud) -> list[Route]:
    """Images and the shapes that run them."""
    generic = [route for route in kinds.routes(cloud, IMAGE) if route.operation != "ListImages"]
    one = f"{CORE}/images/{{imageId}}"
    entry = f"{one}/shapes/{{shapeName}}"
    return [
        *generic,
        Route("GET", f"{CORE}/images", "ListImages", partial(_list, cloud)),
        Route("POST", f"{CORE}/images", "CreateImage", partial(_create, cloud)),
        Route("DELETE", one, "DeleteImage", partial(_delete, cloud)),
        Route("GET", f"{one}/shapes", "ListImageShapeCompatibilityEntries", partial(_list_compatibility, cloud)),
        Route("GET", entry, "GetImageShapeCompatibilityEntry", partial(_get_compatibility, cloud)),
        Route("PUT", entry, "AddImageShapeCompatibilityEntry", partial(_change_compatibility, cloud, True)),
        Route("DELETE", entry, "RemoveImageShapeCompatibilityEntry", partial(_change_compatibility, cloud, False)),
    ]
