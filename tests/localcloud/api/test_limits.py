"""Limits, quotas, capacity reservations, platform configurations, and what prevents a delete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import oci
import pytest
from oci.core import models

from tests.localcloud.api_harness import GPU_SHAPE, SHAPE, Api, refused, running

OTHER_DOMAIN = "local:LOCAL-1-AD-2"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("limits")) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


@pytest.fixture(autouse=True)
def _large_again(api: Api) -> Iterator[None]:
    yield
    allow(api)
    api.faults()
    for instance in api.compute.list_instances(api.tenancy).data:
        if instance.lifecycle_state == "RUNNING":
            api.compute.terminate_instance(instance.id)
            api.wait(api.compute.get_instance, instance.id, "TERMINATED")


def allow(api: Api, limits: dict[str, Any] | None = None, quotas: dict[str, Any] | None = None) -> None:
    (api.home / "limits.json").write_text(json.dumps({"limits": limits or {}, "quotas": quotas or {}}))


def available(api: Api, name: str, domain: str | None) -> Any:
    more = {"availability_domain": domain} if domain else {}
    service = "vcn" if name == "vcn-count" else "compute"
    return api.limits.get_resource_availability(service, name, api.tenancy, **more).data


def test_limits_are_large_by_default_and_named_as_ocis(api: Api) -> None:
    services = [service.name for service in api.limits.list_services(api.tenancy).data]
    assert {"compute", "vcn", "filesystem", "block-storage", "bastion"} <= set(services)
    values = oci.pagination.list_call_get_all_results(api.limits.list_limit_values, api.tenancy, "compute").data
    assert {value.name for value in values} >= {"gpu4-count", "standard-e5-core-count", "standard-e5-memory-count"}
    assert {value.scope_type for value in values} == {"AD"}
    assert min(value.value for value in values) > 1000
    (definition,) = api.limits.list_limit_definitions(api.tenancy, service_name="compute", name="gpu4-count").data
    assert (definition.scope_type, definition.are_quotas_supported) == ("AD", True)
    (region,) = api.limits.list_limit_values(api.tenancy, "vcn").data
    assert (region.name, region.scope_type, region.availability_domain) == ("vcn-count", "REGION", None)
    shape = next(one for one in api.compute.list_shapes(api.tenancy).data if one.shape == SHAPE)
    assert shape.quota_names == ["standard-e5-core-count", "standard-e5-memory-count"]


def test_what_is_used_is_counted_in_the_units_of_the_limit(api: Api, subnet: Any) -> None:
    allow(api, {"gpu4-count": {api.domain: 16}, "standard-e5-memory-count": 100})
    api.launch(subnet, "gpu", shape=GPU_SHAPE, shape_config=None)
    api.launch(subnet, "vm")
    gpus = available(api, "gpu4-count", api.domain)
    assert (gpus.used, gpus.available, gpus.effective_quota_value) == (8, 8, None)
    assert available(api, "gpu4-count", OTHER_DOMAIN).used == 0
    memory = available(api, "standard-e5-memory-count", api.domain)
    assert (memory.used, memory.available) == (4, 96)
    assert available(api, "standard-e5-core-count", api.domain).used == 1
    assert available(api, "vcn-count", None).used == 1
    with refused(400, "InvalidParameter"):
        available(api, "gpu4-count", None)
    with refused(404, "NotAuthorizedOrNotFound"):
        available(api, "bm-nothing-count", api.domain)


def test_other_services_have_limits_too(api: Api) -> None:
    allow(api, {"vcn-count": 1})
    with refused(400, "LimitExceeded") as said:
        api.vcn("10.78.0.0/16", "other")
    assert "vcn-count" in said[0]


def reservation(api: Api, count: int = 1, **changes: Any) -> Any:
    config = models.InstanceReservationConfigDetails(instance_shape=GPU_SHAPE, reserved_count=count)
    values = {
        "compartment_id": api.tenancy,
        "availability_domain": api.domain,
        "instance_reservation_configs": [config],
        **changes,
    }
    details = models.CreateComputeCapacityReservationDetails(**values)
    return api.compute.create_compute_capacity_reservation(details).data


def test_a_launch_may_name_a_capacity_reservation(api: Api, subnet: Any) -> None:
    kept = reservation(api)
    values = {"shape": GPU_SHAPE, "shape_config": None, "capacity_reservation_id": kept.id}
    instance = api.launch(subnet, "kept", **values)
    assert instance.capacity_reservation_id == kept.id
    shown = api.compute.get_compute_capacity_reservation(kept.id).data
    assert (shown.reserved_instance_count, shown.used_instance_count) == (1, 1)
    with refused(500, "InternalError") as said:
        api.launch(subnet, "more", **values)
    assert said == ["Out of host capacity."]
    with refused(409, "Conflict"):
        api.compute.delete_compute_capacity_reservation(kept.id)
    with refused(400, "InvalidParameter"):
        api.launch(subnet, "vm", capacity_reservation_id=kept.id)
    elsewhere = reservation(api, availability_domain=OTHER_DOMAIN)
    with refused(400, "InvalidParameter"):
        api.launch(subnet, "there", **{**values, "capacity_reservation_id": elsewhere.id})
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound"):
        api.launch(subnet, "none", **{**values, "capacity_reservation_id": "ocid1.capacityreservation.local..no"})
    api.compute.delete_compute_capacity_reservation(elsewhere.id)
    assert [one.id for one in api.compute.list_compute_capacity_reservations(api.tenancy).data] == [kept.id]


def test_a_platform_configuration_must_be_the_shapes(api: Api, subnet: Any) -> None:
    gpu = {"shape": GPU_SHAPE, "shape_config": None}
    numa = models.AmdRomeBmGpuLaunchInstancePlatformConfig(
        numa_nodes_per_socket="NPS4", is_symmetric_multi_threading_enabled=False
    )
    shown = api.launch(subnet, "numa", **gpu, platform_config=numa).platform_config
    assert (shown.type, shown.numa_nodes_per_socket) == ("AMD_ROME_BM_GPU", "NPS4")
    assert shown.is_symmetric_multi_threading_enabled is False
    wrong = models.AmdMilanBmGpuLaunchInstancePlatformConfig()
    with refused(400, "InvalidParameter") as said:
        api.launch(subnet, "wrong", **gpu, platform_config=wrong)
    assert said == [f"platformConfig.type AMD_MILAN_BM_GPU is not supported by shape {GPU_SHAPE}"]
    with refused(400, "InvalidParameter"):
        api.configuration(platform_config=models.InstanceConfigurationAmdMilanBmGpuLaunchInstancePlatformConfig())
    with refused(400, "InvalidParameter"):
        api.launch(subnet, "vm", platform_config=numa)
    api.launch(subnet, "smt", platform_config=models.AmdVmLaunchInstancePlatformConfig())


def test_the_performance_of_a_boot_volume_is_kept_and_checked(api: Api, subnet: Any) -> None:
    def source(vpus: int) -> Any:
        return models.InstanceSourceViaImageDetails(image_id=api.image().id, boot_volume_vpus_per_gb=vpus)

    instance = api.launch(subnet, "fast", source_details=source(20))
    assert instance.source_details.boot_volume_vpus_per_gb == 20
    (attachment,) = api.compute.list_boot_volume_attachments(api.domain, api.tenancy, instance_id=instance.id).data
    assert api.block.get_boot_volume(attachment.boot_volume_id).data.vpus_per_gb == 20
    with refused(400, "InvalidParameter"):
        api.launch(subnet, "odd", source_details=source(15))


def test_the_vnic_of_a_mount_target_may_outlive_it(api: Api, subnet: Any) -> None:
    files = oci.file_storage.models
    private = api.subnet(api.network.get_vcn(subnet.vcn_id).data, "10.77.9.0/28", dns_label="files")
    target = api.files.create_mount_target(
        files.CreateMountTargetDetails(
            compartment_id=api.tenancy, availability_domain=api.domain, subnet_id=private.id, display_name="mt"
        )
    ).data
    with refused(409, "Conflict") as said:
        api.network.delete_subnet(private.id)
    assert said[0].startswith(f"The Subnet {private.id} references the VNIC ocid1.vnic.")
    api.faults({"operation": "ReleaseVnic", "display_name": "mt", "delay": 600})
    api.files.delete_mount_target(target.id)
    api.wait(api.files.get_mount_target, target.id, "DELETED")
    with refused(409, "Conflict") as said:
        api.network.delete_subnet(private.id)
    assert said[0].startswith(f"The Subnet {private.id} references the VNIC ocid1.vnic.")
    # A starting server finishes interrupted work.
    api.kill()
    api.start()
    api.network.delete_subnet(private.id)
