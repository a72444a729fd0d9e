"""Leaked resources of a killed run are found by their tag and removed; others are not touched. No containers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import oci
import pytest

from gpucluster.cloud.client import Access
from gpucluster.cloud.leaked_resources import LeakedResources
from gpucluster.events import ignore
from tests.localcloud.api_harness import Api, running

pytestmark = pytest.mark.slow

TAG = {"gpucluster": "demo"}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running(tmp_path / "cloud") as api:
        yield api


def test_only_what_carries_the_tag_goes_and_all_of_it(api: Api) -> None:
    core, storage = oci.core.models, oci.file_storage.models
    common = {"compartment_id": api.tenancy, "freeform_tags": TAG}
    vcn = api.network.create_vcn(core.CreateVcnDetails(cidr_blocks=["10.66.0.0/16"], **common)).data
    table = api.network.create_route_table(core.CreateRouteTableDetails(vcn_id=vcn.id, route_rules=[], **common)).data
    subnet = api.network.create_subnet(
        core.CreateSubnetDetails(vcn_id=vcn.id, cidr_block="10.66.0.0/24", route_table_id=table.id, **common)
    ).data
    api.network.create_internet_gateway(core.CreateInternetGatewayDetails(vcn_id=vcn.id, is_enabled=True, **common))
    api.compute.create_compute_cluster(
        core.CreateComputeClusterDetails(availability_domain=api.domain, display_name="cc", **common)
    )
    files = {"availability_domain": api.domain, **common}
    api.files.create_file_system(storage.CreateFileSystemDetails(**files))
    api.files.create_mount_target(storage.CreateMountTargetDetails(subnet_id=subnet.id, **files))
    image = api.compute.list_images(api.tenancy).data[0]
    source = core.InstanceSourceViaImageDetails(image_id=image.id)
    api.compute.launch_instance(
        core.LaunchInstanceDetails(
            shape="BM.GPU4.8",
            source_details=source,
            create_vnic_details=core.CreateVnicDetails(subnet_id=subnet.id),
            **files,
        )
    )
    identity = api.identity
    named = {"compartment_id": api.tenancy, "name": "demo", "description": "of demo", "freeform_tags": TAG}
    models = oci.identity.models
    identity.create_dynamic_group(models.CreateDynamicGroupDetails(matching_rule="instance.id = 'x'", **named))
    statements = ["Allow dynamic-group demo to read instances in tenancy"]
    identity.create_policy(models.CreatePolicyDetails(statements=statements, **named))
    bastion = oci.bastion.models.CreateBastionDetails(
        bastion_type="STANDARD", target_subnet_id=subnet.id, name="demo", **common
    )
    api.client("bastion.BastionClient").create_bastion(bastion)
    others = api.network.create_vcn(
        core.CreateVcnDetails(
            cidr_blocks=["10.67.0.0/16"], compartment_id=api.tenancy, freeform_tags={"gpucluster": "other"}
        )
    ).data

    config = oci.config.from_file(str(api.home / "credentials" / "config"))
    orphans = LeakedResources(Access(config, api.endpoint, api.tenancy), "demo", ignore)
    found = orphans.find()
    assert {orphan.kind for orphan in found} == {
        "vcn", "route_table", "subnet", "internet_gateway", "compute_cluster", "file_system", "mount_target",
        "instance", "policy", "dynamic_group", "bastion",
    }  # fmt: skip
    assert [(orphan.state, orphan.elastic) for orphan in found if orphan.kind == "instance"] == [("RUNNING", False)]
    orphans.remove(found)
    assert orphans.find() == ()
    assert api.network.get_vcn(others.id).data.lifecycle_state == "AVAILABLE"


def test_what_the_file_names_is_never_touched_whatever_its_tags(api: Api) -> None:
    core, storage = oci.core.models, oci.file_storage.models
    common = {"compartment_id": api.tenancy, "freeform_tags": TAG}
    vcn = api.network.create_vcn(core.CreateVcnDetails(cidr_blocks=["10.66.0.0/16"], **common)).data
    subnet = api.network.create_subnet(
        core.CreateSubnetDetails(vcn_id=vcn.id, cidr_block="10.66.0.0/24", **common)
    ).data
    files = {"availability_domain": api.domain, **common}
    kept = api.files.create_file_system(storage.CreateFileSystemDetails(**files)).data
    target = api.files.create_mount_target(storage.CreateMountTargetDetails(subnet_id=subnet.id, **files)).data

    config = oci.config.from_file(str(api.home / "credentials" / "config"))
    access = Access(config, api.endpoint, api.tenancy)
    orphans = LeakedResources(access, "demo", ignore, keep={vcn.id, subnet.id, kept.id})
    found = orphans.find()
    assert [orphan.id for orphan in found] == [target.id]
    orphans.remove(found)
    assert api.network.get_vcn(vcn.id).data.lifecycle_state == "AVAILABLE"
    assert api.network.get_subnet(subnet.id).data.lifecycle_state == "AVAILABLE"
    assert api.files.get_file_system(kept.id).data.lifecycle_state == "ACTIVE"
