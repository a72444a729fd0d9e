"""Instances and the resources created with them, with the real SDK and an engine that launches nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest
from oci.core import models

from tests.localcloud.api_harness import GPU_SHAPE, Api, refused, running


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("instances"))) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


@pytest.fixture(scope="module")
def private(api: Api, subnet: Any) -> Any:
    vcn = api.network.get_vcn(subnet.vcn_id).data
    return api.subnet(vcn, "10.77.1.0/24", dns_label="prv", prohibit_public_ip_on_vnic=True)


def vnic_of(api: Api, instance: Any) -> Any:
    attachment = api.compute.list_vnic_attachments(api.tenancy, instance_id=instance.id).data[0]
    return api.network.get_vnic(attachment.vnic_id).data


def test_the_life_of_an_instance(api: Api, subnet: Any) -> None:
    reply = api.compute.launch_instance(
        api.launch_details(subnet, "life", metadata={"ssh_authorized_keys": "ssh-ed25519 AAAA a"})
    )
    assert reply.data.lifecycle_state == "PROVISIONING"
    instance = api.wait(api.compute.get_instance, reply.data.id, "RUNNING")
    assert api.work.get_work_request(reply.headers["opc-work-request-id"]).data.status == "SUCCEEDED"
    assert (instance.shape_config.ocpus, instance.shape_config.memory_in_gbs) == (1.0, 4.0)
    assert instance.source_details.image_id == instance.image_id
    assert instance.extended_metadata == {}
    vnic = vnic_of(api, instance)
    assert vnic.is_primary
    assert vnic.hostname_label == "life"
    assert vnic.private_ip.startswith("10.77.0.")
    assert vnic.public_ip == vnic.private_ip  # the host is on the VCN's bridge
    attachment = api.compute.list_boot_volume_attachments(
        instance.availability_domain, api.tenancy, instance_id=instance.id
    )
    volume = api.block.get_boot_volume(attachment.data[0].boot_volume_id).data
    assert (volume.lifecycle_state, volume.size_in_gbs) == ("AVAILABLE", 50)
    assert api.network.list_ipv6s(vnic_id=vnic.id).data == []

    assert api.compute.terminate_instance(instance.id).status == 204
    api.wait(api.compute.get_instance, instance.id, "TERMINATED")
    assert instance.id in [one.id for one in api.compute.list_instances(api.tenancy).data]
    assert api.block.get_boot_volume(volume.id).data.lifecycle_state == "TERMINATED"
    detached = api.compute.list_vnic_attachments(api.tenancy, instance_id=instance.id).data
    assert [one.lifecycle_state for one in detached] == ["DETACHED"]
    assert api.network.list_private_ips(subnet_id=subnet.id, ip_address=vnic.private_ip).data == []
    with refused(404, "NotAuthorizedOrNotFound"):
        api.compute.terminate_instance(instance.id)


def test_the_engine_gets_names_address_and_label(api: Api, private: Any) -> None:
    instance = api.launch(private, "Node-7")
    name = f"gpucluster-node-7-{instance.id[-12:]}"
    record = json.loads((api.home / "null" / "machines" / name).read_text())
    assert record == {
        "state": "running",
        "ocid": instance.id,
        "ip": vnic_of(api, instance).private_ip,
        "hostname": "node-7",
        "network": f"gpucluster-{private.vcn_id[-12:]}",
    }
    assert vnic_of(api, instance).public_ip is None
    api.compute.terminate_instance(instance.id)
    api.wait(api.compute.get_instance, instance.id, "TERMINATED")
    assert not (api.home / "null" / "machines" / name).exists()


def test_addresses_are_the_lowest_free_ones_and_come_back(api: Api, subnet: Any) -> None:
    vcn = api.network.get_vcn(subnet.vcn_id).data
    empty = api.subnet(vcn, "10.77.2.0/24", dns_label="low")
    first, second = api.launch(empty, "low1"), api.launch(empty, "low2")
    assert vnic_of(api, first).private_ip == "10.77.2.2"
    assert vnic_of(api, second).private_ip == "10.77.2.3"
    api.compute.terminate_instance(first.id)
    api.wait(api.compute.get_instance, first.id, "TERMINATED")
    third = api.launch(empty, "low3")
    assert vnic_of(api, third).private_ip == "10.77.2.2"
    fixed = api.launch(empty, "fixed", vnic={"private_ip": "10.77.2.99"})
    assert vnic_of(api, fixed).private_ip == "10.77.2.99"
    for wrong in ("10.77.2.99", "10.77.2.1", "10.77.2.255", "10.77.3.5", "x"):
        with refused(400, "InvalidParameter"):
            api.launch(empty, "wrong", vnic={"private_ip": wrong})


def test_a_host_name_is_taken_once(api: Api, private: Any) -> None:
    api.launch(private, "twin")
    with refused(400, "InvalidParameter") as said:
        api.launch(private, "other", vnic={"hostname_label": "TWIN"})
    assert "already in use" in said[0]


def test_a_subnet_without_public_addresses_gives_none(api: Api, private: Any) -> None:
    with refused(400, "InvalidParameter"):
        api.launch(private, "pub", vnic={"assign_public_ip": True})


def test_what_a_launch_refuses(api: Api, subnet: Any) -> None:
    with refused(404, "NotAuthorizedOrNotFound"):
        api.launch(subnet, "bad", shape="BM.Nothing.1")
    with refused(400, "InvalidParameter"):
        api.launch(subnet, "bad", shape_config=None)
    with refused(400, "InvalidParameter"):
        api.launch(subnet, "bad", availability_domain="other:AD-1")
    with refused(400, "InvalidParameter"):
        api.launch(subnet, "bad", metadata={"user_data": "no base64!"})
    with refused(400, "InvalidParameter"):
        api.launch(subnet, "bad", freeform_tags={f"tag-{number}": "x" for number in range(11)})
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound"):
        api.launch(subnet, "bad", source_details=models.InstanceSourceViaImageDetails(image_id="ocid1.image.local..no"))
    assert api.compute.list_instances(api.tenancy, display_name="bad").data == []


def test_a_fixed_shape_shows_its_hardware(api: Api, private: Any) -> None:
    encoded = base64.b64encode(b"#cloud-config\n").decode()
    gpu = api.launch(private, "gpu", shape=GPU_SHAPE, shape_config=None, metadata={"user_data": encoded})
    assert gpu.shape_config.gpus == 8
    assert gpu.metadata == {"user_data": encoded}


def test_power_actions(api: Api, private: Any) -> None:
    instance = api.launch(private, "power")
    with refused(409, "IncorrectState"):
        api.compute.instance_action(instance.id, "START")
    assert api.compute.instance_action(instance.id, "STOP").data.lifecycle_state == "STOPPING"
    api.wait(api.compute.get_instance, instance.id, "STOPPED")
    api.compute.instance_action(instance.id, "START")
    api.wait(api.compute.get_instance, instance.id, "RUNNING")
    api.compute.instance_action(instance.id, "SOFTRESET")
    api.wait(api.compute.get_instance, instance.id, "RUNNING")
    with refused(400, "InvalidParameter"):
        api.compute.instance_action(instance.id, "EXPLODE")


def test_an_update_merges_and_keeps_what_the_first_boot_read(api: Api, private: Any) -> None:
    instance = api.launch(private, "upd", metadata={"ssh_authorized_keys": "k", "a": "1"})
    agent = models.UpdateInstanceAgentConfigDetails(is_monitoring_disabled=True)
    details = models.UpdateInstanceDetails(
        display_name="renamed",
        freeform_tags={"x": "y"},
        agent_config=agent,
        metadata={"ssh_authorized_keys": "k", "b": "2"},
    )
    changed = api.compute.update_instance(instance.id, details).data
    assert (changed.display_name, changed.freeform_tags) == ("renamed", {"x": "y"})
    assert changed.agent_config.is_monitoring_disabled is True
    assert changed.agent_config.is_management_disabled is False
    assert changed.metadata == {"ssh_authorized_keys": "k", "b": "2"}
    with refused(400, "InvalidParameter"):
        api.compute.update_instance(
            instance.id, models.UpdateInstanceDetails(metadata={"ssh_authorized_keys": "other"})
        )


def test_a_boot_volume_can_be_kept(api: Api, private: Any) -> None:
    instance = api.launch(private, "keeper")
    found = api.compute.list_boot_volume_attachments(instance.availability_domain, api.tenancy, instance_id=instance.id)
    volume = found.data[0].boot_volume_id
    with refused(409, "IncorrectState"):
        api.block.delete_boot_volume(volume)
    api.compute.terminate_instance(instance.id, preserve_boot_volume=True)
    api.wait(api.compute.get_instance, instance.id, "TERMINATED")
    assert api.block.get_boot_volume(volume).data.lifecycle_state == "AVAILABLE"
    api.block.delete_boot_volume(volume)
    assert api.block.get_boot_volume(volume).data.lifecycle_state == "TERMINATED"


def test_lists_filter(api: Api, private: Any) -> None:
    domain = api.domain
    cluster = api.compute.create_compute_cluster(
        models.CreateComputeClusterDetails(compartment_id=api.tenancy, availability_domain=domain, display_name="cc")
    ).data
    assert cluster.lifecycle_state == "ACTIVE"
    clusters = oci.pagination.list_call_get_all_results(api.compute.list_compute_clusters, api.tenancy, limit=1).data
    assert [one.id for one in clusters] == [cluster.id]
    inside = api.launch(private, "inside", shape=GPU_SHAPE, shape_config=None, compute_cluster_id=cluster.id)
    listed = api.compute.list_instances(api.tenancy, compute_cluster_id=cluster.id).data
    assert [one.id for one in listed] == [inside.id]
    running_ones = api.compute.list_instances(api.tenancy, lifecycle_state="RUNNING", display_name="inside").data
    assert [one.id for one in running_ones] == [inside.id]
    with refused(409, "Conflict"):
        api.compute.delete_compute_cluster(cluster.id)
    api.compute.terminate_instance(inside.id)
    api.wait(api.compute.get_instance, inside.id, "TERMINATED")
    api.compute.delete_compute_cluster(cluster.id)
    assert api.compute.get_compute_cluster(cluster.id).data.lifecycle_state == "DELETED"


def test_an_occupied_subnet_stays(api: Api, private: Any) -> None:
    api.launch(private, "holder")
    with refused(409, "Conflict") as said:
        api.network.delete_subnet(private.id)
    assert "references the VNIC" in said[0]


def test_images(api: Api, private: Any) -> None:
    platform = api.image()
    assert (platform.operating_system, platform.operating_system_version) == ("Debian", "13")
    assert platform.compartment_id is None
    assert api.compute.list_images(api.tenancy, shape="Nothing.1").data == []
    shapes = api.compute.list_image_shape_compatibility_entries(platform.id, limit=1000).data
    assert GPU_SHAPE in [one.shape for one in shapes]
    with refused(409, "IncorrectState"):
        api.compute.delete_image(platform.id)

    instance = api.launch(private, "golden")
    details = models.CreateImageDetails(compartment_id=api.tenancy, instance_id=instance.id, display_name="baked")
    reply = api.compute.create_image(details)
    image = api.wait(api.compute.get_image, reply.data.id, "AVAILABLE")
    assert image.base_image_id == platform.id
    clone = api.launch(private, "clone", source_details=models.InstanceSourceViaImageDetails(image_id=image.id))
    commit = api.home / "null" / "images" / f"localhost_gpucluster_custom:{image.id[-12:]}"
    assert commit.exists()
    api.compute.delete_image(image.id)
    assert commit.exists(), "an instance still runs from it"
    api.compute.terminate_instance(clone.id)
    api.wait(api.compute.get_instance, clone.id, "TERMINATED")
    assert not commit.exists()
    newest = api.compute.list_images(
        api.tenancy, operating_system="Debian", operating_system_version="13", sort_by="TIMECREATED"
    ).data
    assert [one.id for one in newest] == [platform.id]


def test_shapes(api: Api) -> None:
    gpu = api.compute.list_shapes(api.tenancy, shape=GPU_SHAPE).data[0]
    assert gpu.gpus == 8
    assert gpu.rdma_ports == 16
    assert gpu.is_flexible is False
    flex = api.compute.list_shapes(api.tenancy, shape="VM.Standard.E5.Flex").data[0]
    assert flex.ocpu_options.min == 1.0
