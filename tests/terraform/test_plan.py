"""A plan, read from what Terraform prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpucluster.terraform.plan import (
    CHANGED,
    SENSITIVE,
    UNKNOWN,
    PlanReader,
    ResourceChange,
    TerraformPlan,
    attributes_of,
)


def test_a_plan_names_what_it_would_lose(tmp_path: Path) -> None:
    plan = TerraformPlan(
        (
            ResourceChange("module.home.oci_file_storage_file_system.this", "replace"),
            ResourceChange("module.network.oci_core_vcn.this", "update"),
        ),
        tmp_path,
    )
    assert plan.lost("oci_file_storage_file_system") == ("module.home.oci_file_storage_file_system.this",)
    assert plan.lost("oci_core_vcn") == ()


def test_a_plan_is_read_from_messages(tmp_path: Path) -> None:
    reader = PlanReader()
    for action, address in (("noop", "a.a"), ("read", "data.b.b"), ("create", "c.c"), ("replace", "d.d")):
        change = {"resource": {"addr": address}, "action": action, "reason": "cannot_update"}
        reader({"type": "planned_change", "change": change})
    reader({"type": "outputs", "outputs": {"x": {"action": "noop"}, "y": {}}})
    reader({"type": "change_summary"})
    assert reader.needs_attributes
    shown = {
        "resource_changes": [
            {"address": "c.c", "change": {}},
            {"address": "d.d", "change": {"replace_paths": [["source_details", 0, "source_id"], ["shape"]]}},
        ]
    }
    plan = reader.plan(tmp_path, destroy=False, attributes=attributes_of(shown))
    assert plan.changes == (
        ResourceChange("c.c", "create", "cannot_update"),
        ResourceChange("d.d", "replace", "cannot_update", ("source_details.source_id", "shape")),
    )
    assert not plan.changes_outputs
    reader({"type": "outputs", "outputs": {"x": {"action": "create"}}})
    assert reader.plan(tmp_path, destroy=True, attributes={}).changes_outputs


def test_the_attributes_of_an_update_are_those_that_differ() -> None:
    """As `terraform show -json` prints an instance whose image and memory change in place."""
    source = {"source_id": "ocid1.image.a", "boot_volume_size_in_gbs": "50"}
    before = {"shape": "X", "shape_config": [{"ocpus": 2, "memory_in_gbs": 16, "vcpus": 4}], "source_details": [source]}
    after = {
        "shape": "X",
        "shape_config": [{"ocpus": 2.0, "memory_in_gbs": 32}],
        "source_details": [{**source, "source_id": "ocid1.image.b"}],
        "freeform_tags": {"a": "b"},
    }
    change = {
        "actions": ["update"],
        "before": before,
        "after": after,
        "after_unknown": {"shape_config": [{"vcpus": True}]},
    }
    shown = {"resource_changes": [{"address": "a.a", "change": change}]}
    assert attributes_of(shown)["a.a"].changed == (
        "freeform_tags",
        "shape_config.memory_in_gbs",
        "shape_config.vcpus",
        "source_details.source_id",
    )
    # A replacement is judged by what forces it.
    created = {**change, "actions": ["delete", "create"], "replace_paths": [["shape"]]}
    assert attributes_of({"resource_changes": [{"address": "a.a", "change": created}]})["a.a"].changed == ()


def test_a_block_that_is_not_known_yet_may_change() -> None:
    change = {
        "actions": ["update"],
        "before": {"source_details": []},
        "after": {},
        "after_unknown": {"source_details": True},
    }
    assert attributes_of({"resource_changes": [{"address": "a", "change": change}]})["a"].changed == ("source_details",)


def _values(change: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return dict(attributes_of({"resource_changes": [{"address": "a", "change": change}]})["a"].values)


def test_the_values_of_a_change_are_those_that_differ_by_the_name_of_the_attribute() -> None:
    before = {
        "shape": "X",
        "shape_config": [{"ocpus": 2, "memory_in_gbs": 16}],
        "nsg_ids": ["a"],
        "metadata": {"ssh_authorized_keys": "k", "user_data": "eHg="},
        "extended_metadata": None,
    }
    after = {
        "shape": "X",
        "shape_config": [{"ocpus": 2, "memory_in_gbs": 32}],
        "nsg_ids": ["a", "b"],
        "metadata": {"ssh_authorized_keys": "k", "user_data": "eXk="},
        "extended_metadata": {},
    }
    assert _values({"actions": ["update"], "before": before, "after": after, "after_unknown": {"time": True}}) == {
        "metadata.user_data": (CHANGED, CHANGED),
        "nsg_ids": (["a"], ["a", "b"]),
        "shape_config.memory_in_gbs": (16, 32),
        "time": (None, UNKNOWN),
    }


def test_a_secret_is_not_among_the_values() -> None:
    change = {
        "actions": ["update"],
        "before": {"key": "old-secret", "list": [{"password": "p1", "a": 1}, {"a": 2}], "same": "s3"},
        "after": {"key": "new-secret", "list": [{"password": "p2", "a": 1}, {"a": 2}], "same": "s3"},
        "before_sensitive": {"key": True, "list": [{"password": True}, {}], "same": True},
        "after_sensitive": {"key": True, "list": [{"password": True}, {}], "same": True},
    }
    assert _values(change) == {"key": (SENSITIVE, SENSITIVE), "list": (SENSITIVE, SENSITIVE)}


def test_a_resource_that_is_created_has_its_values_and_one_that_is_deleted_has_none() -> None:
    created = {
        "actions": ["create"],
        "before": None,
        "after": {"shape": "X", "none": None, "shape_config": [{"ocpus": 2}]},
        "after_unknown": {"id": True, "shape_config": [{"vcpus": True}]},
    }
    assert _values(created) == {
        "id": (None, UNKNOWN),
        "shape": (None, "X"),
        "shape_config.ocpus": (None, 2),
        "shape_config.vcpus": (None, UNKNOWN),
    }
    deleted = {"actions": ["delete"], "before": {"shape": "X"}, "after": None, "after_unknown": {}}
    assert _values(deleted) == {}
