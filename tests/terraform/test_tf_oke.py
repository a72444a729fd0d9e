"""The control plane of Kubernetes Engine, its node pools and add-ons, made by the root against the local cloud. Nothing
is launched: this shows what is asked for, and not that a node joins.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509

from gpucluster.handover.iam import ENGINE_CLUSTER
from gpucluster.kubernetes.manifests.gpus import on_hosts
from gpucluster.localcloud.api.container_engine import ADDON_VERSION, VERSIONS
from tests.terraform.conftest import DEBIAN

if TYPE_CHECKING:
    from tests.terraform.conftest import LocalCloud, Workspace

pytestmark = pytest.mark.slow

CLUSTERS, POOLS, LISTS = "/20180222/clusters", "/20180222/nodePools", "/20160918/securityLists"
OLDEST, NEXT, _ = VERSIONS
API_PORT = 6443


def _control_plane(workspace: Workspace) -> Any:
    return workspace.output("oke")


def _sources(cloud: LocalCloud) -> set[str]:
    """Who may reach the API of Kubernetes in the public subnet."""
    [found] = [each for each in cloud.standing(LISTS, "demo") if each["displayName"] == "demo-public"]
    return {
        rule["source"]
        for rule in found["ingressSecurityRules"]
        if (rule.get("tcpOptions") or {}).get("destinationPortRange", {}).get("min") == API_PORT
    }


def test_a_control_plane_is_made_upgraded_made_public_and_destroyed(cloud: LocalCloud, workspace: Workspace) -> None:
    workspace.variables["oke"] = {"kubernetes_version": OLDEST, "pod_cidr": "10.200.0.0/16"}
    workspace.apply()
    [first] = cloud.standing(CLUSTERS, "demo")
    assert (first["type"], first["kubernetesVersion"]) == ("ENHANCED_CLUSTER", OLDEST)
    assert first["options"]["kubernetesNetworkConfig"] == {"podsCidr": "10.200.0.0/16", "servicesCidr": "10.96.0.0/16"}
    shown = _control_plane(workspace)
    assert shown["id"] == first["id"]
    assert shown["private_endpoint"].startswith("10.0.1."), "an address of the private subnet"
    assert shown["public_endpoint"] is None
    authority = x509.load_pem_x509_certificate(base64.b64decode(shown["ca"]))
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert _sources(cloud) == set()
    assert workspace.plan().changes == []

    workspace.variables["oke"]["kubernetes_version"] = NEXT
    assert workspace.apply().changes == [("module.oke[0].oci_containerengine_cluster.this", "update")]
    assert _control_plane(workspace)["kubernetes_version"] == NEXT

    workspace.variables["oke"]["endpoint"] = "public"
    changes = dict(workspace.apply().changes)
    assert changes["module.oke[0].oci_containerengine_cluster.this"] == "replace", "OKE can't move an endpoint"
    assert _control_plane(workspace)["public_endpoint"].startswith("10.0.0.")
    assert _sources(cloud) == {"203.0.113.0/24", "198.51.100.7/32"}

    workspace.destroy()
    assert cloud.standing(CLUSTERS, "demo") == []


def test_a_version_that_oke_does_not_offer_is_an_error_in_its_words(workspace: Workspace) -> None:
    workspace.variables["oke"] = {"kubernetes_version": "v1.20.2"}
    assert "Invalid kubernetesVersion: v1.20.2" in workspace.apply(check=False).text


@pytest.fixture
def workspace(workspace: Workspace) -> Workspace:
    """One working copy, with an image for the pool `cpu`."""
    workspace.variables["images"]["pool/cpu"] = DEBIAN
    return workspace


def _pool(**more: Any) -> dict[str, Any]:
    size = {"shape": "VM.Standard.E5.Flex", "ocpus": 4, "memory_gb": 32, "count": 2, "boot_volume_gb": 100}
    return {**size, "labels": {"gpucluster.io/pool": "cpu"}, **more}


def _node_pool(cloud: LocalCloud) -> Any:
    [found] = cloud.standing(POOLS, "demo")
    return found


def test_node_pools_are_made_grown_upgraded_and_removed(cloud: LocalCloud, workspace: Workspace) -> None:
    oke: dict[str, Any] = {"kubernetes_version": OLDEST, "node_pools": {"cpu": _pool(user_data="#!/bin/bash\n")}}
    workspace.variables["oke"] = oke
    workspace.apply()
    [cluster], made = cloud.standing(CLUSTERS, "demo"), _node_pool(cloud)
    assert (made["name"], made["clusterId"], made["kubernetesVersion"]) == ("demo-cpu", cluster["id"], OLDEST)
    assert made["nodeShapeConfig"] == {"ocpus": 4, "memoryInGBs": 32}
    assert made["nodeSourceDetails"]["bootVolumeSizeInGBs"] == 100
    assert made["initialNodeLabels"] == [{"key": "gpucluster.io/pool", "value": "cpu"}]
    assert made["nodePoolCyclingDetails"]["isNodeCyclingEnabled"] is True
    assert base64.b64decode(made["nodeMetadata"]["user_data"]) == b"#!/bin/bash\n"
    config = made["nodeConfigDetails"]
    [place] = config["placementConfigs"]
    assert (config["size"], config["isPvEncryptionInTransitEnabled"]) == (2, True)
    assert place["subnetId"] == workspace.output()["private_subnet_id"]
    assert place["availabilityDomain"] == workspace.output()["availability_domain"]
    # Neither Terraform nor `apply` may take its nodes for instances of their own.
    assert config["freeformTags"]["role"] == "node-pool"
    assert "cpu" not in workspace.output()["pools"]
    assert workspace.plan().changes == []

    oke["node_pools"] = {"cpu": _pool(count=3, user_data="#!/bin/bash\n")}
    node_pool = 'module.oke[0].oci_containerengine_node_pool.this["cpu"]'
    assert workspace.apply().changes == [(node_pool, "update")]
    assert _node_pool(cloud)["nodeConfigDetails"]["size"] == 3

    oke["kubernetes_version"] = NEXT
    changed = workspace.apply()
    assert sorted(changed.changes) == [
        ("module.oke[0].oci_containerengine_cluster.this", "update"),
        (node_pool, "update"),
    ]
    assert (_node_pool(cloud)["id"], _node_pool(cloud)["kubernetesVersion"]) == (made["id"], NEXT)

    oke["node_pools"] = {}
    assert (node_pool, "delete") in workspace.apply().changes
    assert cloud.standing(POOLS, "demo") == []
    workspace.destroy()


def _addons(cloud: LocalCloud) -> dict[str, str | None]:
    [cluster] = cloud.standing(CLUSTERS, "demo")
    return {each["name"]: each["version"] for each in cloud.client.items(f"{CLUSTERS}/{cluster['id']}/addons", {})}


def test_add_ons_stay_at_their_version_or_follow_oke(cloud: LocalCloud, workspace: Workspace) -> None:
    wanted: dict[str, str | None] = {"CoreDNS": ADDON_VERSION, "CertManager": None}
    oke: dict[str, Any] = {"kubernetes_version": OLDEST, "addons": wanted}
    workspace.variables["oke"] = oke
    workspace.apply()
    essential = {"CoreDNS": ADDON_VERSION, "Flannel": None, "KubeProxy": None, "NvidiaGpuPlugin": None}
    assert _addons(cloud) == {**essential, "CertManager": None}
    assert workspace.plan().changes == []

    oke["addons"] = {"CoreDNS": ADDON_VERSION, "CertManager": ADDON_VERSION}
    manager = 'module.oke[0].oci_containerengine_addon.this["CertManager"]'
    assert workspace.apply().changes == [(manager, "update")]
    assert _addons(cloud)["CertManager"] == ADDON_VERSION
    oke["addons"] = {"CoreDNS": ADDON_VERSION, "CertManager": None}
    assert workspace.apply().changes == [(manager, "update")]
    assert workspace.plan().changes == []

    oke["addons"] = {"CoreDNS": ADDON_VERSION}
    assert workspace.apply().changes == [(manager, "delete")]
    assert _addons(cloud) == essential

    oke["addons"] = {"CoreDNS": "v9.9.9"}
    assert "v9.9.9" in workspace.apply(check=False).text
    oke["addons"] = {"NoSuchAddon": None}
    assert "There is no add-on NoSuchAddon" in workspace.apply(check=False).text
    oke["addons"] = {}
    workspace.destroy()


def test_oracles_plugin_for_gpus_keeps_away_from_our_hosts(cloud: LocalCloud, workspace: Workspace) -> None:
    """It is in each cluster from the beginning, and two plugins of one node would offer its GPUs in turn."""
    away = json.dumps(on_hosts(ours=False))
    oke: dict[str, Any] = {"kubernetes_version": OLDEST, "addons": {"NvidiaGpuPlugin": None}}
    oke["addon_affinity"] = {"NvidiaGpuPlugin": away}
    workspace.variables["oke"] = oke
    workspace.apply()
    [cluster] = cloud.standing(CLUSTERS, "demo")
    plugin = cloud.client.call("GET", f"{CLUSTERS}/{cluster['id']}/addons/NvidiaGpuPlugin").body
    assert plugin["configurations"] == [{"key": "affinity", "value": away}]
    assert workspace.plan().changes == []
    oke["addon_affinity"] = {"NvidiaGpuPlugin": "{no JSON"}
    assert "is not JSON" in workspace.apply(check=False).text
    oke["addon_affinity"] = {"NvidiaGpuPlugin": away}
    workspace.destroy()


def test_the_nodes_of_this_cluster_may_join_its_control_plane(cloud: LocalCloud, workspace: Workspace) -> None:
    compartment = cloud.credentials.tenancy
    workspace.variables["oke"] = {"kubernetes_version": OLDEST}
    workspace.variables["elastic_tags"] = {"Ops.Cluster": "demo"}
    workspace.variables["node_iam"] = {
        "dynamic_group": "gpucluster-demo-nodes",
        "description": "nodes",
        "matching_rule": f"instance.compartment.id = '{compartment}'",
        "statements": [
            "Allow dynamic-group gpucluster-demo-nodes to {CLUSTER_JOIN} in tenancy "
            f"where target.cluster.id = '{ENGINE_CLUSTER}'"
        ],
    }
    workspace.variables["iam"] = {
        "dynamic_group": "gpucluster-demo",
        "description": "controller",
        "compartment_statements": [
            "Allow dynamic-group gpucluster-demo to {CLUSTER_USE, CLUSTER_MANAGE} in tenancy "
            f"where target.cluster.id = '{ENGINE_CLUSTER}'"
        ],
        "tenancy_statements": [],
    }
    workspace.pool("cpu", kind="instances", shape="VM.Standard.E5.Flex", ocpus=1, memory_gb=8, count=1, max_count=1,
                   node_names=["cpu-1"], rdma=False, rdma_plugins=[])  # fmt: skip
    workspace.apply()
    [group] = [each for each in cloud.standing("/20160918/dynamicGroups") if each["name"] == "gpucluster-demo-nodes"]
    assert group["matchingRule"] == f"instance.compartment.id = '{compartment}'"
    policies = {each["name"]: each["statements"] for each in cloud.standing("/20160918/policies")}
    for name in ("gpucluster-demo", "gpucluster-demo-nodes"):
        [text] = policies[name]
        assert text.endswith(f"where target.cluster.id = '{_control_plane(workspace)['id']}'")
    # The tag by which a narrower rule finds them.
    tags = {each["displayName"]: each["definedTags"] for each in cloud.standing("/20160918/instances", "demo")}
    assert tags["cpu-1"]["Ops"] == {"Cluster": "demo"}
    assert "Ops" not in tags["demo-controller"]
    workspace.destroy()


def test_a_node_pool_that_can_not_be_is_refused_before_anything_is_made(workspace: Workspace) -> None:
    def refusal(**wrong: Any) -> str:
        workspace.variables["oke"] = {"kubernetes_version": OLDEST, "node_pools": {"cpu": _pool(**wrong)}}
        return workspace.plan(check=False).text

    assert "a flexible shape" in refusal(ocpus=None)
    assert "count must be a whole number" in refusal(count=1.5)
    workspace.variables["images"]["pool/cpu"] = {"listing": "Oracle Linux - GPU Cluster Networking Image"}
    assert "a listing of the marketplace" in refusal()
