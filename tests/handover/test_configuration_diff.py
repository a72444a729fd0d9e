"""What apply would configure: two configurations of the hosts, compared. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.handover.configuration_diff import NOT_KNOWN, differences, record, settings

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*/inventory.json"))
DEMO = next(file for file in GOLDEN if file.parent.name == "local_demo")
HOSTS = {"demo-controller": "ocid1.c", "compute-1": "ocid1.a"}


def _variables(file: Path = DEMO) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(file.read_text())["all"]["vars"]
    return loaded


def _record(variables: dict[str, Any], **changes: Any) -> dict[str, Any]:
    software = changes.pop("software", {"enroot": "4.1.2"})
    made = record(gpucluster="0.1", content="abc", settings=settings(variables, software), hosts=HOSTS)
    return {**made, "complete": True, **changes}


def _texts(change: Callable[[dict[str, Any]], object], **changes: Any) -> list[str]:
    """The differences after a change of the variables."""
    variables = _variables()
    change(variables)
    return [str(each) for each in differences(_record(_variables()), _record(variables, **changes))]


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.parent.name)
def test_a_configuration_does_not_differ_from_itself_after_it_was_stored(file: Path) -> None:
    made = _record(_variables(file))
    assert differences(json.loads(json.dumps(made)), made) == ()


@pytest.mark.parametrize(
    ("key", "value", "texts"),
    [
        ("slurm_extra_config", {"MaxArraySize": 2}, ["slurm: extra_config.MaxArraySize = 2"]),
        ("containers_runtimes", ["enroot"], ["containers: add runtimes enroot"]),
        ("timezone", "Europe/Berlin", ["software: timezone UTC -> Europe/Berlin"]),
        ("nvidia_dcgm", False, ["nvidia: dcgm True -> False"]),
        ("users_gid", 1234, ["users: gid 9999 -> 1234"]),
    ],
)  # fmt: skip
def test_a_difference_is_reported_in_the_words_of_the_file(key: str, value: Any, texts: list[str]) -> None:
    assert key in _variables()
    assert _texts(lambda variables: variables.update({key: value})) == texts


def test_a_pool_and_its_elastic_nodes_are_named() -> None:
    def change(variables: dict[str, Any]) -> None:
        variables["slurm_pools"][0]["idle_timeout"] = 5
        variables["slurm_pools"].append({**variables["slurm_pools"][0], "name": "new"})

    assert _texts(change) == ["pools: compute.idle_timeout 600 -> 5", "pools: add new"]


def test_the_nodes_of_a_pool_and_paths_of_this_machine_are_not_compared() -> None:
    def change(variables: dict[str, Any]) -> None:
        variables["slurm_pools"][0]["nodes"] = ["other"]
        variables.update(gpucluster_hosts=[], software_directory="/elsewhere", autoscaler_wheels="/elsewhere")

    assert _texts(change) == []


def test_users_of_the_directory_are_not_compared_and_local_ones_are_and_no_user_is_removed() -> None:
    people = [{"name": name, "ssh_keys": [name]} for name in ("alice", "bob")]
    assert _texts(lambda variables: variables.update(users_people=people)) == []
    local = {**_variables(), "home_mount_path": None}
    before, after = [{"name": "carol", "ssh_keys": []}, {"name": "bob", "ssh_keys": ["old"]}], people
    found = differences(_record({**local, "users_people": before}), _record({**local, "users_people": after}))
    assert [str(each) for each in found] == [
        "users: add alice",
        "users: add bob.ssh_keys bob",
        "users: remove bob.ssh_keys old",
    ]


def test_a_host_that_was_exchanged_or_is_new_is_configured_and_one_that_is_gone_is_removed() -> None:
    now = {"demo-controller": "ocid1.c", "compute-1": "ocid1.other", "compute-2": "ocid1.b"}
    assert _texts(dict, hosts=now) == ["hosts: configure compute-1", "hosts: configure compute-2"]
    assert _texts(dict, hosts={"demo-controller": "ocid1.c"}) == ["hosts: remove compute-1"]


def test_another_release_may_change_everything() -> None:
    assert _texts(dict, gpucluster="0.2", content="other") == ["gpucluster: version 0.1 -> 0.2"]
    assert _texts(dict, content="other") == ["gpucluster: its roles differ from those of the last apply"]
    assert _texts(dict, software={"enroot": "5"}) == ["software: enroot 4.1.2 -> 5"]


@pytest.mark.parametrize(
    "recorded",
    [None, {"complete": False}, {"format": 2, "complete": True}, {**_record(_variables()), "complete": False}],
)
def test_without_a_complete_record_everything_is_configured(recorded: dict[str, Any] | None) -> None:
    (found,) = differences(recorded, _record(_variables()))
    assert NOT_KNOWN in str(found)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    | st.lists(st.fixed_dictionaries({"name": st.sampled_from("xyz"), "v": inner}), max_size=2),
    max_leaves=8,
)  # fmt: skip


@given(before=JSON, after=JSON)
def test_any_two_values_differ_or_are_the_same(before: Any, after: Any) -> None:
    """No difference is lost: that would be a plan that reports "no changes"."""
    old, new = ({**_variables(), "slurm_extra_config": value} for value in (before, after))
    found = differences(_record(old), _record(new))
    assert bool(found) == (before != after)
    assert all(str(each) for each in found)
