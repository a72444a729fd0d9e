"""The control plane of Kubernetes Engine, made by the root against the local cloud. No Kubernetes runs behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpucluster.localcloud.api.container_engine import VERSIONS

if TYPE_CHECKING:
    from tests.terraform.conftest import LocalCloud, Workspace

pytestmark = pytest.mark.slow

CLUSTERS, LISTS = "/20180222/clusters", "/20160918/securityLists"
OLDEST, NEXT, _ = VERSIONS
API_PORT = 6443


def _control_plane(workspace: Workspace) -> Any:
    return workspace.output()["oke"]


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
