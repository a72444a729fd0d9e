"""A plan, read from what Terraform prints."""

from __future__ import annotations

from pathlib import Path

from gpucluster.terraform.plan import Change, Plan, PlanReader, forcing_attributes


def test_a_plan_names_what_it_would_lose(tmp_path: Path) -> None:
    plan = Plan(
        (
            Change("module.home.oci_file_storage_file_system.this", "replace"),
            Change("module.network.oci_core_vcn.this", "update"),
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
    assert reader.replaces
    shown = {
        "resource_changes": [
            {"address": "c.c", "change": {}},
            {"address": "d.d", "change": {"replace_paths": [["source_details", 0, "source_id"], ["shape"]]}},
        ]
    }
    plan = reader.plan(tmp_path, destroy=False, forced_by=forcing_attributes(shown))
    assert plan.changes == (
        Change("c.c", "create", "cannot_update"),
        Change("d.d", "replace", "cannot_update", ("source_details.source_id", "shape")),
    )
    assert not plan.changes_outputs
    reader({"type": "outputs", "outputs": {"x": {"action": "create"}}})
    assert reader.plan(tmp_path, destroy=True, forced_by={}).changes_outputs
