"""Preemptible instances: what OCI refuses (docs: "Preemptible Instances"), and capacity that is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.core import models

from gpucluster.localcloud import control
from gpucluster.localcloud.compute import lifecycle
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.server.home import open_authority, open_cloud
from gpucluster.localcloud.state.faults import Effect
from tests.localcloud.api_harness import GPU_SHAPE, Api, refused, running
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

CONFIG = models.PreemptibleInstanceConfigDetails(
    preemption_action=models.TerminatePreemptionAction(type="TERMINATE", preserve_boot_volume=False)
)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("preemptible") / "cloud") as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


@pytest.fixture(scope="module")
def instance(api: Api, subnet: Any) -> Any:
    return api.launch(subnet, "cheap", preemptible_instance_config=CONFIG)


def test_it_says_what_becomes_of_it(instance: Any) -> None:
    action = instance.preemptible_instance_config.preemption_action
    assert (action.type, action.preserve_boot_volume) == ("TERMINATE", False)


@pytest.mark.parametrize("action", ["STOP", "SOFTSTOP", "RESET", "SOFTRESET", "START"])
def test_it_is_neither_stopped_nor_rebooted(api: Api, instance: Any, action: str) -> None:
    with refused(400, "InvalidParameter"):
        api.compute.instance_action(instance.id, action)
    assert api.compute.get_instance(instance.id).data.lifecycle_state == "RUNNING"


def test_only_its_name_and_tags_are_changed(api: Api, instance: Any) -> None:
    size = models.UpdateInstanceShapeConfigDetails(ocpus=2, memory_in_gbs=8)
    source = models.UpdateInstanceSourceViaImageDetails(image_id=api.image().id)
    for change in ({"shape_config": size}, {"source_details": source}, {"metadata": {"a": "b"}}):
        with refused(400, "InvalidParameter"):
            api.compute.update_instance(instance.id, models.UpdateInstanceDetails(**change))
    named = models.UpdateInstanceDetails(display_name="other", freeform_tags={"a": "b"})
    assert api.compute.update_instance(instance.id, named).data.display_name == "other"


def test_other_capacity_and_bare_metal_are_refused(api: Api, subnet: Any) -> None:
    for more in (
        {"shape": GPU_SHAPE, "shape_config": None},
        {"capacity_reservation_id": "ocid1.capacityreservation.local..one"},
        {"dedicated_vm_host_id": "ocid1.dedicatedvmhost.local..one"},
    ):
        with refused(400, "InvalidParameter"):
            api.launch(subnet, "no", preemptible_instance_config=CONFIG, **more)


def test_an_instance_configuration_is_not_for_them(api: Api) -> None:
    with refused(400, "InvalidParameter"):
        api.configuration(preemptible_instance_config=CONFIG)


def test_its_capacity_is_taken_back(api: Api, subnet: Any) -> None:
    api.faults({"operation": "ReclaimCapacity", "until_removed": True})
    try:
        taken = api.launch(subnet, "taken", preemptible_instance_config=CONFIG)
        kept = api.launch(subnet, "kept")
    finally:
        api.faults()
    api.wait(api.compute.get_instance, taken.id, "TERMINATED")
    assert api.compute.get_instance(kept.id).data.lifecycle_state == "RUNNING"
    wait_for(
        "its boot volume is gone as well",
        lambda: (
            not [
                each
                for each in api.compute.list_boot_volume_attachments(api.domain, api.tenancy, instance_id=taken.id).data
                if each.lifecycle_state == "ATTACHED"
            ]
        ),
    )


def test_the_fault_may_be_removed_as_soon_as_the_instance_runs(tmp_path: Path) -> None:
    with running(tmp_path / "cloud") as api:
        api.faults({"operation": "BootInstance", "until_removed": True})
        details = api.launch_details(api.subnet(api.vcn()), "taken", preemptible_instance_config=CONFIG)
        own = api.compute.launch_instance(details).data.id
        control.stop(api.home)
        api.faults({"operation": "ReclaimCapacity", "until_removed": True})
        cloud = open_cloud(api.home, NullEngine(api.home / "null"), open_authority(api.home))
        end_work = cloud.end_work

        def seen(*given: Any, **more: Any) -> None:
            end_work(*given, **more)
            api.faults()

        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(cloud, "end_work", seen)
                assert lifecycle.launch(cloud, own, Effect())
            wait_for("its capacity is taken back", lambda: cloud.get("instance", own).state == "TERMINATED")
        finally:
            cloud.close()
