"""File storage: resources with the real SDK, and the files on disk that instances mount."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.file_storage import models

from tests.localcloud.api_harness import Api, refused, running


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("files"))) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


def file_system(api: Api) -> Any:
    details = models.CreateFileSystemDetails(
        compartment_id=api.tenancy, availability_domain=api.domain, display_name="home"
    )
    return api.files.create_file_system(details).data


def mount_target(api: Api, subnet: Any) -> Any:
    details = models.CreateMountTargetDetails(
        compartment_id=api.tenancy, availability_domain=api.domain, subnet_id=subnet.id
    )
    return api.files.create_mount_target(details).data


def export(api: Api, target: Any, system: Any, path: str = "/mnt/home") -> Any:
    details = models.CreateExportDetails(export_set_id=target.export_set_id, file_system_id=system.id, path=path)
    return api.files.create_export(details).data


def test_an_export_leads_the_instances_of_the_vcn_to_the_directory(api: Api, subnet: Any) -> None:
    system, target = file_system(api), mount_target(api, subnet)
    assert (system.lifecycle_state, target.lifecycle_state) == ("ACTIVE", "ACTIVE")
    first = api.home / "filesystems" / system.id[-12:]
    assert first.stat().st_mode & 0o777 == 0o755
    (first / "kept").write_text("yes")

    made = export(api, target, system)
    assert made.export_options[0].source == "0.0.0.0/0"
    assert made.export_options[0].identity_squash == "NONE"
    address = api.network.get_private_ip(target.private_ip_ids[0]).data.ip_address
    shared = api.home / "exports" / subnet.vcn_id[-12:]
    assert shared.stat().st_mode & 0o777 == 0o700
    index = json.loads((shared / "index.json").read_text())
    assert index == {address: {"/mnt/home": system.id[-12:]}}
    for access, paths in (("READ_ONLY", {address: ["/mnt/home"]}), ("READ_WRITE", {})):
        made.export_options[0].access = access
        api.files.update_export(made.id, models.UpdateExportDetails(export_options=made.export_options))
        assert json.loads((shared / "read-only.json").read_text()) == paths
    assert (shared / system.id[-12:] / "kept").read_text() == "yes"

    with refused(409, "Conflict"):
        api.files.delete_file_system(system.id)
    with refused(409, "Conflict"):
        api.network.delete_subnet(subnet.id)
    assert [one.id for one in api.files.list_exports(file_system_id=system.id).data] == [made.id]
    assert api.files.get_export_set(target.export_set_id).data.vcn_id == subnet.vcn_id

    api.files.delete_export(made.id)
    assert json.loads((shared / "index.json").read_text()) == {}
    assert (shared / system.id[-12:] / "kept").exists()
    api.files.delete_mount_target(target.id)
    assert api.files.get_mount_target(target.id).data.lifecycle_state == "DELETED"
    api.files.delete_file_system(system.id)
    assert not (shared / system.id[-12:]).exists()


def test_paths_do_not_contain_one_another(api: Api, subnet: Any) -> None:
    target, system, other = mount_target(api, subnet), file_system(api), file_system(api)
    export(api, target, system, "/example")
    for path in ("/example", "/example/path", "/"):
        with refused(409, "Conflict"):
            export(api, target, other, path)
    with refused(409, "Conflict"):
        export(api, target, system, "/again")
    for path in ("relative", "/a/../b", "/a/"):
        with refused(400, "InvalidParameter"):
            export(api, target, other, path)
    export(api, target, other, "/example1")
    api.files.delete_mount_target(target.id)
    assert api.files.list_exports(export_set_id=target.export_set_id).data == []
    for one in (system, other):
        api.files.delete_file_system(one.id)


def test_a_file_system_is_exported_in_one_vcn_at_a_time(api: Api, subnet: Any) -> None:
    second = api.subnet(api.vcn("10.99.0.0/16", "second"), "10.99.0.0/24")
    here, there, system = mount_target(api, subnet), mount_target(api, second), file_system(api)
    made = export(api, here, system)
    (api.home / "exports" / subnet.vcn_id[-12:] / system.id[-12:] / "data").write_text("moved along")
    with refused(400, "LimitExceeded"):
        export(api, there, system)
    api.files.delete_export(made.id)
    export(api, there, system)
    assert (api.home / "exports" / second.vcn_id[-12:] / system.id[-12:] / "data").read_text() == "moved along"


def test_a_network_may_be_deleted_before_the_file_system_that_it_exported(api: Api) -> None:
    subnet = api.subnet(api.vcn("10.98.0.0/16", "short"), "10.98.0.0/24")
    target, system = mount_target(api, subnet), file_system(api)
    export(api, target, system)
    api.files.delete_mount_target(target.id)
    api.network.delete_subnet(subnet.id)
    api.network.delete_vcn(subnet.vcn_id)
    exported = api.home / "exports" / subnet.vcn_id[-12:]
    assert exported.exists()
    api.files.delete_file_system(system.id)
    assert not exported.exists()


def test_what_file_storage_refuses(api: Api, subnet: Any) -> None:
    with refused(400, "InvalidParameter"):
        details = models.CreateFileSystemDetails(compartment_id=api.tenancy, availability_domain="elsewhere")
        api.files.create_file_system(details)
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound"):
        api.files.create_export(
            models.CreateExportDetails(export_set_id="ocid1.exportset.local..x", file_system_id="y", path="/p")
        )
    with refused(400, "MissingParameter"):
        api.files.list_exports()


def test_throughput_is_raised_at_once_and_lowered_at_the_end_of_the_billing_cycle(api: Api, subnet: Any) -> None:
    """Created with 1 Gbps (SDK: CreateMountTargetDetails); 20, 40 or 80 afterwards (docs: Updating Mount Target
    Performance)."""
    details = models.CreateMountTargetDetails(
        compartment_id=api.tenancy, availability_domain=api.domain, subnet_id=subnet.id, requested_throughput=20
    )
    with refused(400, "InvalidParameter"):
        api.files.create_mount_target(details)
    target = mount_target(api, subnet)
    seen = api.files.get_mount_target(target.id).data
    assert (seen.requested_throughput, seen.observed_throughput, seen.reserved_storage_capacity) == (1, 1, 0)
    assert seen.time_billing_cycle_end is None

    def upgrade(gbps: int) -> Any:
        wanted = models.UpgradeShapeMountTargetDetails(requested_throughput=gbps)
        return api.files.upgrade_shape_mount_target(target.id, wanted).data

    def downgrade(gbps: int) -> Any:
        wanted = models.ScheduleDowngradeShapeMountTargetDetails(requested_throughput=gbps)
        return api.files.schedule_downgrade_shape_mount_target(target.id, wanted).data

    with refused(400, "InvalidParameter"):
        upgrade(10)
    with refused(400, "InvalidParameter"):
        downgrade(1)
    fast = upgrade(40)
    assert (fast.requested_throughput, fast.observed_throughput, fast.reserved_storage_capacity) == (40, 40, 40_000)
    assert fast.time_billing_cycle_end > fast.time_created
    with refused(400, "InvalidParameter"):
        upgrade(20)
    with refused(409, "Conflict"):
        api.files.cancel_downgrade_shape_mount_target(target.id)
    slow = downgrade(1)
    assert (slow.requested_throughput, slow.observed_throughput) == (1, 40)
    back = api.files.cancel_downgrade_shape_mount_target(target.id).data
    assert (back.requested_throughput, back.observed_throughput) == (40, 40)
