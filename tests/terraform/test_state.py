"""What is read from a state: addresses as Terraform writes them, and ids, those of deposed resources included."""

from __future__ import annotations

import json

import pytest

from gpucluster.terraform.state import StateContents, StateEntry


def test_every_resource_has_its_address_and_its_id() -> None:
    def resource(kind: str, name: str, *instances: object, module: str = "", mode: str = "managed") -> object:
        return {
            "mode": mode,
            "type": kind,
            "name": name,
            "instances": instances,
            **({"module": module} if module else {}),
        }

    state = {
        "version": 4,
        "outputs": {"cluster": {"value": {"name": "demo"}, "type": "map"}},
        "resources": [
            resource("oci_core_images", "all", {"attributes": {"id": "data"}}, mode="data"),
            resource("terraform_data", "image", {"index_key": "pool/gpu", "attributes": {"id": "t"}}),
            resource("oci_core_vcn", "this", {"index_key": 0, "attributes": {"id": "v"}}, module="module.network"),
            resource(
                "oci_core_instance_configuration",
                "this",
                {"index_key": 0, "attributes": {"id": "new"}},
                {"index_key": 0, "deposed": "00000001", "attributes": {"id": "old"}},
                module='module.pool["gpu"]',
            ),
            resource("oci_core_subnet", "private", {"attributes": None}),
        ],
    }
    contents = StateContents.parse(json.dumps(state))
    configuration = 'module.pool["gpu"].oci_core_instance_configuration.this[0]'
    assert contents.entries == (
        StateEntry('terraform_data.image["pool/gpu"]', "t"),
        StateEntry("module.network.oci_core_vcn.this[0]", "v"),
        StateEntry(configuration, "new"),
        StateEntry(configuration, "old", deposed=True),
        StateEntry("oci_core_subnet.private", ""),
    )
    assert contents.ids == {"t", "v", "new", "old"}
    assert contents.outputs == {"cluster": {"name": "demo"}}
    assert StateContents.parse("") == StateContents({})


@pytest.mark.parametrize(
    ("more", "version"),
    [
        ({}, ""),
        ({"lineage": "", "serial": 0, "resources": []}, ""),  # as Terraform shows a remote backend without a state
        ({"lineage": "a", "serial": 9, "resources": []}, ""),  # what is left after destroy
        (
            {
                "lineage": "a",
                "serial": 3,
                "resources": [{"mode": "managed", "type": "oci_core_vcn", "name": "this", "instances": [{}]}],
            },
            "a 3",
        ),
    ],
)
def test_a_state_without_resources_has_no_version(more: dict[str, object], version: str) -> None:
    assert StateContents.parse(json.dumps({"version": 4, **more})).version == version
