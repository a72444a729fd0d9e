"""The images of the catalogue (image_catalogue.toml), and the shapes that an image runs on."""

from __future__ import annotations

import base64
import functools
import hashlib
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any

from gpucluster import shapes
from gpucluster.localcloud.state.store import Resource
from gpucluster.localcloud.state.wire import invalid

LISTED_BUILDS = 3  # of each platform image
BASE_USER = "debian"  # the login user of the base image itself


@dataclass(frozen=True)
class ImageOffer:
    """One image of the catalogue; image_catalogue.toml explains the members. A platform image has no `versions`.

    `variant`: the name without its build; images of one variant replace each other.
    """

    name: str
    operating_system: str
    version: str
    login_user: str
    shapes: tuple[str, ...]
    not_shapes: tuple[str, ...] = ()
    architecture: str = ""
    publisher: str = ""
    summary: str = ""
    variant: str = ""
    versions: tuple[str, ...] = ()
    version_shapes: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def listing_id(self) -> str:
        """OCID of the app catalog listing: the same in every home, as OCI's are the same in every tenancy."""
        digest = base64.b32encode(hashlib.sha256(self.name.encode()).digest()).decode().lower().rstrip("=")
        return f"ocid1.appcataloglisting.local..aaaaaaaa{digest}"

    def compatible_shapes(self, version: str = "") -> list[str]:
        """Names of the shapes that the image, or a version of the listing, runs on."""
        special = [shapes for pattern, shapes in self.version_shapes.items() if fnmatchcase(version, pattern)]
        patterns, excluded = (special[0], ()) if special else (self.shapes, self.not_shapes)
        return [
            name
            for name, shape in shapes.catalogue().items()
            if self.architecture in ("", shape.architecture)
            and any(fnmatchcase(name, pattern) for pattern in patterns)
            and not any(fnmatchcase(name, pattern) for pattern in excluded)
        ]


@functools.cache
def platform() -> tuple[ImageOffer, ...]:
    """The platform images with all their builds; of each variant the oldest first."""
    return tuple(offer for entry in _file()["platform"] for offer in _builds(entry))


def _builds(entry: Mapping[str, Any]) -> Iterator[ImageOffer]:
    common = {name: value for name, value in entry.items() if name != "builds"}
    for build in entry.get("builds", [""]):
        name = f"{entry['name']}-{build}" if build else entry["name"]
        yield _image_offer({**common, "name": name, "variant": entry["name"]})


@functools.cache
def listings() -> Mapping[str, ImageOffer]:
    """The listings of the app catalog by OCID."""
    return {offer.listing_id: offer for offer in (_image_offer(entry) for entry in _file()["listing"])}


def find(operating_system: str | None, version: str | None, name: str | None, listing: str | None) -> ImageOffer | None:
    """The image that a cluster.yml means by its keys `image`; None if there is none, or it is given by OCID."""
    if listing:
        return next((offer for ocid, offer in listings().items() if listing in (ocid, offer.name)), None)
    for offer in reversed(platform()):
        pairs = ((operating_system, offer.operating_system), (version, offer.version), (name, offer.name))
        if (name or operating_system) and all(value in (None, has) for value, has in pairs):
            return offer
    return None


def _file() -> dict[str, Any]:
    return tomllib.loads((files("gpucluster.localcloud.compute") / "image_catalogue.toml").read_text())


def _image_offer(entry: Mapping[str, Any]) -> ImageOffer:
    members: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()
    }
    return ImageOffer(**members)


def listed(images: Iterable[Resource]) -> list[Resource]:
    """The images that ListImages shows: custom ones, and of each variant of a platform image the newest builds.

    OCI shows the three that were published last (documentation of ListImages); older ones are there by their OCIDs. The
    images of listings are not shown.
    """
    shown: list[Resource] = []
    counts: Counter[str | None] = Counter()
    for image in sorted(images, key=lambda row: -row.seq):
        if image.hidden.get("listing"):
            continue
        if image.hidden.get("platform"):
            # One that the catalogue does not have was replaced as well.
            variant = _variants().get(image.body["displayName"])
            counts[variant] += 1
            if variant is None or counts[variant] > LISTED_BUILDS:
                continue
        shown.append(image)
    return shown


@functools.cache
def _variants() -> Mapping[str, str]:
    return {offer.name: offer.variant for offer in platform()}


def shapes_of(image: Resource) -> list[str]:
    """The shapes that an image runs on."""
    return list(image.hidden["shapes"])


def check_fits(image: Resource, shape: str, *, wording: str = "is not valid for") -> None:
    """Raise 400 if an image does not run on a shape.

    Args:
        wording: part of OCI's message; for an instance configuration it is "is incompatible with".
    """
    if shape not in shapes_of(image):
        raise invalid(f"Shape {shape} {wording} image {image.id}")
