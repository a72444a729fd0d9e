"""Baked images: from which elastic nodes boot ready to join.

An image belongs to a cluster and a pool, and holds what a node must agree with: its keys, the controller's address, the
share. A fingerprint of all that is in its tags; where the fingerprint differs, the image is of another cluster's life.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpucluster.errors import CloudError
from gpucluster.events import Event, Sink
from gpucluster.oci import tags
from gpucluster.sdk import Access, everything, model, refusals

ROLE = tags.IMAGE
#: How many images of a pool are kept: the present one, and the one to go back to.
KEPT = 2
# Capturing the boot volume of a bare metal host takes some minutes; it is stopped for it and started again.
_PATIENCE = 60 * 60.0
_POLL = 1.0


@dataclass(frozen=True)
class BakedImage:
    """One custom image of this cluster. `state` is OCI's: AVAILABLE, PROVISIONING, ..."""

    id: str
    name: str
    pool: str
    fingerprint: str
    state: str
    created_at: datetime

    def to_dict(self) -> dict[str, str]:
        """As a JSON object."""
        return {
            "id": self.id,
            "name": self.name,
            "pool": self.pool,
            "fingerprint": self.fingerprint,
            "state": self.state,
            "created_at": self.created_at.isoformat(),
        }


def newest(images: Sequence[BakedImage], pool: str, fingerprint: str) -> BakedImage | None:
    """The newest image of a pool that fits; None if there is none."""
    fit = [one for one in images if one.pool == pool and one.state == "AVAILABLE" and one.fingerprint == fingerprint]
    return max(fit, key=lambda image: (image.created_at, image.name), default=None)


def superseded(images: Sequence[BakedImage], pool: str, present: str) -> tuple[BakedImage, ...]:
    """The images of a pool that can go: all but the one in use and the newest beside it.

    Args:
        present: the OCID of the image that the pool's nodes boot from.
    """
    others = [image for image in images if image.pool == pool and image.id != present]
    return tuple(sorted(others, key=lambda image: (image.created_at, image.name), reverse=True)[KEPT - 1 :])


class Images:
    """The custom images of one cluster.

    Args:
        tag: the key and the value that mark this cluster's resources.
    """

    def __init__(self, access: Access, tag: tuple[str, str], on_event: Sink) -> None:
        self._access = access
        self._tag = tag
        self._on_event = on_event

    def all(self) -> tuple[BakedImage, ...]:
        """Every image that carries the cluster's tags, the newest first; half-made ones included."""
        key, value = self._tag
        with refusals("listing the cluster's images"):
            listed = everything(self._client().list_images, self._access.compartment_id)
        mine = [
            _baked(image)
            for image in listed
            if (image.freeform_tags or {}).get(key) == value
            and image.freeform_tags.get(tags.ROLE) == ROLE
            and image.lifecycle_state != "DELETED"
        ]
        return tuple(sorted(mine, key=lambda image: (image.created_at, image.name), reverse=True))

    def create(self, pool: str, fingerprint: str, instance_id: str) -> BakedImage:
        """Make an image of an instance's boot volume, and wait until it can be used.

        Raises:
            CloudError: the cloud refused, or the image does not become available.
        """
        key, value = self._tag
        own = {key: value, tags.ROLE: ROLE, tags.POOL: pool, tags.FINGERPRINT: fingerprint}
        name = f"{value}-{pool}-{datetime.now(UTC):%Y%m%d%H%M%S}"
        details = model(
            "core",
            "CreateImageDetails",
            compartment_id=self._access.compartment_id,
            display_name=name,
            freeform_tags=own,
            instance_id=instance_id,
        )
        self._on_event(Event("resource", f"image {name}", "creating"))
        with refusals(f"making the image {name}"):
            image = self._client().create_image(details).data
            ready = self._await(image.id, name)
        self._on_event(Event("resource", f"image {name}", "created", data={"id": image.id}))
        return ready

    def remove(self, images: Sequence[BakedImage]) -> None:
        """Delete images and wait until they are gone."""
        for image in images:
            self._on_event(Event("resource", f"image {image.name}", "deleting"))
            with refusals(f"deleting the image {image.name}"):
                if image.state == "PROVISIONING":
                    self._settle(image)
                self._client().delete_image(image.id)
            self._on_event(Event("resource", f"image {image.name}", "deleted"))

    def _client(self) -> Any:
        return self._access.client("core", "ComputeClient")

    def _await(self, image_id: str, name: str) -> BakedImage:
        until = time.monotonic() + _PATIENCE
        while True:
            image = self._client().get_image(image_id).data
            if image.lifecycle_state == "AVAILABLE":
                return _baked(image)
            if image.lifecycle_state not in ("PROVISIONING", "IMPORTING") or time.monotonic() > until:
                raise CloudError(
                    f"the image {name} is {image.lifecycle_state} and not AVAILABLE",
                    where=image_id,
                    hint="Run the same command again: what is half made is removed first",
                )
            time.sleep(_POLL)

    def _settle(self, image: BakedImage) -> None:
        """An image that is being made can't be deleted; a killed run may have left one."""
        until = time.monotonic() + _PATIENCE
        while self._client().get_image(image.id).data.lifecycle_state == "PROVISIONING" and time.monotonic() < until:
            time.sleep(_POLL)


def _baked(image: Any) -> BakedImage:
    own: Mapping[str, str] = image.freeform_tags or {}
    return BakedImage(
        image.id,
        image.display_name or image.id,
        own.get(tags.POOL, ""),
        own.get(tags.FINGERPRINT, ""),
        image.lifecycle_state,
        image.time_created,
    )
