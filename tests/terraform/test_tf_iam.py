"""The controller's permissions as Terraform creates them in the local cloud, from Python's variables."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.handover import iam
from tests.localcloud.entitled import elastic_cluster
from tests.terraform.conftest import LocalCloud, Workspace

pytestmark = pytest.mark.slow


def _made(cloud: LocalCloud, collection: str) -> list[dict[str, Any]]:
    return [one for one in cloud.standing(f"/20160918/{collection}") if one["name"].startswith("gpucluster-demo")]


def test_the_group_matches_the_controller_alone_and_the_policies_name_it(
    workspace: Workspace, cloud: LocalCloud
) -> None:
    compartment = cloud.credentials.tenancy
    wanted = iam.policies(elastic_cluster(), compartment_id=compartment, controller_id=None)
    given = iam.tfvars(wanted)
    assert given is not None
    workspace.variables["iam"] = given
    workspace.apply()
    output = workspace.output()
    [group] = _made(cloud, "dynamicGroups")
    assert group["matchingRule"] == f"instance.id = '{output['controller']['id']}'"
    assert output["dynamic_group_id"] == group["id"]
    assert group["freeformTags"]["gpucluster-compartment"] == compartment
    [policy] = _made(cloud, "policies")
    assert policy["name"] == "gpucluster-demo"
    assert policy["statements"] == [one.text for one in wanted.controller]
    assert workspace.plan().changes == []

    outside = "Allow dynamic-group gpucluster-demo to read app-catalog-listing in tenancy"
    workspace.variables["iam"] = {**given, "tenancy_statements": [outside]}
    changed = workspace.apply().changes
    assert changed == [("module.iam[0].oci_identity_policy.tenancy[0]", "create")]
    assert sorted(one["name"] for one in _made(cloud, "policies")) == ["gpucluster-demo", "gpucluster-demo-tenancy"]
