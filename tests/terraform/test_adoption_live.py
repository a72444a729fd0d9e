"""What a killed run leaves, and what a lost state leaves, is adopted: nothing is made twice, nothing is replaced.

Terraform is killed with SIGKILL between a create call and the write of its state. The stand-in provider has random
retry tokens and imports, as oracle/oci does; what the real one does with these imports is not proven here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import ToolError
from gpucluster.handover.adoption import NETWORK
from gpucluster.localcloud.api.container_engine import VERSIONS
from tests.terraform.conftest import DEBIAN, LocalCloud
from tests.terraform.site_harness import CPU, Site
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

ENGINES, NODE_POOLS = "/20180222/clusters", "/20180222/nodePools"
VCNS, INSTANCES = "/20160918/vcns", "/20160918/instances"
NETWORKS, CONFIGURATIONS = "/20160918/clusterNetworks", "/20160918/instanceConfigurations"
IMAGES = "/20160918/images"
TARGETS, FILES = "/20171215/mountTargets", "/20171215/fileSystems"
IAM = {
    "description": "of the autoscaler",
    "dynamic_group": "killed-autoscaler",
    "compartment_statements": ["Allow dynamic-group killed-autoscaler to read instances in tenancy"],
    "tenancy_statements": ["Allow dynamic-group killed-autoscaler to inspect compartments in tenancy"],
}


def _held(*resources: str) -> list[dict[str, Any]]:
    """Faults that keep Terraform between the create call and the write of its state."""
    return [{"operation": f"Get{name}", "delay": 120} for name in resources]


@pytest.fixture(scope="module")
def site(
    cloud: LocalCloud, terraform_environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A cluster whose first apply is killed twice: at its VCN; at its controller, cluster network and mount target.

    Its elastic nodes, and so its compute cluster, have a compartment of their own.
    """
    site = Site(cloud, terraform_environment, tmp_path_factory.mktemp("adoption") / "site", "killed")
    site.workspace.pool("rdma")
    site.workspace.pool("burst", kind="compute_cluster", count=1, max_count=4)
    site.workspace.variables["iam"] = IAM
    body = {"compartmentId": cloud.credentials.tenancy, "name": "killed-elastic", "description": "of a test"}
    place = cloud.client.call("POST", "/20160918/compartments", body=body).body["id"]
    site.workspace.variables["elastic_compartment"] = {"ocid": place}
    try:
        cloud.faults(*_held("Vcn"))
        site.killed_terraform(lambda: bool(site.ids(VCNS)))
        cloud.faults(*_held("Instance", "ClusterNetwork", "MountTarget"))
        said = site.killed_terraform(lambda: bool(site.nodes("burst") and site.ids(NETWORKS) and site.ids(TARGETS)))
        cloud.faults()
        assert "signal 9" in said
        assert "vcn killed exists and is in no state: it is adopted" in said
        site.apply()
        yield site
    finally:
        cloud.faults()
        site.destroy()
        left = site.tagged()
        left.remove(left.find())
    assert left.find() == ()


def _ours(site: Site) -> dict[str, str]:
    """The OCID of everything with the cluster's tag, by what it is."""
    return {f"{each.kind} {each.name}": each.id for each in site.tagged().find()}


def test_nothing_is_made_twice_by_runs_that_are_killed(site: Site) -> None:
    for collection in (VCNS, NETWORKS, TARGETS, FILES):
        assert len(site.ids(collection)) == 1, collection
    assert len(site.ids(CONFIGURATIONS)) == 2
    controllers = [each for each in site.tagged().find() if each.name == "killed-controller"]
    assert len(controllers) == 1
    assert (len(site.nodes("burst")), len(site.nodes("rdma"))) == (1, 2)
    assert [each["displayName"] for each in site.cloud.standing(CONFIGURATIONS, "killed", site.elastic)] == [
        "killed-burst"
    ]
    assert [each["displayName"] for each in site.cloud.standing(INSTANCES, "killed", site.elastic)] == ["burst-1"]
    _, plan = site.plan()
    assert plan.changes == ()


def test_a_cluster_network_that_was_made_twice_is_removed_and_files_are_not(site: Site, cloud: LocalCloud) -> None:
    """The state has the second one, and the first is on the bill."""
    (network,) = cloud.standing(NETWORKS, "killed")
    pool = network["instancePools"][0]
    again = {
        "compartmentId": network["compartmentId"],
        "displayName": network["displayName"],
        "freeformTags": network["freeformTags"],
        "instancePools": [{"instanceConfigurationId": pool["instanceConfigurationId"], "size": 1}],
        "placementConfiguration": cloud.client.call("GET", f"{NETWORKS}/{network['id']}").body[
            "placementConfiguration"
        ],
    }
    first = cloud.client.call("POST", NETWORKS, body=again, retry_token="first network").body["id"]
    (files,) = cloud.standing(FILES, "killed")
    more = {name: files[name] for name in ("availabilityDomain", "compartmentId", "displayName", "freeformTags")}
    second_files = cloud.client.call("POST", FILES, body=more, retry_token="second files").body["id"]
    cloud.wait(NETWORKS, first, "RUNNING")
    site.events.clear()
    site.apply()
    assert site.ids(NETWORKS) == [network["id"]]
    assert len(site.nodes("rdma")) == 2
    assert set(site.ids(FILES)) == {files["id"], second_files}
    said = [event.message for event in site.events]
    assert any(text.startswith("cluster network killed-rdma is removed: no state knows it") for text in said)
    assert any(text.startswith("file system killed-home has the cluster's tag") for text in said)
    cloud.client.call("DELETE", f"{FILES}/{second_files}")


def test_a_lost_state_is_told_and_recovered_without_a_change(site: Site) -> None:
    before, outputs = _ours(site), site.terraform().outputs()
    # As a full disk leaves it, and Terraform's copy too.
    site.paths.terraform_state.write_text("")
    site.paths.terraform_state.with_name("terraform.tfstate.backup").write_text("")
    with pytest.raises(ToolError, match=r"state is empty.*instance killed-controller.*gpucluster state recover"):
        site.apply()
    recovered = site.recover()
    assert (recovered.created, recovered.left) == ((), ())
    members = [name for name in before if name.startswith(("instance inst-", "instance rdma-"))]
    assert {each["id"] for each in recovered.adopted} == set(before.values()) - {before[name] for name in members}
    assert site.adoption.survey(site.terraform()).findings.adopt == {}, "the state knows everything"
    _, plan = site.plan()
    assert {change.action for change in plan.changes} == {"update"}, "arguments of the provider that no API returns"
    site.converges()
    assert _ours(site) == before
    assert site.terraform().outputs() == outputs


def test_a_newer_image_replaces_no_host_that_is_adopted(site: Site, cloud: LocalCloud) -> None:
    """The state has neither the controller nor the image selected for it, and another one is the newest now."""
    before = _ours(site)
    controller = before["instance killed-controller"]
    body = {"compartmentId": cloud.credentials.tenancy, "instanceId": controller, "displayName": "newer"}
    image = cloud.client.call("POST", IMAGES, body=body, retry_token="newer").body["id"]
    cloud.wait(IMAGES, image, "AVAILABLE")
    cloud.wait(INSTANCES, controller, "RUNNING")
    try:
        terraform = site.prepared()
        terraform.remove_from_state(["module.controller.oci_core_instance.this", 'terraform_data.image["controller"]'])
        site.converges()
        assert _ours(site) == before
        terraform.remove_from_state(['terraform_data.image["controller"]'])
        _, plan = site.plan()
        (host,) = [change for change in plan.changes if change.address == "module.controller.oci_core_instance.this"]
        assert "source_details.source_id" in host.changed, "without the image of the host it would get another disk"
        plan.file.unlink()
        site.converges()
    finally:
        cloud.client.call("DELETE", f"{IMAGES}/{image}")


def test_a_control_plane_of_oke_is_not_made_twice(
    cloud: LocalCloud, terraform_environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = Site(cloud, terraform_environment, tmp_path_factory.mktemp("adoption") / "engine", "engine")
    size = {"shape": "VM.Standard.E5.Flex", "ocpus": 4, "memory_gb": 32, "count": 1, "boot_volume_gb": 100}
    oke = {"kubernetes_version": VERSIONS[0], "addons": {"CertManager": None}}
    oke["node_pools"] = {"cpu": {**size, "labels": {"gpucluster.io/pool": "cpu"}}}
    site.workspace.variables["oke"] = oke
    site.workspace.variables["images"]["pool/cpu"] = DEBIAN
    try:
        site.apply()
        [engine], [pool] = site.ids(ENGINES), site.ids(NODE_POOLS)
        site.paths.terraform_state.write_text("")
        recovered = site.recover()
        assert recovered.left == ()
        assert {engine, pool} <= {each["id"] for each in recovered.adopted}
        site.converges()
        assert (site.ids(ENGINES), site.ids(NODE_POOLS)) == ([engine], [pool])
        # A pool that cluster.yml no longer has, and no state knows.
        site.paths.terraform_state.write_text("")
        oke["node_pools"] = {}
        site.recover()
        site.converges()
        assert (site.ids(ENGINES), site.ids(NODE_POOLS)) == ([engine], [])
    finally:
        site.destroy()
        left = site.tagged()
        left.remove(left.find())
    assert left.find() == ()


def test_a_destroy_right_after_a_kill_leaves_nothing(
    cloud: LocalCloud, terraform_environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = Site(cloud, terraform_environment, tmp_path_factory.mktemp("adoption") / "short", "short")
    site.workspace.pool("cpu", **CPU)
    cloud.faults(*_held("Instance", "MountTarget"))
    site.killed_terraform(lambda: len(site.ids(INSTANCES)) == 2 and bool(site.ids(TARGETS)))
    cloud.faults()
    site.destroy()
    left = site.tagged().find()
    assert [each.kind for each in left if each.kind != "file_system"] == []
    site.tagged().remove(left)
    assert site.tagged().find() == ()


@pytest.mark.parametrize("cut", [False, True], ids=["whole state", "killed while it wrote the state"])
def test_an_instance_that_still_starts_is_adopted_when_it_runs(
    cloud: LocalCloud, terraform_environment: Mapping[str, str], tmp_path: Path, *, cut: bool
) -> None:
    """After a kill during a launch. Its VNIC can't be read before, and a plan would replace what is just made.

    Terraform writes its state over the old one, in parts of 4096 bytes: a kill at that moment leaves some of them.
    """
    site = Site(cloud, terraform_environment, tmp_path / "site", "starts")
    site.workspace.variables["network"].update(
        vcn_cidr="10.9.0.0/16", public_subnet_cidr="10.9.0.0/24", private_subnet_cidr="10.9.1.0/24"
    )
    # As the product does. Else a kill comes before Terraform has written anything, and apply finds an empty state.
    terraform = site.prepared()
    terraform.apply(terraform.plan(only=(NETWORK,)))
    slow = {"operation": "BootInstance", "until_removed": True}
    try:
        cloud.faults(slow, *_held("Instance"))
        site.killed_terraform(lambda: bool(site.ids(INSTANCES)))
        (controller,) = site.ids(INSTANCES)
        if cut:
            site.paths.terraform_state.write_bytes(site.paths.terraform_state.read_bytes()[:4096])
        cloud.faults(slow)
        with ThreadPoolExecutor(1) as thread:
            applied = thread.submit(site.apply)
            wait_for(
                "it waits for the controller, or ends",
                lambda: (
                    applied.done()
                    or any("waiting until instance starts-controller runs" in each.message for each in site.events)
                ),
            )
            assert not applied.done(), applied.result()
            cloud.faults()
            applied.result()
        assert site.ids(INSTANCES) == [controller]
        _, plan = site.plan()
        assert plan.changes == ()
    finally:
        cloud.faults()
        site.destroy()
        left = site.tagged()
        left.remove(left.find())
