"""A plan in a file: it holds in the world that it was made of, and in no other one, which is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import EXIT_MOVED, EnvironmentFault, InputError, MovedError, NewerReleaseError
from gpucluster.handover.configuration_diff import ConfigurationDifference
from gpucluster.lifecycle.plan import ClusterPlan
from gpucluster.lifecycle.resize import PoolScaling, Scaling
from gpucluster.lifecycle.saved_plan import SavedPlan, World, digest_of_files
from gpucluster.spec import loads, updates
from gpucluster.terraform.plan import ResourceChange
from tests.spec.spec_texts import LOCAL

FIELDS = updates.recorded(loads(LOCAL))
WORLD = World("0.1", "abc", "lineage 7", FIELDS, "digest")
NODE = ResourceChange("module.pool.node", "update", values={"ocpus": (4, 8)})
PLAN = ClusterPlan(
    (NODE, ResourceChange("module.pool.new", "create")),
    False,
    Scaling({"compute": PoolScaling(("compute-3",))}),
    (ConfigurationDifference("users", "add", "bob"),),
)


def _saved(plan: ClusterPlan = PLAN, **world: Any) -> SavedPlan:
    return SavedPlan("demo", replace(WORLD, **world), plan.to_dict())


def _read(tmp_path: Path, saved: SavedPlan) -> SavedPlan:
    file = tmp_path / "demo.plan"
    saved.write(file)
    return SavedPlan.read(file, "demo")


def test_a_plan_holds_in_the_same_world(tmp_path: Path) -> None:
    read = _read(tmp_path, _saved())
    read.require(_saved())
    assert (tmp_path / "demo.plan").stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / "demo.plan").read_text())["format"] == 1


@pytest.mark.parametrize(
    ("now", "named"),
    [
        (_saved(gpucluster="0.2"), "gpucluster: 0.1 -> 0.2"),
        (_saved(content="other"), "gpucluster: its roles and programs are other ones of the same version"),
        (_saved(state="lineage 8"), "state: serial 7 of lineage -> serial 8 of lineage"),
        (_saved(state=""), "state: serial 7 of lineage -> none"),
        (_saved(files="other"), "files that cluster.yml names, such as keys"),
        (
            _saved(fields=updates.recorded(loads(LOCAL.replace("count: 2", "count: 3")))),
            "cluster.yml: pools.compute.count: 2 -> 3",
        ),
        (
            _saved(replace(PLAN, changes=(replace(NODE, values={"ocpus": (4, 6)}), PLAN.changes[1]))),
            "resource module.pool.node: update with other values: ocpus",
        ),
        (
            _saved(replace(PLAN, changes=(replace(NODE, action="replace"), PLAN.changes[1]))),
            "resource module.pool.node: update -> replace",
        ),
        (_saved(replace(PLAN, changes=(NODE,))), "resource module.pool.new: create is not planned any more"),
        (
            _saved(replace(PLAN, changes=(*PLAN.changes, ResourceChange("module.x", "delete")))),
            "resource module.x: delete is new",
        ),
        (_saved(replace(PLAN, hosts=Scaling({}, "rebooted"))), 'hosts (controller): "" -> "rebooted"'),
        (_saved(replace(PLAN, hosts=Scaling({"compute": PoolScaling((), ("compute-1",))}))), "hosts (nodes): "),
        (_saved(replace(PLAN, configuration=())), "configuration of the hosts: not any more: users: add bob"),
        (
            _saved(replace(PLAN, configuration=(*PLAN.configuration, ConfigurationDifference("users", "add", "eve")))),
            "configuration of the hosts: new: users: add eve",
        ),
    ],
)
def test_what_has_moved_is_named_and_refused(tmp_path: Path, now: SavedPlan, named: str) -> None:
    read = _read(tmp_path, _saved())
    with pytest.raises(MovedError) as caught:
        read.require(now)
    assert caught.value.exit_code == EXIT_MOVED == 9
    assert any(line.strip().startswith(named) for line in str(caught.value).splitlines()[1:])


def test_jobs_prices_and_times_may_move() -> None:
    other = replace(PLAN, jobs=None, jobs_error="is down", warnings=("x",))
    _saved().require(_saved(other))


def test_a_first_apply_chooses_an_identity_which_is_in_all_values(tmp_path: Path) -> None:
    def first(identity: str) -> SavedPlan:
        change = ResourceChange("module.vcn", "create", values={"freeform_tags": (None, identity)})
        return _saved(replace(PLAN, changes=(change,)), state="")

    _read(tmp_path, first("one")).require(first("two"))


def test_many_are_shortened(tmp_path: Path) -> None:
    many = tuple(ResourceChange(f"module.{number}", "create") for number in range(50))
    with pytest.raises(MovedError, match="and 32 more"):
        _read(tmp_path, _saved()).require(_saved(replace(PLAN, changes=many)))


def test_changes_that_are_not_in_the_plan_are_refused_in_the_last_moment() -> None:
    saved = _saved()
    saved.require_planned(PLAN.changes)
    saved.require_planned(())
    with pytest.raises(MovedError, match=r"module\.x: delete"):
        saved.require_planned((*PLAN.changes, ResourceChange("module.x", "delete")))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 0}', '{"format": 1}', '{"format": 1, "cluster": "demo", "world": 3}']
)
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "demo.plan"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        SavedPlan.read(file, "demo")
    assert caught.value.where == str(file)


def test_a_plan_of_a_newer_release_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "demo.plan"
    file.write_text('{"format": 2, "world": {"gpucluster": "9.1.0"}}')
    with pytest.raises(NewerReleaseError, match=r"this plan has the format 2, which gpucluster 9\.1\.0") as caught:
        SavedPlan.read(file, "demo")
    assert caught.value.where == str(file)


def test_a_plan_of_another_cluster_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    _saved().write(tmp_path / "demo.plan")
    with pytest.raises(InputError, match="of the cluster demo, and not of other"):
        SavedPlan.read(tmp_path / "demo.plan", "other")
    with pytest.raises(InputError, match="can't read the plan"):
        SavedPlan.read(tmp_path / "none", "demo")
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault):
        _saved().write(tmp_path / "file" / "demo.plan")


def test_variables_of_a_machine_are_not_in_the_digest() -> None:
    variables = {"ssh_authorized_keys": ["a"], "origin": "ada@one", "cluster_id": "1", "recorded": {}}
    assert digest_of_files(variables) == digest_of_files({**variables, "origin": "bob@two", "cluster_id": "2"})
    assert digest_of_files(variables) != digest_of_files({**variables, "ssh_authorized_keys": ["b"]})
