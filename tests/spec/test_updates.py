"""Every key has an update policy, and two versions of a file differ in exactly the keys that were changed."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.spec import loads, updates
from gpucluster.spec.reference import json_schema, markdown
from gpucluster.spec.updates import UpdatePolicy
from tests.spec.spec_texts import LOCAL


def _recorded(text: str) -> dict[str, Any]:
    return updates.recorded(loads(text))


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
    # A key of Image stands three times among the keys, and once in the schema.
    every = updates.keys()
    once = {key for key in every if not key.startswith(("login.image", "pools.<name>.image"))}
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
