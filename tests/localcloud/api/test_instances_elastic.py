"""The requests of an autoscaler, sent by the real SDK with the controller's own key."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import oci
import pytest
from oci.core import models

from gpucluster.localcloud import control
from tests.localcloud.api_harness import Api, refused, running
from tests.localcloud.elastic_controller import TAGS, Controller

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("elastic") / "cloud") as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


@pytest.fixture(scope="module")
def configuration(api: Api, subnet: Any) -> Any:
    vnic = models.InstanceConfigurationCreateVnicDetails(subnet_id=subnet.id, assign_public_ip=False)
    return api.configuration(create_vnic_details=vnic, freeform_tags=TAGS)


@pytest.fixture(scope="module")
def controller(api: Api, subnet: Any, tmp_path_factory: pytest.TempPathFactory) -> Controller:
    return Controller(api, subnet, tmp_path_factory.mktemp("controller") / "config")


# the controller's identity


def test_the_key_of_an_earlier_release_is_accepted_after_a_restart(api: Api, controller: Controller) -> None:
    control.stop(api.home)
    api.start()
    assert controller.compute.list_instances(api.tenancy).status == 200
    with refused(401, "NotAuthenticated"):
        stolen = {**controller.settings, "key_file": api.config["key_file"]}
        api.client("core.ComputeClient", **stolen).list_instances(api.tenancy)


def test_a_token_launches_once_and_never_again_after_the_end(
    api: Api, controller: Controller, configuration: Any
) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: controller.launch(configuration, "gpu-e2").data.id, range(8)))
    assert len(set(made)) == 1
    api.wait(controller.compute.get_instance, made[0], "RUNNING")
    controller.compute.terminate_instance(made[0])
    api.wait(controller.compute.get_instance, made[0], "TERMINATED")
    with refused(409, "InvalidatedRetryToken"):
        controller.launch(configuration, "gpu-e2")
    again = controller.launch(configuration, "gpu-e2", generation=2).data.id
    assert again != made[0]


def test_the_second_availability_domain(api: Api, controller: Controller, subnet: Any) -> None:
    first, second = (one.name for one in api.identity.list_availability_domains(api.tenancy).data)
    assert [name[-4:] for name in (first, second)] == ["AD-1", "AD-2"]
    domains = api.identity.list_fault_domains(api.tenancy, second).data
    assert {one.availability_domain for one in domains} == {second}
    cluster = api.compute.create_compute_cluster(
        models.CreateComputeClusterDetails(compartment_id=api.tenancy, availability_domain=second, display_name="cc")
    ).data
    details = {
        "create_vnic_details": models.InstanceConfigurationCreateVnicDetails(subnet_id=subnet.id),
        "compute_cluster_id": cluster.id,
    }
    there = api.configuration(availability_domain=second, **details)
    instance = api.wait(controller.compute.get_instance, controller.launch(there, "far-e1").data.id, "RUNNING")
    assert instance.availability_domain == second
    for domain, listed in ((first, False), (second, True)):
        attachments = controller.compute.list_vnic_attachments(api.tenancy, availability_domain=domain).data
        assert (instance.id in {one.instance_id for one in attachments}) == listed
        volumes = api.compute.list_boot_volume_attachments(domain, api.tenancy).data
        assert (instance.id in {one.instance_id for one in volumes}) == listed
    with refused(400, "InvalidParameter") as said:
        controller.launch(api.configuration(availability_domain=first, **details), "far-e2")
    assert "availability domain" in said[0]


# reading


def test_listings_are_paged_and_filtered(api: Api, controller: Controller, subnet: Any) -> None:
    second = api.domain.replace("AD-1", "AD-2")
    for number in range(5):
        domain = second if number == 4 else api.domain
        api.compute.launch_instance(api.launch_details(subnet, f"page-{number}", availability_domain=domain))
    everyone = oci.pagination.list_call_get_all_results(controller.compute.list_instances, api.tenancy, limit=2).data
    mine = [one.display_name for one in everyone if one.display_name.startswith("page-")]
    assert mine == [f"page-{number}" for number in (4, 3, 2, 1, 0)], "newest first"
    first = controller.compute.list_instances(api.tenancy, limit=3)
    assert (len(first.data), first.has_next_page) == (3, True)
    by_name = oci.pagination.list_call_get_all_results(
        controller.compute.list_instances, api.tenancy, limit=3, sort_by="DISPLAYNAME", sort_order="ASC"
    ).data
    assert [one.display_name for one in by_name] == sorted(one.display_name for one in everyone)

    def names(**filters: Any) -> list[str]:
        return [one.display_name for one in controller.compute.list_instances(api.tenancy, **filters).data]

    assert names(display_name="page-2") == ["page-2"]
    assert "page-4" in names(availability_domain=second)
    assert "page-3" not in names(availability_domain=second)
    assert names(capacity_reservation_id="ocid1.capacityreservation.local..none") == []
    gone = next(one for one in everyone if one.display_name == "page-1")
    controller.compute.terminate_instance(gone.id)
    api.wait(controller.compute.get_instance, gone.id, "TERMINATED")
    assert "page-1" in names(lifecycle_state="TERMINATED")
    assert "page-1" not in names(lifecycle_state="RUNNING")
    with refused(404, "NotAuthorizedOrNotFound"):
        controller.compute.list_instances("ocid1.compartment.local..none")
    with refused(400, "InvalidParameter"):
        controller.compute.list_instances(api.tenancy, page="nonsense")


def test_a_maintenance_reboot_can_be_announced(api: Api, controller: Controller, subnet: Any) -> None:
    instance = api.launch(subnet, "worn")
    assert controller.compute.get_instance(instance.id).data.time_maintenance_reboot_due is None
    due = (datetime.now(UTC) + timedelta(hours=2)).replace(microsecond=0)
    api.compute.update_instance(instance.id, models.UpdateInstanceDetails(time_maintenance_reboot_due=due))
    assert controller.compute.get_instance(instance.id).data.time_maintenance_reboot_due == due


def test_the_console_is_captured_and_read_in_parts(api: Api, controller: Controller, subnet: Any) -> None:
    instance = api.launch(subnet, "chatty")
    details = models.CaptureConsoleHistoryDetails(instance_id=instance.id)
    history = controller.compute.capture_console_history(details).data
    assert history.instance_id == instance.id
    api.wait(controller.compute.get_console_history, history.id, "SUCCEEDED")
    expected = f"gpucluster-chatty-{instance.id[-12:]} is running\n"
    whole = controller.compute.get_console_history_content(history.id, length=1_000_000)
    assert whole.data == expected.encode()
    part = controller.compute.get_console_history_content(history.id, offset=2, length=5)
    assert part.data == expected[2:7].encode()
    assert part.headers["opc-bytes-remaining"] == str(len(expected) - 7)
    listed = controller.compute.list_console_histories(api.tenancy, instance_id=instance.id).data
    assert [one.id for one in listed] == [history.id]
    controller.compute.delete_console_history(history.id)
    assert controller.compute.list_console_histories(api.tenancy, instance_id=instance.id).data == []
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound"):
        missing = models.CaptureConsoleHistoryDetails(instance_id="ocid1.instance.local..none")
        controller.compute.capture_console_history(missing)


# images


def test_an_image_of_an_instance_keeps_its_tags_and_launches(
    api: Api, controller: Controller, subnet: Any, configuration: Any
) -> None:
    builder = api.launch(subnet, "gpu-bake")
    tags = {"gpucluster": "demo", "role": "image", "pool": "gpu", "fingerprint": "0123456789abcdef"}
    details = models.CreateImageDetails(
        compartment_id=api.tenancy, instance_id=builder.id, display_name="demo-gpu-1", freeform_tags=tags
    )
    reply = api.compute.create_image(details)
    assert reply.data.lifecycle_state == "PROVISIONING"
    image = api.wait(api.compute.get_image, reply.data.id, "AVAILABLE")
    assert image.freeform_tags == tags
    assert api.compute.get_instance(builder.id).data.lifecycle_state == "RUNNING"
    work = api.work.get_work_request(reply.headers["opc-work-request-id"]).data
    assert (work.operation_type, work.status) == ("CreateImage", "SUCCEEDED")
    listed = api.compute.list_images(api.tenancy, display_name="demo-gpu-1", lifecycle_state="AVAILABLE").data
    assert [one.id for one in listed] == [image.id]
    source = models.InstanceConfigurationInstanceSourceViaImageDetails(image_id=image.id)
    launched = controller.launch(configuration, "gpu-e5", source_details=source).data
    assert api.wait(controller.compute.get_instance, launched.id, "RUNNING").image_id == image.id
    api.compute.delete_image(image.id)
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound"):
        controller.launch(configuration, "gpu-e6", source_details=source)


def test_an_instance_shows_that_its_image_is_being_made(tmp_path: Path) -> None:
    with running(tmp_path / "cloud") as api:
        builder = api.launch(api.subnet(api.vcn()), "builder")
        machine = api.home / "null" / "machines" / f"gpucluster-builder-{builder.id[-12:]}"
        details = models.CreateImageDetails(compartment_id=api.tenancy, instance_id=builder.id)
        api.faults({"operation": "MakeImage", "until_removed": True})
        image = api.compute.create_image(details).data
        assert api.compute.get_instance(builder.id).data.lifecycle_state == "CREATING_IMAGE"
        with refused(409, "IncorrectState"):
            api.compute.instance_action(builder.id, "STOP")
        with refused(409, "IncorrectState"):
            api.compute.create_image(details)
        api.kill()
        api.start()
        assert api.compute.get_instance(builder.id).data.lifecycle_state == "CREATING_IMAGE"
        api.faults()
        api.wait(api.compute.get_image, image.id, "AVAILABLE")
        assert api.compute.get_instance(builder.id).data.lifecycle_state == "RUNNING"
        assert machine.exists()
