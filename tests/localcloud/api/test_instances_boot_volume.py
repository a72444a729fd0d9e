"""UpdateInstance with another image, as the SDK sees it: the boot volume is replaced in place.

With an engine that starts nothing: what is proven is the API's answers, states and rows. What OCI itself refuses, and
with which codes, is from its documentation only (docs: Replacing a Boot Volume).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from oci.core import models

from tests.localcloud.api_harness import Api, refused, running
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("boot-volume") / "cloud") as api:
        yield api


@pytest.fixture
def api(shared: Api) -> Iterator[Api]:
    yield shared
    shared.faults()


@pytest.fixture(scope="module")
def subnet(shared: Api) -> Any:
    return shared.subnet(shared.vcn())


@pytest.fixture
def instance(api: Api, subnet: Any) -> Iterator[Any]:
    made = api.launch(subnet, "node", metadata={"ssh_authorized_keys": "k"})
    yield made
    api.compute.terminate_instance(made.id)
    # The next test counts the machines.
    api.wait(api.compute.get_instance, made.id, "TERMINATED")


def image(api: Api) -> Any:
    """Another image of the same distribution than the instance has."""
    return api.compute.list_images(api.tenancy, operating_system="Debian", operating_system_version="12").data[0]


def replace(api: Api, instance: Any, ocid: str, *, constraint: str | None = None, **more: Any) -> str:
    """Returns the id of the work request."""
    source = models.UpdateInstanceSourceViaImageDetails(image_id=ocid, **more)
    details = models.UpdateInstanceDetails(source_details=source, update_operation_constraint=constraint)
    return str(api.compute.update_instance(instance.id, details).headers["opc-work-request-id"])


def ended(api: Api, work_request: str) -> str:
    def status() -> str:
        now = str(api.work.get_work_request(work_request).data.status)
        return "" if now == "IN_PROGRESS" else now

    return wait_for("the work request has ended", status)


def volumes(api: Api, instance: Any) -> dict[str, str]:
    """The states of its boot volumes, by OCID."""
    listed = api.compute.list_boot_volume_attachments(instance.availability_domain, api.tenancy).data
    ids = [each.boot_volume_id for each in listed if each.instance_id == instance.id]
    return {ocid: str(api.block.get_boot_volume(ocid).data.lifecycle_state) for ocid in ids}


def addresses(api: Api, instance: Any) -> list[str]:
    attached = api.compute.list_vnic_attachments(api.tenancy, instance_id=instance.id).data
    return [api.network.get_vnic(each.vnic_id).data.private_ip for each in attached]


@pytest.mark.parametrize("preserve", [False, True])
def test_it_keeps_the_instance_its_addresses_and_metadata(api: Api, instance: Any, preserve: bool) -> None:
    (old,) = volumes(api, instance)
    had = addresses(api, instance)
    new = image(api)
    assert ended(api, replace(api, instance, new.id, is_preserve_boot_volume_enabled=preserve)) == "SUCCEEDED"
    now = api.compute.get_instance(instance.id).data
    assert (now.lifecycle_state, now.image_id, now.source_details.image_id) == ("RUNNING", new.id, new.id)
    assert (now.metadata, addresses(api, instance)) == (instance.metadata, had)
    assert api.block.get_boot_volume(old).data.lifecycle_state == ("AVAILABLE" if preserve else "TERMINATED")
    ready = [ocid for ocid, state in volumes(api, instance).items() if state == "AVAILABLE" and ocid != old]
    assert len(ready) == 1


def test_it_stops_first_and_refuses_a_second_request_meanwhile(api: Api, instance: Any) -> None:
    api.faults({"operation": "ReplaceBootVolume", "until_removed": True})
    work = replace(api, instance, image(api).id)
    assert api.compute.get_instance(instance.id).data.lifecycle_state == "STOPPING"
    with refused(409, "IncorrectState"):
        replace(api, instance, instance.image_id)
    api.faults()
    assert ended(api, work) == "SUCCEEDED"


def test_a_stopped_instance_stays_stopped(api: Api, instance: Any) -> None:
    api.compute.instance_action(instance.id, "STOP")
    api.wait(api.compute.get_instance, instance.id, "STOPPED")
    assert ended(api, replace(api, instance, image(api).id, constraint="AVOID_DOWNTIME")) == "SUCCEEDED"
    now = api.compute.get_instance(instance.id).data
    assert (now.lifecycle_state, now.image_id) == ("STOPPED", image(api).id)


def test_a_stopped_instance_is_not_started_meanwhile(api: Api, instance: Any) -> None:
    api.compute.instance_action(instance.id, "STOP")
    api.wait(api.compute.get_instance, instance.id, "STOPPED")
    api.faults({"operation": "ReplaceBootVolume", "until_removed": True})
    work = replace(api, instance, image(api).id)
    with refused(409, "IncorrectState") as said:
        api.compute.instance_action(instance.id, "START")
    assert "is being replaced" in said[0]
    api.faults()
    assert ended(api, work) == "SUCCEEDED"
    started = api.compute.instance_action(instance.id, "START").headers["opc-work-request-id"]
    assert ended(api, started) == "SUCCEEDED"
    assert api.compute.get_instance(instance.id).data.lifecycle_state == "RUNNING"


def test_what_oci_refuses_changes_nothing(api: Api, instance: Any) -> None:
    with refused(400, "InvalidParameter") as said:
        replace(api, instance, api.named_image("Oracle-Linux-9.7-2026.06.15-0").id)
    assert "same distribution" in said[0]
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound"):
        replace(api, instance, "ocid1.image.oc1..gone")
    with refused(409, "IncorrectState"):
        replace(api, instance, image(api).id, constraint="AVOID_DOWNTIME")
    now = api.compute.get_instance(instance.id).data
    assert (now.lifecycle_state, now.image_id) == ("RUNNING", instance.image_id)


def test_the_image_that_it_has_replaces_nothing(api: Api, instance: Any) -> None:
    before = volumes(api, instance)
    assert ended(api, replace(api, instance, instance.image_id)) == "SUCCEEDED"
    assert volumes(api, instance) == before


def test_a_failure_brings_the_old_volume_back(api: Api, instance: Any) -> None:
    (old,) = volumes(api, instance)
    api.faults({"operation": "ReplaceBootVolume", "image": image(api).display_name, "message": "The volume failed."})
    work = replace(api, instance, image(api).id)
    assert ended(api, work) == "FAILED"
    assert [each.message for each in api.work.list_work_request_errors(work).data] == ["The volume failed."]
    now = api.compute.get_instance(instance.id).data
    assert (now.lifecycle_state, now.image_id, now.source_details.image_id) == (
        "RUNNING",
        instance.image_id,
        instance.image_id,
    ), "the work request had ended"
    assert [ocid for ocid, state in volumes(api, instance).items() if state == "AVAILABLE"] == [old]


def test_an_image_under_which_hosts_do_not_come_back_and_the_old_one_brings_them(api: Api, instance: Any) -> None:
    """The trap: the cloud shows RUNNING, and nothing answers there."""

    before = list(api.home.rglob("machines/*"))
    assert before
    api.faults({"operation": "ReplaceBootVolume", "image": image(api).id, "dead": True})
    assert ended(api, replace(api, instance, image(api).id)) == "SUCCEEDED"
    assert api.compute.get_instance(instance.id).data.lifecycle_state == "RUNNING"
    assert len(list(api.home.rglob("machines/*"))) == len(before) - 1
    assert ended(api, replace(api, instance, instance.image_id)) == "SUCCEEDED"
    assert len(list(api.home.rglob("machines/*"))) == len(before)


def test_a_server_that_is_killed_meanwhile_goes_on(api: Api, instance: Any) -> None:
    api.faults({"operation": "ReplaceBootVolume", "until_removed": True})
    replace(api, instance, image(api).id)
    api.kill()
    api.faults()
    api.start()
    now = api.wait(api.compute.get_instance, instance.id, "RUNNING")
    assert now.image_id == image(api).id
    wait_for("the new volume is attached", lambda: "AVAILABLE" in volumes(api, instance).values())


def test_a_boot_volume_grows_and_does_not_shrink(api: Api, instance: Any) -> None:
    storage = api.client("core.BlockstorageClient")
    where = (instance.availability_domain, api.tenancy)
    (attached,) = api.compute.list_boot_volume_attachments(*where, instance_id=instance.id).data
    volume = storage.get_boot_volume(attached.boot_volume_id).data
    larger = models.UpdateBootVolumeDetails(size_in_gbs=volume.size_in_gbs + 50)
    assert storage.update_boot_volume(volume.id, larger).data.size_in_gbs == volume.size_in_gbs + 50
    source = api.compute.get_instance(instance.id).data.source_details
    assert source.boot_volume_size_in_gbs == volume.size_in_gbs + 50
    smaller = models.UpdateBootVolumeDetails(size_in_gbs=volume.size_in_gbs)
    with refused(400, "InvalidParameter") as said:
        storage.update_boot_volume(volume.id, smaller)
    assert "can't be made smaller" in said[0]
