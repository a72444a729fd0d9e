"""The app catalog: listings, their versions and agreements, and the subscriptions of compartments."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from functools import partial

from gpucluster.localcloud.compute.image_catalogue import ImageOffer, listings
from gpucluster.localcloud.compute.launch_images import SUBSCRIPTION
from gpucluster.localcloud.state.cloud import CloudState, timestamp
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import (
    CORE,
    ApiError,
    ApiRoute,
    Call,
    Reply,
    invalid,
    not_found,
    page,
    required,
)

_SUBSCRIPTIONS = f"{CORE}/appCatalogSubscriptions"
_PUBLISHED = "T00:00:00.000Z"
# Links to the terms of a publisher. They lead nowhere here.
_EULA = "https://example.com/{}/eula.txt"
_TERMS = "https://example.com/{}/oracle-terms-of-use.txt"


def _offer(listing: str) -> ImageOffer:
    if listing not in listings():
        raise not_found("listing", listing)
    return listings()[listing]


def _summary(offer: ImageOffer) -> Json:
    return {
        "listingId": offer.listing_id,
        "displayName": offer.name,
        "summary": offer.summary,
        "publisherName": offer.publisher,
    }


def _list(_cloud: CloudState, call: Call) -> Reply:
    rows = [
        Resource(offer.listing_id, "listing", _summary(offer), seq=number)
        for number, offer in enumerate(listings().values(), start=1)
        if all(
            call.query.get(name) in (None, "", value)
            for name, value in (("displayName", offer.name), ("publisherName", offer.publisher))
        )
    ]
    return page(rows, call)


def _get(_cloud: CloudState, call: Call) -> Reply:
    offer = _offer(call.path["listingId"])
    newest = offer.versions[-1]
    return Reply({**_summary(offer), "description": offer.summary, "contactUrl": "", "publisherLogoUrl": "",
                  "timePublished": _published(newest)})  # fmt: skip


def _published(version: str) -> str:
    """The date in the name of a version, such as Oracle-Linux-8.10-...-2025.07.18-0."""
    return version.split("-")[-2].replace(".", "-") + _PUBLISHED


def _image(cloud: CloudState, offer: ImageOffer, version: str) -> Resource:
    for row in cloud.store.find("image"):
        if (row.hidden.get("listing"), row.hidden.get("version")) == (offer.listing_id, version):
            return row
    raise not_found("listing resource version", version)


def _version_summary(cloud: CloudState, offer: ImageOffer, version: str) -> Json:
    return {
        "listingId": offer.listing_id,
        "listingResourceId": _image(cloud, offer, version).id,
        "listingResourceVersion": version,
        "timePublished": _published(version),
    }


def _versions(cloud: CloudState, call: Call) -> Reply:
    offer = _offer(call.path["listingId"])
    rows = [
        Resource(version, "version", _version_summary(cloud, offer, version), seq=number)
        for number, version in enumerate(offer.versions, start=1)
    ]
    return page(rows, call)


def _version(cloud: CloudState, call: Call) -> Reply:
    offer, version = _offer(call.path["listingId"]), call.path["resourceVersion"]
    return Reply(
        {
            **_version_summary(cloud, offer, version),
            "availableRegions": [],
            "compatibleShapes": offer.compatible_shapes(version),
            "accessiblePorts": [],
            "allowedActions": ["SERIAL_CONSOLE_ACCESS", "SSH_KEY_SUPPORT"],
        }
    )


def _signature(cloud: CloudState, listing: str, version: str, milliseconds: int) -> str:
    text = f"{cloud.identity.tenancy} {listing} {version} {milliseconds}"
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _milliseconds(text: object) -> int:
    """A time in milliseconds, so that the formats of the SDK, Terraform and this API compare equal."""
    try:
        return round(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError as error:
        raise invalid(f"timeRetrieved {text} is not a time: {error}") from error


def _agreements(cloud: CloudState, call: Call) -> Reply:
    offer, version = _offer(call.path["listingId"]), call.path["resourceVersion"]
    _image(cloud, offer, version)
    now = timestamp()
    return Reply(
        {
            "listingId": offer.listing_id,
            "listingResourceVersion": version,
            "eulaLink": _EULA.format(offer.listing_id),
            "oracleTermsOfUseLink": _TERMS.format(offer.listing_id),
            "timeRetrieved": now,
            "signature": _signature(cloud, offer.listing_id, version, _milliseconds(now)),
        }
    )


def _subscribe(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(
        body, "compartmentId", "listingId", "listingResourceVersion", "oracleTermsOfUseLink", "signature",
        "timeRetrieved",
    )  # fmt: skip
    offer, version = _offer(body["listingId"]), body["listingResourceVersion"]
    image = _image(cloud, offer, version)
    signed = _signature(cloud, offer.listing_id, version, _milliseconds(body["timeRetrieved"]))
    if body["signature"] != signed or body["oracleTermsOfUseLink"] != _TERMS.format(offer.listing_id):
        raise invalid("The signature is not that of the agreements of this listing resource version")
    with cloud.store.transaction():
        compartment = cloud.compartment(body["compartmentId"])
        existing = _subscriptions(cloud, compartment, offer.listing_id, version)
        row = existing[0] if existing else cloud.new(
            SUBSCRIPTION,
            {
                **_summary(offer),
                "compartmentId": compartment,
                "listingResourceId": image.id,
                "listingResourceVersion": version,
            },
        )  # fmt: skip
    return Reply(_view(row))


def _view(row: Resource) -> Json:
    """A subscription has no OCID and no tags."""
    names = (
        "compartmentId", "displayName", "listingId", "listingResourceId", "listingResourceVersion", "publisherName",
        "summary", "timeCreated",
    )  # fmt: skip
    return {name: row.body[name] for name in names}


def _subscriptions(
    cloud: CloudState, compartment: str, listing: str | None, version: str | None = None
) -> list[Resource]:
    members = {"compartmentId": compartment, "listingId": listing, "listingResourceVersion": version}
    return [
        row
        for row in cloud.store.find(SUBSCRIPTION)
        if all(value is None or row.body[name] == value for name, value in members.items())
    ]


def _list_subscriptions(cloud: CloudState, call: Call) -> Reply:
    compartment = cloud.compartment(call.need("compartmentId"), in_body=False)
    return page(_subscriptions(cloud, compartment, call.query.get("listingId") or None), call, view=_view)


def _unsubscribe(cloud: CloudState, call: Call) -> Reply:
    listing, version = call.need("listingId"), call.need("resourceVersion")
    compartment = cloud.compartment(call.need("compartmentId"), in_body=False)
    existing = _subscriptions(cloud, compartment, listing, version)
    if not existing:
        raise ApiError(404, "NotAuthorizedOrNotFound", f"There is no subscription to {listing} {version}")
    cloud.store.drop(existing[0].id)
    return Reply(status=204)


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Listings and subscriptions."""
    listing = f"{CORE}/appCatalogListings"
    one = f"{listing}/{{listingId}}"
    version = f"{one}/resourceVersions/{{resourceVersion}}"
    return [
        ApiRoute("GET", listing, "ListAppCatalogListings", partial(_list, cloud)),
        ApiRoute("GET", one, "GetAppCatalogListing", partial(_get, cloud)),
        ApiRoute("GET", f"{one}/resourceVersions", "ListAppCatalogListingResourceVersions", partial(_versions, cloud)),
        ApiRoute("GET", version, "GetAppCatalogListingResourceVersion", partial(_version, cloud)),
        ApiRoute("GET", f"{version}/agreements", "GetAppCatalogListingAgreements", partial(_agreements, cloud)),
        ApiRoute("GET", _SUBSCRIPTIONS, "ListAppCatalogSubscriptions", partial(_list_subscriptions, cloud)),
        ApiRoute("POST", _SUBSCRIPTIONS, "CreateAppCatalogSubscription", partial(_subscribe, cloud)),
        ApiRoute("DELETE", _SUBSCRIPTIONS, "DeleteAppCatalogSubscription", partial(_unsubscribe, cloud)),
    ]
