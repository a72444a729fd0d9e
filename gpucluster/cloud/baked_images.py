"""Baked images: an elastic node that boots from a baked image is ready to join.

An image belongs to a cluster and a pool. It holds what a node must have in common with the cluster: keys, the
controller's address, the share. Its tags hold a fingerprint of all that. An image with another fingerprint was made
for another controller, share or configuration and does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpucluster.cloud.client import CloudAccess, all_pages, model, refusals
from gpucluster.errors import CloudError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.oci import tags
from gpucluster.oci.states import LifecycleState
from gpucluster.waiting import wait_until

#: The number of images of a pool that are not deleted: the one in use, and an earlier one to return to.
IMAGES_PER_POOL = 2
# Capturing the boot volume of a bare metal host takes some minutes: the host is stopped and started again.
_TIMEOUT = 60 * 60.0
_POLL = 1.0


@dataclass(frozen=True)
class BakedImage:
    """One custom image of this cluster. `state` is OCI's lifecycle state."""

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
    """The newest available image of a pool with this fingerprint; None if there is none."""
    available = [image for image in images if image.pool == pool and image.state == LifecycleState.AVAILABLE]
    fitting = [image for image in available if image.fingerprint == fingerprint]
    return max(fitting, key=lambda image: (image.created_at, image.name), default=None)


def superseded(images: Sequence[BakedImage], pool: str, present: str) -> tuple[BakedImage, ...]:
    """The images of a pool that can be deleted: all but the one in use and the newest other one.

    Args:
        present: the OCID of the image that the pool's nodes boot from.
    """
    others = [image for image in images if image.pool == pool and image.id != present]
    return tuple(sorted(others, key=lambda image: (image.created_at, image.name), reverse=True)[IMAGES_PER_POOL - 1 :])


class BakedImages:
    """The custom images of one cluster.

    Args:
        cluster: its name.
        identity: that of the cluster, where it was proven: images of another cluster of this name are left alone.
    """

    def __init__(self, access: CloudAccess, cluster: str, on_event: Sink, *, identity: str = "") -> None:
        self._access = access
        self._cluster = cluster
        self._identity = identity
        self._on_event = on_event

    def all(self) -> tuple[BakedImage, ...]:
        """Every image that has the cluster's tags, the newest first; unfinished ones included."""
        with refusals("listing the cluster's images"):
            listed = all_pages(self._client().list_images, self._access.compartment_id)
        own = [
            _baked(image)
            for image in listed
            if tags.of_cluster(image.freeform_tags, self._cluster, self._identity)
            and image.freeform_tags.get(tags.ROLE) == tags.IMAGE
            and image.lifecycle_state != LifecycleState.DELETED
        ]
        return tuple(sorted(own, key=lambda image: (image.created_at, image.name), reverse=True))

    def create(self, pool: str, fingerprint: str, instance_id: str) -> BakedImage:
        """Create an image of an instance's boot volume, and wait until it can be used.

        Raises:
            CloudError: the cloud refused, or the image does not become available.
        """
        own = {tags.CLUSTER: self._cluster, tags.ROLE: tags.IMAGE, tags.POOL: pool, tags.FINGERPRINT: fingerprint}
        if self._identity:
            own[tags.IDENTITY] = self._identity
        name = f"{self._cluster}-{pool}-{datetime.now(UTC):%Y%m%d%H%M%S}"
        details = model(
            "core",
            "CreateImageDetails",
            compartment_id=self._access.compartment_id,
            display_name=name,
            freeform_tags=own,
            instance_id=instance_id,
        )
        self._on_event(Event(EventKind.RESOURCE, f"image {name}", "creating"))
        with refusals(f"creating the image {name}"):
            image = self._client().create_image(details).data
            ready = self._await(image.id, name)
        self._on_event(Event(EventKind.RESOURCE, f"image {name}", "created", data={"id": image.id}))
        return ready

    def remove(self, images: Sequence[BakedImage]) -> None:
        """Delete images."""
        for image in images:
            self._on_event(Event(EventKind.RESOURCE, f"image {image.name}", "deleting"))
            with refusals(f"deleting the image {image.name}"):
                if image.state == LifecycleState.PROVISIONING:
                    # OCI refuses to delete an image that is being created; a killed run may have left one.
                    self._wait_created(image.id)
                self._client().delete_image(image.id)
            self._on_event(Event(EventKind.RESOURCE, f"image {image.name}", "deleted"))

    def _client(self) -> Any:
        return self._access.client("core", "ComputeClient")

    def _await(self, image_id: str, name: str) -> BakedImage:
        image = self._wait_created(image_id)
        if image.lifecycle_state != LifecycleState.AVAILABLE:
            raise CloudError(
                f"the image {name} is {image.lifecycle_state} and not AVAILABLE",
                where=image_id,
                hint="Run the same command again: it removes the unfinished image first",
            )
        return _baked(image)

    def _wait_created(self, image_id: str) -> Any:
        """The image as OCI has it, once its creation has ended or took too long."""
        return wait_until(lambda: self._created(image_id), _TIMEOUT, _POLL) or self._read(image_id)

    def _created(self, image_id: str) -> Any:
        """The image as OCI has it once its creation has ended; None as long as it continues."""
        image = self._read(image_id)
        return None if image.lifecycle_state in (LifecycleState.PROVISIONING, LifecycleState.IMPORTING) else image

    def _read(self, image_id: str) -> Any:
        return self._client().get_image(image_id).data


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
