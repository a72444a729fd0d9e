"""Rows for the images of the catalogue, and the choice of an image for a launch."""

from __future__ import annotations

from gpucluster.localcloud.compute import image_catalogue
from gpucluster.localcloud.compute.image_catalogue import ImageOffer
from gpucluster.localcloud.compute.shape_config import known_shape
from gpucluster.localcloud.image.contents import Contents, contents_of, folder_of, read_settings
from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import incorrect_state, invalid, related_not_found
from gpucluster.oci import tags

SUBSCRIPTION = "appcatalogsubscription"


def image_body(name: str, compartment: str | None, base: str | None, system: str, version: str) -> Json:
    """The body of an image row; `base` is the OCID of the image that a custom image was made from."""
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


def publish_images(cloud: CloudState) -> None:
    """Add rows for the images of the catalogue that have none.

    A rebuilt base image gives new platform images, as on OCI, and the old ones stay. The version of a listing always
    keeps its image. Neither has a compartment (docs: Image.compartmentId).
    """
    with cloud.store.transaction():
        rows = cloud.store.find("image")
        for offer in image_catalogue.platform():
            contents = _contents(cloud, offer)
            if not any(
                row.hidden.get("platform")
                and row.hidden["engine_image"] == cloud.engine.platform_image(contents)
                and row.body["displayName"] == offer.name
                for row in rows
            ):
                _publish(cloud, offer, offer.name, contents, {})
        listed = {(row.hidden["listing"], row.hidden["version"]): row for row in rows if row.hidden.get("listing")}
        for listing, offer in image_catalogue.listings().items():
            for version in offer.versions:
                _publish_version(cloud, offer, version, listed.get((listing, version)))


def _contents(cloud: CloudState, offer: ImageOffer) -> Contents:
    return contents_of(offer.operating_system, offer.version, folder_of(cloud.home))


def _publish(cloud: CloudState, offer: ImageOffer, name: str, contents: Contents, hidden: Json) -> None:
    body = image_body(name, None, None, offer.operating_system, offer.version)
    body["freeformTags"] = _what_it_is(contents)
    hidden = {
        "engine_image": cloud.engine.platform_image(contents),
        "platform": True,
        "shapes": offer.compatible_shapes(str(hidden.get("version", ""))),
        "login_user": offer.login_user,
        **hidden,
    }
    cloud.new("image", {**body, "lifecycleState": LifecycleState.AVAILABLE}, hidden)


def _what_it_is(contents: Contents) -> dict[str, str]:
    """Tags that state what an image really contains, and which traps of the real one."""
    image_tags = {tags.CONTAINS: contents.suite.system}
    return {**image_tags, tags.TRAPS: " ".join(contents.traps)} if contents.traps else image_tags


def _publish_version(cloud: CloudState, offer: ImageOffer, version: str, row: Resource | None) -> None:
    contents = _contents(cloud, offer)
    engine_image = cloud.engine.platform_image(contents)
    if row is None:
        _publish(cloud, offer, version, contents, {"listing": offer.listing_id, "version": version})
    elif row.hidden["engine_image"] != engine_image:
        row.hidden["engine_image"] = engine_image
        row.body["freeformTags"] = _what_it_is(contents)
        cloud.store.save(row)


def _check_stand_in(cloud: CloudState, image: Resource) -> None:
    """Refuse an image that only has the name of its system, where the operator wants no stand-ins."""
    system = f"{image.body['operatingSystem']} {image.body['operatingSystemVersion']}"
    folder = folder_of(cloud.home)
    contents = contents_of(image.body["operatingSystem"], image.body["operatingSystemVersion"], folder)
    if contents.stand_in and not read_settings(folder).stand_ins:
        raise invalid(
            f"Image {image.id} is a stand-in: its name is that of {system}, and it contains {contents.suite.system}. "
            "The local cloud makes images of Debian's and Ubuntu's packages, and of Ubuntu's only where ubuntu.sources "
            f"names a mirror; it can't make one that dnf installs. {folder}/settings.json refuses stand-ins"
        )


def choose_image(cloud: CloudState, details: Json) -> Resource:
    """The image of a launch: by OCID, or the newest one that matches instanceSourceImageFilterDetails.

    It must run on the shape. The image of a listing needs a subscription of the compartment.
    """
    source: Json = details.get("sourceDetails") or {}
    if source.get("sourceType", "image") != "image":
        raise invalid("The local cloud launches from images only (sourceDetails.sourceType image)")
    ocid = source.get("imageId") or details.get("imageId")
    if ocid is None and "instanceSourceImageFilterDetails" in source:
        filters: Json = source["instanceSourceImageFilterDetails"]
        fitting = [
            row
            for row in cloud.store.find("image", lifecycleState=LifecycleState.AVAILABLE)
            if details["shape"] in image_catalogue.shapes_of(row)
            and not row.hidden.get("listing")
            and all(
                filters.get(name) in (None, row.body[name]) for name in ("operatingSystem", "operatingSystemVersion")
            )
        ]
        if not fitting:
            raise invalid("No image fits instanceSourceImageFilterDetails")
        _check_stand_in(cloud, fitting[-1])
        return fitting[-1]
    image = cloud.related("image", ocid)
    if image.state != LifecycleState.AVAILABLE:
        raise incorrect_state(f"Image {image.id} is {image.state}")
    known_shape(details["shape"])
    if image.hidden.get("listing"):
        check_subscribed(cloud, image, details["compartmentId"])
    image_catalogue.check_fits(image, details["shape"])
    _check_stand_in(cloud, image)
    return image


def check_subscribed(cloud: CloudState, image: Resource, compartment: str) -> None:
    """Raise 400 if the compartment has no subscription to the listing of an image."""
    version = {"listingId": image.hidden["listing"], "listingResourceVersion": image.hidden["version"]}
    if not cloud.store.count(SUBSCRIPTION, {**version, "compartmentId": compartment}):
        raise related_not_found(
            "image", f"{image.id}; it needs a subscription of the compartment to {version['listingId']}"
        )
