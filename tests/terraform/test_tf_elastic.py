"""Elastic nodes, builders and images: resources that Terraform does not own, beside its own, through the real SDK."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gpucluster.cloud import clusters
from gpucluster.cloud.baked_images import BakedImages, newest
from gpucluster.cloud.client import CloudAccess, model
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.members import PoolMembers
from gpucluster.cloud.tagged_resources import TaggedResources
from gpucluster.errors import CloudError
from gpucluster.events import Event, ignore

if TYPE_CHECKING:
    from tests.terraform.conftest import LocalCloud, Workspace

pytestmark = pytest.mark.slow

INSTANCES = "/20160918/instances"
COMPARTMENTS = "/20160918/compartments"
CLUSTER = "demo"


def _access(cloud: LocalCloud) -> CloudAccess:
    credentials = cloud.credentials
    config = {
        "tenancy": credentials.tenancy,
        "user": credentials.user,
        "fingerprint": credentials.fingerprint,
        "key_file": str(credentials.key_file),
        "region": cloud.region,
    }
    return CloudAccess(config, cloud.endpoint, credentials.tenancy)


def _launch(access: CloudAccess, pool: dict[str, Any], name: str, tags: dict[str, str]) -> str:
    """A double of the autoscaler."""
    management = access.client("core", "ComputeManagementClient")
    details = model(
        "core",
        "InstanceConfigurationLaunchInstanceDetails",
        display_name=name,
        freeform_tags=tags,
    )
    body = model("core", "ComputeInstanceDetails", launch_details=details)
    configuration = pool["instance_configuration_id"]
    return str(management.launch_instance_configuration(configuration, body).data.id)


@pytest.fixture
def pool(workspace: Workspace) -> dict[str, Any]:
    """An elastic pool with one permanent node."""
    workspace.pool("burst", kind="compute_cluster", count=1, max_count=4)
    workspace.apply()
    found: dict[str, Any] = workspace.output()["pools"]["burst"]
    return found


def _alive(cloud: LocalCloud, compartment: str = "") -> set[str]:
    gone = ("TERMINATED", "TERMINATING")
    listed = cloud.client.items(INSTANCES, {"compartmentId": compartment or cloud.credentials.tenancy})
    return {item["displayName"] for item in listed if item["lifecycleState"] not in gone}


def test_elastic_nodes_get_a_compartment_of_their_own_that_a_destroy_leaves_and_an_apply_takes_up(
    cloud: LocalCloud, workspace: Workspace
) -> None:
    workspace.variables["elastic_compartment"] = {"name": "gpucluster-demo"}
    workspace.pool("burst", kind="compute_cluster", count=1, max_count=4)
    workspace.pool("plain", kind="instances", count=1, max_count=2, rdma=False, rdma_plugins=[])
    workspace.apply()
    output = workspace.output()
    place, root = output["elastic_compartment_id"], cloud.credentials.tenancy
    assert output["compartment_id"] == root != place
    [made] = [each for each in cloud.standing(COMPARTMENTS) if each["name"] == "gpucluster-demo"]
    assert (made["id"], made["freeformTags"]["gpucluster"]) == (place, CLUSTER)
    access = replace(_access(cloud), elastic="gpucluster-demo")
    assert access.compartments() == (root, place)
    for pool in ("burst", "plain"):
        _launch(access, output["pools"][pool], f"{pool}-e1", {"gpucluster": CLUSTER, "node": f"{pool}-e1"})
    # The instances of a compute cluster must be in its compartment, the permanent ones too.
    assert _alive(cloud) == {"demo-controller", "plain-1"}
    assert _alive(cloud, place) == {"burst-1", "burst-e1", "plain-e1"}
    configurations = cloud.client.items("/20160918/instanceConfigurations", {"compartmentId": place})
    assert {each["displayName"] for each in configurations} == {"demo-burst", "demo-plain"}

    # Every listing knows both.
    elastic = ElasticInstances(access, CLUSTER, ignore)
    assert [each.node for each in elastic.instances()] == ["burst-e1", "plain-e1"]
    tagged = {each.name for each in TaggedResources(access, CLUSTER, ignore).find()}
    assert tagged >= {"demo-controller", "demo-private", "plain-1", "burst-1", "burst-e1", "plain-e1", "demo-burst"}
    hosts = PoolMembers(access, ignore).tagged(CLUSTER)
    assert {name for members in hosts.nodes.values() for name in (each.name for each in members)} == {
        "burst-1",
        "plain-1",
    }
    [contents] = [each for each in clusters.in_compartment(_access(cloud)) if each.name == CLUSTER]
    assert sum(contents.instances.values()) == 5
    assert workspace.plan().changes == []

    assert elastic.remove() == 2
    workspace.destroy()
    assert _alive(cloud, place) == set()
    assert [each["id"] for each in cloud.standing(COMPARTMENTS) if each["name"] == "gpucluster-demo"] == [place]
    workspace.variables["pools"] = {}
    workspace.apply()
    assert workspace.output()["elastic_compartment_id"] == place
    assert workspace.plan().changes == []


def test_elastic_nodes_may_be_in_a_compartment_that_exists(cloud: LocalCloud, workspace: Workspace) -> None:
    body = {"compartmentId": cloud.credentials.tenancy, "name": "given", "description": "of a test"}
    place = str(cloud.client.call("POST", COMPARTMENTS, body=body).body["id"])
    workspace.variables["elastic_compartment"] = {"ocid": place}
    workspace.pool("plain", kind="instances", count=0, max_count=2, rdma=False, rdma_plugins=[])
    assert "oci_identity_compartment" not in str(workspace.apply().changes)
    _launch(
        _access(cloud), workspace.output()["pools"]["plain"], "plain-e1", {"gpucluster": CLUSTER, "node": "plain-e1"}
    )
    assert _alive(cloud, place) == {"plain-e1"}
    assert ElasticInstances(replace(_access(cloud), elastic=place), CLUSTER, ignore).remove() == 1


def test_the_tag_of_the_controllers_rights_is_on_what_they_are_about_and_on_nothing_else(
    cloud: LocalCloud, workspace: Workspace
) -> None:
    workspace.variables["elastic_tags"] = {"Ops.Cluster": "demo"}
    workspace.pool("burst", kind="compute_cluster", count=1, max_count=4)
    workspace.pool("fixed", kind="instances", count=1, max_count=1, rdma=False, rdma_plugins=[])
    workspace.apply()
    of_cluster = {"Ops": {"Cluster": "demo"}}
    access, made = _access(cloud), workspace.output()["pools"]["burst"]["instance_configuration_id"]
    [configuration] = cloud.standing("/20160918/instanceConfigurations")
    assert (configuration["id"], configuration["definedTags"]) == (made, of_cluster)
    node = _launch(access, workspace.output()["pools"]["burst"], "burst-e1", {"gpucluster": "demo", "node": "burst-e1"})
    tagged = {item["id"] for item in cloud.standing(INSTANCES) if item["definedTags"] == of_cluster}
    assert tagged == {node}, "neither the controller nor a permanent node"
    subnets = {item["displayName"]: item["definedTags"] for item in cloud.standing("/20160918/subnets")}
    assert {name for name, tags in subnets.items() if tags == of_cluster} == {"demo-private"}
    assert workspace.plan().changes == []
    assert ElasticInstances(access, CLUSTER, ignore).remove() == 1


def test_only_what_carries_both_tags_is_removed(cloud: LocalCloud, pool: dict[str, Any]) -> None:
    access = _access(cloud)
    permanent = _alive(cloud)
    ours = {"gpucluster": "demo", "role": "compute", "pool": "burst"}
    _launch(access, pool, "burst-e1", {**ours, "node": "burst-e1", "generation": "1"})
    _launch(access, pool, "burst-e2", {**ours, "node": "burst-e2", "generation": "3"})
    _launch(access, pool, "stranger", {"gpucluster": "other", "node": "burst-e3"})
    _launch(access, pool, "by-hand", ours)
    _launch(access, pool, "namesake", {"gpucluster": CLUSTER, "gpucluster-id": "cd34", "node": "burst-e1"})
    announced: list[Event] = []
    elastic = ElasticInstances(access, CLUSTER, announced.append, identity="ab12")
    found = elastic.instances()
    assert [(one.node, one.pool, one.builder) for one in found] == [
        ("burst-e1", "burst", False),
        ("burst-e2", "burst", False),
    ]

    assert elastic.remove(lambda one: one.node == "burst-e2") == 1
    assert [one.node for one in elastic.instances()] == ["burst-e1"]
    assert elastic.remove() == 1
    assert elastic.remove() == 0
    assert _alive(cloud) == permanent | {"stranger", "by-hand", "namesake"}
    assert ElasticInstances(access, CLUSTER, ignore, identity="cd34").remove() == 1
    assert [(event.name, event.status) for event in announced] == [
        ("instance burst-e2", "deleting"),
        ("instance burst-e2", "deleted"),
        ("instance burst-e1", "deleting"),
        ("instance burst-e1", "deleted"),
    ]
    ElasticInstances(access, "other", ignore).remove()
    assert _alive(cloud) == permanent | {"by-hand"}
    hand = next(item for item in cloud.standing(INSTANCES, "demo") if item["displayName"] == "by-hand")
    cloud.client.call("DELETE", f"{INSTANCES}/{hand['id']}")


def test_what_is_launched_while_others_are_removed_goes_too(cloud: LocalCloud, pool: dict[str, Any]) -> None:
    access = _access(cloud)
    tags = {"gpucluster": "demo", "role": "compute", "pool": "burst"}
    _launch(access, pool, "burst-e1", {**tags, "node": "burst-e1"})
    late = iter(["burst-e2"])

    def meanwhile(event: Event) -> None:
        """An autoscaler that could not be stopped."""
        if event.status == "deleting":
            for name in late:
                _launch(access, pool, name, {**tags, "node": name})

    assert ElasticInstances(access, CLUSTER, meanwhile).remove() == 2
    assert ElasticInstances(access, CLUSTER, ignore).instances() == ()


def test_a_builder_boots_from_the_platforms_image(
    cloud: LocalCloud, workspace: Workspace, pool: dict[str, Any]
) -> None:
    access = _access(cloud)
    # Another image than the pool's, as a baked one is.
    workspace.pool("burst", baked_image_id=cloud.image("Canonical-Ubuntu-24.04-2026.06.29-0"))
    workspace.apply()
    baked = workspace.output()["pools"]["burst"]
    elastic = ElasticInstances(access, CLUSTER, ignore)
    launched = elastic.launch_builder("burst", "burst-bake", baked["instance_configuration_id"], pool["image_id"])
    instance = cloud.client.call("GET", f"{INSTANCES}/{launched}").body
    assert (instance["displayName"], instance["imageId"], instance["lifecycleState"]) == (
        "burst-bake",
        pool["image_id"],
        "RUNNING",
    )
    assert instance["shape"] == "BM.GPU4.8"
    assert instance["freeformTags"] == {"gpucluster": "demo", "role": "compute", "pool": "burst", "builder": "burst"}
    (one,) = elastic.instances()
    assert (one.node, one.builder) == ("burst-bake", True)

    images = BakedImages(access, CLUSTER, ignore)
    made = images.create("burst", "0123456789abcdef", launched)
    try:
        assert made.state == "AVAILABLE"
        assert made.name.startswith("demo-burst-20")
        assert images.all() == (made,)
        assert BakedImages(access, "dem", ignore).all() == ()
        assert newest(images.all(), "burst", "0123456789abcdef") == made
        assert newest(images.all(), "burst", "another") is None
        assert newest(images.all(), "other", "0123456789abcdef") is None
        # It has no identity, as images of earlier releases have none; the next one has.
        ours, theirs = (BakedImages(access, CLUSTER, ignore, identity=each) for each in ("ab12", "cd34"))
        second = ours.create("burst", "0123456789abcdef", launched)
        assert set(ours.all()) == {made, second}
        assert theirs.all() == (made,)
    finally:
        images.remove(images.all())
    assert images.all() == ()
    assert elastic.remove() == 1


def test_a_builder_for_which_there_is_no_host_reports_it(cloud: LocalCloud, pool: dict[str, Any]) -> None:
    fault = {"operation": "LaunchInstanceConfiguration", "status": 400, "code": "LimitExceeded", "message": "No more."}
    cloud.faults(fault)
    elastic = ElasticInstances(_access(cloud), CLUSTER, ignore)
    with pytest.raises(CloudError, match=r"launching burst-bake: the cloud answered 400 LimitExceeded: No more"):
        elastic.launch_builder("burst", "burst-bake", pool["instance_configuration_id"], pool["image_id"])
    cloud.faults()
    assert elastic.instances() == ()
