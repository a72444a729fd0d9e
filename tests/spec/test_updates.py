"""Every key has an update policy, and two versions of a file differ in exactly the keys that were changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpucluster.spec import loads, updates
from gpucluster.spec.reference import json_schema, markdown
from gpucluster.spec.updates import UpdatePolicy
from tests.spec.spec_texts import LOCAL


def _recorded(text: str) -> dict[str, Any]:
    return updates.recorded(loads(text))


#: Sections of a kind that another section before them has.
AGAIN = ("login.image", "pools.<name>.image", "slurm.qos.<name>.limits", "slurm.qos.<name>.user_limits")


def test_every_key_has_a_policy_and_nothing_else_has() -> None:
    keys = updates.keys()
    assert len(keys) == len(set(keys)) > 200
    assert set(updates.policies()) == set(keys)
    assert {rule.policy for rule in updates.policies().values()} == set(UpdatePolicy) == set(updates.MEANINGS)


def test_the_schema_and_the_reference_state_each_policy() -> None:
    schema = json_schema()
    stated = [
        field.get("x-update-policy")
        for definition in [schema, *schema["$defs"].values()]
        for field in definition.get("properties", {}).values()
    ]
    # A key of Image stands three times among the keys, one of a limit twice, and both once in the schema.
    every = updates.keys()
    once = {key for key in every if not key.startswith(AGAIN)}
    assert sum(1 for each in stated if each) == len(once)
    pool = schema["$defs"]["PoolSpec"]["properties"]
    assert pool["availability_domain"]["x-update-policy"] == "replaces"
    assert pool["count"]["x-update-note"] == "More nodes are live; of fewer the last ones are removed."
    assert schema["$defs"]["Image"]["properties"]["ocid"]["x-update-policy"] == "replaces"
    lines = markdown().splitlines()
    assert any(line.startswith("| `uid` | whole number | none | refused |") for line in lines)
    assert all(f"| {policy} | {meaning} |" in lines for policy, meaning in updates.MEANINGS.items())


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("count: 2", "count: 3", [("pools.compute.count", 2, 3)]),
        ("max_count: 4", "max_count: 5", [("pools.cpu.max_count", 4, 5)]),
        ("gid: 9999", "gid: 9998", [("users.gid", 9999, 9998)]),
        ("mount_path: /mnt/home", "mount_path: /srv/home", [("storage.home.mount_path", "/mnt/home", "/srv/home")]),
        ("127.0.0.0/8", "10.0.0.0/8", [("network.ssh_allowed_cidrs", ["127.0.0.0/8"], ["10.0.0.0/8"])]),
    ],
)
def test_a_change_of_a_value_is_named_with_both(old: str, new: str, changed: list[Any]) -> None:
    assert LOCAL.count(old) == 1
    found = updates.changes(_recorded(LOCAL), _recorded(LOCAL.replace(old, new)))
    assert [(each.path, each.before, each.after) for each in found] == changed
    assert updates.changes(_recorded(LOCAL), _recorded(LOCAL)) == ()


def test_parts_that_come_and_go_are_named_by_themselves() -> None:
    before = _recorded(LOCAL)
    after = _recorded(LOCAL)
    after["pools"]["new"] = after["pools"].pop("cpu")
    name = after["users"]["people"][0]["name"]
    after["users"]["people"][0]["shell"] = "/bin/sh"
    found = {each.path: each for each in updates.changes(before, after)}
    assert list(found) == ["pools.cpu", "pools.new", f"users.people[{name}].shell"]
    assert found["pools.cpu"].after is None
    assert found["pools.new"].before is None
    assert [each.key for each in found.values()] == ["pools", "pools", "users.people[].shell"]
    assert found["pools.cpu"].rule.policy is UpdatePolicy.DRAINS


def test_a_key_that_an_earlier_release_did_not_have_is_no_change() -> None:
    before, after = _recorded(LOCAL), _recorded(LOCAL)
    del before["monitoring"]["grafana"]
    del before["verify"]
    assert updates.changes(before, after) == ()


def test_a_section_that_comes_is_one_change() -> None:
    before, after = _recorded(LOCAL), _recorded(LOCAL)
    after["containers"]["docker_repository"] = {"url": "https://x", "key_url": "https://y", "key_fingerprint": "0" * 40}
    (change,) = updates.changes(before, after)
    assert (change.path, change.before) == ("containers.docker_repository", None)


#: For each policy the tests that an apply does what it states, at the lowest level that can show it: file and function.
PROOFS: dict[UpdatePolicy, tuple[str, ...]] = {
    UpdatePolicy.LIVE: (
        "terraform/test_update_policies.py::test_the_effect_of_a_change_is_what_terraform_plans",
        "terraform/test_scaling_root.py::test_pools_of_each_kind_are_resized_by_name_and_nothing_is_recreated",
        "e2e/test_changes.py::test_it_grows_by_the_next_number_and_login_nodes_and_enroot_go",
    ),
    UpdatePolicy.DRAINS: (
        "terraform/test_scaling_root.py::test_another_image_is_a_replacement_and_other_memory_a_reboot",
        "operations/test_drain.py::test_a_job_is_waited_for_and_nothing_new_starts",
        "e2e/test_changes.py::test_one_apply_changes_nodes_login_nodes_monitoring_and_the_plugin",
    ),
    UpdatePolicy.REPLACES: (
        "terraform/test_scaling_root.py::test_what_would_recreate_nodes_is_refused_before_anything_is_touched",
        "terraform/test_scaling_root.py::test_another_image_is_a_replacement_and_other_memory_a_reboot",
    ),
    UpdatePolicy.DESTROYS_DATA: (
        "lifecycle/test_provision.py::test_a_plan_that_loses_files_is_refused_and_reports_what_to_do",
        "lifecycle/test_provision.py::test_a_plan_that_loses_the_controllers_state_is_refused",
    ),
    UpdatePolicy.REFUSED: (
        "handover/test_ownership.py::test_a_state_keeps_its_name",
        "lifecycle/test_locate.py::test_another_region_is_refused",
        "lifecycle/test_locate.py::test_another_compartment_is_refused_by_the_state_on_a_machine_that_knows_nothing",
        "lifecycle/test_plan.py::test_a_cluster_keeps_its_scheduler",
        "lifecycle/test_plan.py::test_kubernetes_keeps_its_networks",
        "lifecycle/test_plan.py::test_another_release_of_slurm_is_what_apply_would_refuse",
        "controller/users/test_base_tree.py::test_base_tree_and_description_must_agree",
        "controller/users/test_plan.py::test_requests_that_are_not_possible_change_nothing",
    ),
}


@pytest.mark.parametrize("policy", UpdatePolicy)
def test_each_policy_is_proved_by_tests_that_exist(policy: UpdatePolicy) -> None:
    assert PROOFS[policy]
    for proof in PROOFS[policy]:
        file, _, function = proof.partition("::")
        assert f"def {function}(" in (Path(__file__).parents[1] / file).read_text(), proof
