"""Resources of an earlier release are taken over without changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpucluster.localcloud.provider.schema import SchemaBlock, catalogue
from gpucluster.paths import terraform_dir

if TYPE_CHECKING:
    from tests.terraform.conftest import LocalCloud, Workspace

pytestmark = pytest.mark.slow

_EMPTY: dict[str, Any] = {"bool": False, "number": 0, "string": ""}
EARLIER = Path(__file__).parent / "release_0_1"
# The resources of nodes, homes and the network; all others depend on them.
LASTING = (
    "/20160918/vcns",
    "/20160918/subnets",
    "/20160918/instances",
    "/20160918/instanceConfigurations",
    "/20160918/clusterNetworks",
    "/20160918/computeClusters",
    "/20171215/fileSystems",
    "/20171215/mountTargets",
)


def _with_empty_values(file: Path) -> int:
    """Store `false`, 0 and empty texts where nothing is set, as oracle/oci does. Returns their number."""
    state, number = json.loads(file.read_text()), 0

    def fill(block: SchemaBlock, values: dict[str, Any]) -> None:
        nonlocal number
        for name, attribute in block.attributes.items():
            empty = _EMPTY.get(str(attribute.type))
            if values.get(name) is None and attribute.optional and not attribute.computed and empty is not None:
                values[name] = empty
                number += 1
        for name, nested in block.blocks.items():
            for each in values.get(name) or () if nested.nesting != "single" else ():
                fill(nested, each)

    for resource in state["resources"]:
        kind = catalogue().resources.get(resource["type"])
        if kind is not None and resource["mode"] == "managed":
            for instance in resource["instances"]:
                fill(kind.schema, instance["attributes"])
    state["serial"] += 1
    file.write_text(json.dumps(state))
    return number


def test_nothing_of_an_earlier_release_is_replaced(new_workspace: Callable[..., Workspace], cloud: LocalCloud) -> None:
    workspace = new_workspace("demo", EARLIER)
    workspace.pool("compute")
    workspace.pool("burst", kind="compute_cluster", count=1, max_count=4)
    workspace.apply()
    for network in cloud.standing("/20160918/clusterNetworks", "demo"):
        cloud.wait("/20160918/clusterNetworks", network["id"], "RUNNING")
    before = {name: {item["id"] for item in cloud.standing(name, "demo")} for name in LASTING}
    assert all(before.values())
    images = {pool: made["image_id"] for pool, made in workspace.output()["pools"].items()}

    workspace.take(terraform_dir())
    changes = workspace.plan().changes
    assert {action for _, action in changes} <= {"create", "move", "update"}
    assert {address.rpartition(".")[0].rpartition(".")[2] for address, action in changes if action == "create"} == {
        "terraform_data"
    }
    assert ("module.network.oci_core_internet_gateway.this[0]", "update") in changes

    workspace.apply()
    assert {name: {item["id"] for item in cloud.standing(name, "demo")} for name in LASTING} == before
    assert {pool: made["image_id"] for pool, made in workspace.output()["pools"].items()} == images
    assert _with_empty_values(workspace.folder / "terraform.tfstate") > 10
    assert workspace.plan().changes == []

    # The first apply of the current gpucluster adds user data: for new nodes only.
    for pool in ("compute", "burst"):
        workspace.pool(pool, user_data="#cloud-config\n")
    changes = workspace.plan().changes
    assert {address for address, action in changes if action == "replace"} == {
        f'module.pool["{pool}"].oci_core_instance_configuration.this[0]' for pool in ("compute", "burst")
    }
    assert [change for change in changes if change[1] != "replace"] == [
        ('module.pool["compute"].oci_core_cluster_network.this[0]', "update")
    ]
