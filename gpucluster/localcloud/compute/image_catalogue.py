"""The images of the catalogue (image_catalogue.toml), and the shapes that an image runs on."""

from __future__ import annotations

import base64
import functools
import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any

from gpucluster import shapes
from gpucluster.localcloud.state.store import Resource
from gpucluster.localcloud.state.wire import invalid

BASE_USER = "debian"  # the login user of the base image itself


@dataclass(frozen=True)
class ImageOffer:
    """One image of the catalogue; image_catalogue.toml explains the members. A platform image has no `versions`."""

    name: str
    operating_system: str
    version: str
    login_user: str
    shapes: tuple[str, ...]
    not_shapes: tuple[str, ...] = ()
    architecture: str = ""
    publisher: str = ""
    summary: str = ""
    versions: tuple[str, ...] = ()

    @property
    def listing_id(self) -> str:
        """OCID of the app catalog listing: the same in every home, as OCI's are the same in every tenancy."""
        digest = base64.b32encode(hashlib.sha256(self.name.encode()).digest()).decode().lower().rstrip("=")
        return f"ocid1.appcataloglisting.local..aaaaaaaa{digest}"

    def compatible_shapes(self) -> list[str]:
        """Names of the shapes that the image runs on."""
        return [name for name, shape in shapes.catalogue().items() if self._fits(name, shape.architecture)]

    def _fits(self, name: str, architecture: str) -> bool:
        if self.architecture not in ("", architecture):
            return False
        wanted = any(fnmatchcase(name, pattern) for pattern in self.shapes)
        return wanted and not any(fnmatchcase(name, pattern) for pattern in self.not_shapes)


@functools.cache
def platform() -> tuple[ImageOffer, ...]:
    """The platform images, oldest first."""
    return tuple(_image_offer(entry) for entry in _file()["platform"])


@functools.cache
def listings() -> Mapping[str, ImageOffer]:
    """The listings of the app catalog by OCID."""
    return {offer.listing_id: offer for offer in (_image_offer(entry) for entry in _file()["listing"])}


def find(operating_system: str | None, version: str | None, name: str | None, listing: str | None) -> ImageOffer | None:
    """The image that a cluster.yml means by its keys `image`; None if there is none, or it is given by OCID."""
    if listing:
        return next((offer for ocid, offer in listings().items() if listing in (ocid, offer.name)), None)
    for offer in reversed(platform()):
        wanted = ((operating_system, offer.operating_system), (version, offer.version), (name, offer.name))
        if (name or operating_system) and all(asked in (None, has) for asked, has in wanted):
            return offer
    return None


def _file() -> dict[str, Any]:
    return tomllib.loads((files("gpucluster.localcloud.compute") / "image_catalogue.toml").read_text())


def _image_offer(entry: Mapping[str, Any]) -> ImageOffer:
    members: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()
    }
    return ImageOffer(**members)


def shapes_of(image: Resource) -> list[str]:
    """The shapes that an image runs on. Images of an earlier release have no list and run on all shapes."""
    listed = image.hidden.get("shapes")
    return list(shapes.catalogue()) if listed is None else list(listed)


def check_fits(image: Resource, shape: str, *, wording: str = "is not valid for") -> None:
    """Raise 400 if an image does not run on a shape.

    Args:
        wording: part of OCI's message; for an instance configuration it is "is incompatible with".
    """
    if shape not in shapes_of(image):
        raise invalid(f"Shape {shape} {wording} image {image.id}")
