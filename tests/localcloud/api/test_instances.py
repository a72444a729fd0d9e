"""Instances and the resources created with them, with the real SDK and an engine that launches nothing."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest
from oci.core import models

from gpucluster.oci.tags import HOST_ACTIONS, HOST_STATUS, UNHEALTHY
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


def test_a_fixed_shape_shows_its_hardware(api: Api, private: Any) -> None:
    encoded = base64.b64encode(b"#cloud-config\n").decode()
    gpu = api.launch(private, "gpu", shape=GPU_SHAPE, shape_config=None, metadata={"user_data": encoded})
    assert gpu.shape_config.gpus == 8
    assert gpu.metadata == {"user_data": encoded}


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


def test_oracles_own_tag_needs_its_namespace_and_key(api: Api, private: Any) -> None:
    """Any other namespace counts as made by the tenancy's administrator."""
    instance = api.launch(private, "tagged", defined_tags={"Finance": {"CostCenter": "gpu"}})
    bad = {"Finance": {"CostCenter": "gpu"}, HOST_ACTIONS: {HOST_STATUS: UNHEALTHY}}
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound") as words:
        api.compute.update_instance(instance.id, models.UpdateInstanceDetails(defined_tags=bad))
    assert words == [
        "The following tag namespaces / keys are not authorized or not found: "
        "TagNamespace ComputeInstanceHostActions does not exists."
    ]
    space = oci.identity.models.CreateTagNamespaceDetails(
        compartment_id=api.tenancy, name=HOST_ACTIONS, description="bad hosts"
    )
    namespace = api.identity.create_tag_namespace(space).data
    with refused(409, "Conflict"):
        api.identity.create_tag_namespace(space)
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound"):
        api.compute.update_instance(instance.id, models.UpdateInstanceDetails(defined_tags=bad))
    key = oci.identity.models.CreateTagDetails(name=HOST_STATUS, description="unhealthy")
    api.identity.create_tag(namespace.id, key)
    assert [tag.name for tag in api.identity.list_tags(namespace.id).data] == [HOST_STATUS]
    api.compute.update_instance(instance.id, models.UpdateInstanceDetails(defined_tags=bad))
    assert api.compute.get_instance(instance.id).data.defined_tags == bad
    api.identity.delete_tag_namespace(namespace.id)
    # What it has stays.
    api.compute.update_instance(instance.id, models.UpdateInstanceDetails(defined_tags=bad))
    with refused(400, "RelatedResourceNotAuthorizedOrNotFound"):
        api.launch(private, "other", defined_tags=bad)
