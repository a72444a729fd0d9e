"""Resources are found by the cluster's tag and removed; others are not touched. No containers."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.tagged_resources import TaggedResource, TaggedResources
from gpucluster.errors import CloudError
from gpucluster.events import Event, Sink, ignore
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
    orphans = TaggedResources(CloudAccess(config, api.endpoint, api.tenancy), "demo", ignore)
    found = orphans.find()
    assert {orphan.kind for orphan in found} == {
        "vcn", "route_table", "subnet", "internet_gateway", "compute_cluster", "file_system", "mount_target",
        "instance", "policy", "dynamic_group", "bastion",
    }  # fmt: skip
    orphans.remove(found)
    assert orphans.find() == ()
    assert api.network.get_vcn(others.id).data.lifecycle_state == "AVAILABLE"


def _resources(api: Api, keep: AbstractSet[str] = frozenset(), on_event: Sink = ignore) -> TaggedResources:
    config = oci.config.from_file(str(api.home / "credentials" / "config"))
    return TaggedResources(CloudAccess(config, api.endpoint, api.tenancy), "demo", on_event, keep=keep)


def _network(api: Api, common: dict[str, Any]) -> tuple[Any, Any]:
    """A VCN and a subnet in it."""
    core = oci.core.models
    vcn = api.network.create_vcn(core.CreateVcnDetails(cidr_blocks=["10.66.0.0/16"], **common)).data
    subnet = core.CreateSubnetDetails(vcn_id=vcn.id, cidr_block="10.66.0.0/24", **common)
    return vcn, api.network.create_subnet(subnet).data


def test_a_cluster_of_the_same_name_in_another_compartment_keeps_its_group(api: Api) -> None:
    def group(name: str, tags: dict[str, str]) -> None:
        details = oci.identity.models.CreateDynamicGroupDetails(
            compartment_id=api.tenancy,
            name=name,
            description="-",
            matching_rule="instance.id = 'x'",
            freeform_tags=tags,
        )
        api.identity.create_dynamic_group(details)

    group("ours", {**TAG, "gpucluster-compartment": api.tenancy})
    group("theirs", {**TAG, "gpucluster-compartment": "ocid1.compartment.local..theirs"})
    group("of-an-earlier-release", TAG)
    config = oci.config.from_file(str(api.home / "credentials" / "config"))
    found = TaggedResources(CloudAccess(config, api.endpoint, api.tenancy), "demo", ignore).find()
    assert {resource.name for resource in found} == {"ours", "of-an-earlier-release"}


def test_what_the_file_names_is_never_touched_whatever_its_tags(api: Api) -> None:
    storage = oci.file_storage.models
    common = {"compartment_id": api.tenancy, "freeform_tags": TAG}
    vcn, subnet = _network(api, common)
    files = {"availability_domain": api.domain, **common}
    kept = api.files.create_file_system(storage.CreateFileSystemDetails(**files)).data
    target = api.files.create_mount_target(storage.CreateMountTargetDetails(subnet_id=subnet.id, **files)).data

    orphans = _resources(api, keep={vcn.id, subnet.id, kept.id})
    found = orphans.find()
    assert [orphan.id for orphan in found] == [target.id]
    orphans.remove(found)
    assert api.network.get_vcn(vcn.id).data.lifecycle_state == "AVAILABLE"
    assert api.network.get_subnet(subnet.id).data.lifecycle_state == "AVAILABLE"
    assert api.files.get_file_system(kept.id).data.lifecycle_state == "ACTIVE"


def test_exports_belong_to_their_mount_target_and_members_to_their_network(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpucluster.cloud.tagged_resources._IN_USE", 1.0)
    core, storage = oci.core.models, oci.file_storage.models
    common = {"compartment_id": api.tenancy, "freeform_tags": {**TAG, "pool": "gpu"}}
    _vcn, subnet = _network(api, common)
    files = {"availability_domain": api.domain, **common}
    file_system = api.files.create_file_system(storage.CreateFileSystemDetails(**files)).data
    target = api.files.create_mount_target(storage.CreateMountTargetDetails(subnet_id=subnet.id, **files)).data
    export = storage.CreateExportDetails(
        export_set_id=target.export_set_id, file_system_id=file_system.id, path="/mnt/home"
    )
    export_id = api.files.create_export(export).data.id
    launch = core.InstanceConfigurationLaunchInstanceDetails(
        availability_domain=api.domain,
        compartment_id=api.tenancy,
        shape="BM.GPU4.8",
        freeform_tags=common["freeform_tags"],
        source_details=core.InstanceConfigurationInstanceSourceViaImageDetails(
            image_id=api.compute.list_images(api.tenancy).data[0].id
        ),
        create_vnic_details=core.InstanceConfigurationCreateVnicDetails(subnet_id=subnet.id),
    )
    management = api.client("core.ComputeManagementClient")
    configuration = management.create_instance_configuration(
        core.CreateInstanceConfigurationDetails(
            display_name="demo-gpu",
            instance_details=core.ComputeInstanceDetails(launch_details=launch),
            **common,
        )
    ).data
    pool = core.CreateClusterNetworkInstancePoolDetails(instance_configuration_id=configuration.id, size=1)
    placement = core.ClusterNetworkPlacementConfigurationDetails(
        availability_domain=api.domain, primary_subnet_id=subnet.id
    )
    network = management.create_cluster_network(
        core.CreateClusterNetworkDetails(
            display_name="demo-gpu", instance_pools=[pool], placement_configuration=placement, **common
        )
    ).data
    api.wait(management.get_cluster_network, network.id, "RUNNING")

    resources = _resources(api)
    found = {each.kind: each for each in resources.find()}
    assert (found["export"].id, found["export"].name) == (export_id, "/mnt/home")
    assert found["export"].uses == {target.id, file_system.id}
    assert found["instance"].launched_by_others
    assert found["instance"].pool == "gpu"
    assert configuration.id in found["cluster_network"].uses
    assert resources.image_of(configuration.id) == found["instance"].image_id
    # The subnet is still used by the members and the mount target.
    used = [each for each in resources.find() if each.kind == "instance_configuration"]
    assert resources.remove(used, leave_used=True) == tuple(used)
    resources.remove(resources.find())
    assert resources.find() == ()


def test_what_is_gone_or_ends_by_itself_is_only_waited_for(api: Api) -> None:
    """A listing lags behind: a resource in it may be terminating, or not be there at all any more."""
    core = oci.core.models
    common = {"compartment_id": api.tenancy, "freeform_tags": TAG}
    _vcn, subnet = _network(api, common)
    image = api.compute.list_images(api.tenancy).data[0]
    instance = api.compute.launch_instance(
        core.LaunchInstanceDetails(
            availability_domain=api.domain,
            shape="BM.GPU4.8",
            source_details=core.InstanceSourceViaImageDetails(image_id=image.id),
            create_vnic_details=core.CreateVnicDetails(subnet_id=subnet.id),
            **common,
        )
    ).data

    def let_it_end(event: Event) -> None:
        if event.name.startswith("instance ") and event.status == "deleting":
            api.faults()

    resources = _resources(api, on_event=let_it_end)
    found = resources.find()
    api.faults({"operation": "EndInstance", "until_removed": True})
    api.compute.terminate_instance(instance.id)
    listed = {each.kind: each for each in resources.find()}
    assert listed["instance"].ending
    ghost = TaggedResource("nat_gateway", "ocid1.natgateway.local..gone", "gone")
    resources.remove([*found, ghost])
    assert resources.find() == ()


def test_what_the_operator_may_not_list_was_not_made_by_the_operator(api: Api) -> None:
    (api.home / "faults.json").write_text('[{"operation": "ListBastions", "status": 404}]')
    assert _resources(api).find() == ()
    (api.home / "faults.json").write_text('[{"operation": "ListVcns", "status": 404}]')
    with pytest.raises(CloudError, match="listing the resources of the cluster"):
        _resources(api).find()
