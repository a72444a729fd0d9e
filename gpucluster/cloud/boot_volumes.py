"""Another boot volume for an instance in its place: UpdateInstance with an image. The instance keeps its host, its OCID
and its addresses.

Facts: docs.oracle.com, "Replacing a Boot Volume" (virtual machines and bare metal; Linux; the same distribution; no
images of the marketplace; the instance stops, and returns to its state; after a failure it has its old volume again),
and the SDK's UpdateInstanceSourceViaImageDetails.
"""

from __future__ import annotations

import http
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gpucluster import cancellation
from gpucluster.cloud.client import CloudAccess, all_pages, model, refusals, unless_refused
from gpucluster.errors import CloudError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.oci.states import GONE, LifecycleState, WorkRequestStatus
from gpucluster.waiting import wait_until

_POLL = 1.0
# Bare metal shuts down and boots slowly: its firmware tests the hardware.
_TIMEOUT = 90 * 60.0
_WORKERS = 8
# It is not possible for this instance or this image, or not permitted: no repetition would help.
_REFUSED = (http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.NOT_FOUND)
# `CANCELED` is OCI's spelling (SDK: work_requests.models.WorkRequest.status).
_ENDED = (WorkRequestStatus.SUCCEEDED, WorkRequestStatus.FAILED, "CANCELED")


@dataclass(frozen=True)
class BootedFrom:
    """What an instance boots from: the OCID of its image, and its lifecycle state."""

    image: str
    state: str


@dataclass(frozen=True)
class NewVolume:
    """How the request for another boot volume has ended.

    Args:
        refused: OCI's answer, if it does not replace the boot volume of this instance with this image.
        failed: why the instance has its old boot volume again.
    """

    refused: str = ""
    failed: str = ""


class BootVolumes:
    """The boot volumes of a cluster's instances."""

    def __init__(self, access: CloudAccess, on_event: Sink) -> None:
        self._access = access
        self._on_event = on_event

    def sources(self, instances: Iterable[str]) -> dict[str, BootedFrom]:
        """What these instances boot from, by OCID. One that is gone is left out.

        Raises:
            CloudError: the cloud refused.
        """
        compute = self._client()

        def read(ocid: str) -> tuple[str, BootedFrom | None]:
            found = unless_refused(lambda: compute.get_instance(ocid), http.HTTPStatus.NOT_FOUND)
            return ocid, None if found is None else _booted_from(found.data)

        with refusals("reading the images of instances"), ThreadPoolExecutor(_WORKERS) as workers:
            return {
                ocid: source for ocid, source in workers.map(read, instances) if source and source.state not in GONE
            }

    def check_image(self, image: str) -> str:
        """The operating system of an image that can be used.

        Raises:
            CloudError: it does not exist any more, or can't be used.
        """
        try:
            with refusals(f"reading image {image}"):
                read = self._client().get_image(image).data
        except CloudError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                raise CloudError(
                    f"image {image} does not exist any more, or may not be used",
                    hint="Name another image for the pool in cluster.yml",
                    status=error.status,
                    code=error.code,
                ) from error
            raise
        if read.lifecycle_state != LifecycleState.AVAILABLE:
            raise CloudError(
                f"image {read.display_name} is {read.lifecycle_state}, and can't be used",
                where=image,
                hint="Wait until it is AVAILABLE, or name another image for the pool in cluster.yml",
            )
        return str(read.operating_system)

    def replace(self, instances: Mapping[str, str], image: str) -> dict[str, NewVolume]:
        """Give these instances a boot volume made from this image, and wait until that has ended. What is on their
        disks is lost. One that has the image already is left as it is; one that is being changed is awaited.

        Args:
            instances: the name of each, by its OCID.

        Returns:
            how it has ended, by OCID.

        Raises:
            CloudError: the cloud refused something else, or does not end it in time.
        """
        with ThreadPoolExecutor(_WORKERS) as workers:
            ended = workers.map(lambda ocid: self._replace(ocid, instances[ocid], image), instances)
            return dict(zip(instances, ended, strict=True))

    def _replace(self, ocid: str, name: str, image: str) -> NewVolume:
        until = time.monotonic() + _TIMEOUT
        while self._settled(ocid, name).image != image:
            try:
                work_request = self._ask(ocid, name, image)
            except CloudError as error:
                if error.status in _REFUSED:
                    return NewVolume(refused=error.what)
                if error.status != http.HTTPStatus.CONFLICT or time.monotonic() > until:
                    raise
                cancellation.sleep(_POLL)  # the request of an earlier run is still being carried out
                continue
            failed = self._failure(work_request)
            if failed:
                return NewVolume(failed=failed)
        self._on_event(Event(EventKind.RESOURCE, f"instance {name}", "updated"))
        return NewVolume()

    def _ask(self, ocid: str, name: str, image: str) -> str:
        """Returns the id of the work request."""
        source = model(
            "core", "UpdateInstanceSourceViaImageDetails", image_id=image, is_preserve_boot_volume_enabled=False
        )
        details = model("core", "UpdateInstanceDetails", source_details=source)
        self._on_event(Event(EventKind.RESOURCE, f"instance {name}", "updating", "another boot volume"))
        with refusals(f"replacing the boot volume of {name}"):
            answer = self._client().update_instance(ocid, details)
        return str(answer.headers.get("opc-work-request-id") or "")

    def _failure(self, work_request: str) -> str:
        """Wait for a work request. Returns why it has failed; empty if it has not."""
        if not work_request:
            return ""
        work = self._access.client("work_requests", "WorkRequestClient")

        def ended() -> str | None:
            with refusals("reading a work request"):
                status = str(work.get_work_request(work_request).data.status)
            return status if status in _ENDED else None

        status = wait_until(ended, _TIMEOUT, _POLL)
        if status == WorkRequestStatus.SUCCEEDED:
            return ""
        with refusals("reading a work request"):
            errors = all_pages(work.list_work_request_errors, work_request)
        reason = "; ".join(dict.fromkeys(error.message.rstrip(".") for error in errors))
        return f"{reason or 'the cloud gives no reason'} (work request {work_request})"

    def _settled(self, ocid: str, name: str) -> BootedFrom:
        """What an instance boots from, as soon as it runs."""

        def running() -> BootedFrom | None:
            with refusals(f"reading {name}"):
                now = _booted_from(self._client().get_instance(ocid).data)
            if now.state in GONE or now.state == LifecycleState.STOPPED:
                raise CloudError(
                    f"{name} is {now.state}, and does not run", where=ocid,
                    hint=f"Start it in the console, or replace it: gpucluster replace {name}",
                )  # fmt: skip
            return now if now.state == LifecycleState.RUNNING else None

        settled = wait_until(running, _TIMEOUT, _POLL)
        if settled is None:
            raise CloudError(
                f"{name} does not run after {_TIMEOUT / 60:.0f} min", where=ocid,
                hint="Read its work requests in the console, then run: gpucluster rollout",
            )  # fmt: skip
        return settled

    def _client(self) -> Any:
        return self._access.client("core", "ComputeClient")


def _booted_from(instance: Any) -> BootedFrom:
    image = getattr(instance.source_details, "image_id", None) or instance.image_id
    return BootedFrom(str(image or ""), str(instance.lifecycle_state))
