"""Resources of the cloud and their addresses in Terraform: what is adopted, what is a duplicate, what is left alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.cloud.tagged_resources import KINDS, TaggedResource
from gpucluster.errors import ToolError
from gpucluster.handover.adoption import (
    ADOPTED,
    NOT_ADOPTED,
    Desired,
    compare,
    desired,
    existing_images,
    require_one_cluster,
    untracked,
)
from gpucluster.paths import terraform_dir

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*/tfvars.json"))
VARIABLES: dict[str, Any] = json.loads((GOLDEN[0].parents[1] / "oci_three_kinds" / "tfvars.json").read_text())
WANTED = desired(VARIABLES)
CONTROLLER = "module.controller.oci_core_instance.this"
VCN = "module.network.oci_core_vcn.this[0]"
FILES = "module.home[0].oci_file_storage_file_system.this[0]"


def _made(wanted: Iterable[Desired], suffix: str = "") -> dict[str, TaggedResource]:
    """The resources that Terraform would make, by address."""
    made: dict[str, TaggedResource] = {}
    for each in wanted:
        uses = frozenset({made[each.parent].id}) if each.parent else frozenset()
        tags = {"gpucluster": "demo", **({"pool": each.pool} if each.pool else {})}
        made[each.address] = TaggedResource(
            each.kind, f"{each.address}{suffix}", each.name, "ACTIVE", tags, f"2026{suffix}", uses
        )
    return made


MADE = _made(WANTED)
STATE = {address: each.id for address, each in MADE.items()}


# The contract with the HCL


def test_every_type_of_the_hcl_is_adopted_or_has_a_reason_why_not() -> None:
    used = {
        kind
        for file in terraform_dir().rglob("*.tf")
        for kind in re.findall(r'^resource "(\w+)"', file.read_text(), re.MULTILINE)
    }
    assert used == ADOPTED | NOT_ADOPTED.keys()
    assert all(NOT_ADOPTED.values())


@pytest.mark.parametrize("case", GOLDEN, ids=lambda file: file.parent.name)
def test_each_address_is_one_of_the_hcl(case: Path) -> None:
    for each in desired(json.loads(case.read_text())):
        *modules, kind, name = re.sub(r"\[[^]]*\]", "", each.address).replace("module.", "").split(".")
        source = {
            "network": "network",
            "controller": "instance",
            "login": "instance",
            "home": "file_storage",
            "share": "share",
            "pool": "pool",
            "iam": "iam",
        }
        folder = terraform_dir() / "cluster"
        for module in modules:
            folder = terraform_dir() / "modules" / source.get(module, module)
        text = "".join(file.read_text() for file in folder.glob("*.tf"))
        block = re.search(rf'^resource "{kind}" "{name}" {{\n(  count +=)?', text, re.MULTILINE)
        assert block, each.address
        assert bool(block[1]) == each.address.endswith("[0]"), each.address
        assert each.kind in KINDS


def test_together_the_cases_have_every_type() -> None:
    """As far as the golden cases go: a resource that `desired` forgets would not be adopted."""
    cases = [json.loads(case.read_text()) for case in GOLDEN]
    # No golden case has it as long as files with `control_plane: oke` are refused.
    cases.append({**cases[0], "oke": {"node_pools": {"cpu": {}}}})
    # Nor a rack, whose hosts no local cloud has by default.
    rack = {"kind": "gpu_memory_cluster", "count": 2, "max_count": 2, "node_names": ["rack-1", "rack-2"]}
    cases.append({**cases[0], "pools": {"rack": rack}})
    addresses = [each.address for case in cases for each in desired(case)]
    assert {kind for kind in ADOPTED if any(f"{kind}." in address for address in addresses)} == ADOPTED
    assert len(WANTED) == len({each.address for each in WANTED})
    assert len({(each.kind, each.name, each.pool) for each in WANTED}) == len(WANTED)


# What is adopted


@given(st.sets(st.sampled_from(sorted(STATE))))
def test_whatever_the_state_lacks_is_adopted_and_nothing_else(lost: set[str]) -> None:
    state = {address: ocid for address, ocid in STATE.items() if address not in lost}
    findings = compare(WANTED, list(MADE.values()), state)
    assert findings.adopt == {address: MADE[address] for address in lost}
    assert (findings.removable, findings.left, findings.stale) == ((), (), {})


@given(st.sets(st.sampled_from(sorted(STATE))), st.sets(st.sampled_from(sorted(STATE))))
def test_a_duplicate_is_removed_only_if_the_state_has_the_other(lost: set[str], twice: set[str]) -> None:
    """Files are never removed, whatever the state has."""
    second = _made(WANTED, suffix="-2")
    duplicates = [replace(second[address], uses=MADE[address].uses) for address in twice - lost]
    state = {address: ocid for address, ocid in STATE.items() if address not in lost}
    findings = compare(WANTED, [*MADE.values(), *duplicates], state)
    assert findings.adopt == {address: MADE[address] for address in lost}
    assert {*findings.surplus, *findings.left} == set(duplicates)
    assert {each.kind for each in findings.left} <= {"file_system", "volume"}
    assert not {"file_system", "volume"} & {each.kind for each in findings.removable}


def test_what_is_being_deleted_is_not_adopted() -> None:
    ending = replace(MADE[CONTROLLER], state="TERMINATING")
    assert compare(WANTED, [ending], {}).adopt == {}


def test_members_elastic_nodes_and_builders_are_not_adopted() -> None:
    tags = {"gpucluster": "demo", "pool": "gpu", "node": "gpu-e1"}
    member = TaggedResource("instance", "member", "gpu-1", "RUNNING", tags, launched_by_others=True)
    findings = compare(WANTED, [*MADE.values(), member], STATE)
    assert (findings.adopt, findings.removable, findings.left) == ({}, (), ())
    assert untracked([member], set()) == ()


def test_a_configuration_that_waits_for_its_removal_is_in_the_state() -> None:
    """`create_before_destroy`: both have the same name."""
    (address,) = [each.address for each in WANTED if each.kind == "instance_configuration"][:1]
    old = replace(MADE[address], id="old")
    assert compare(WANTED, [*MADE.values(), old], STATE, ["old"]).removable == ()
    assert compare(WANTED, [*MADE.values(), old], STATE).surplus == (old,)


def test_what_is_in_a_second_network_is_a_duplicate_and_not_adopted() -> None:
    second = _made([each for each in WANTED if VCN in (each.address, each.parent)], suffix="-2")
    state = {VCN: MADE[VCN].id}
    findings = compare(WANTED, [MADE[VCN], *second.values()], state)
    assert findings.adopt == {}
    assert set(findings.surplus) == set(second.values())


def test_parts_of_a_pool_that_the_file_does_not_have_are_unwanted_and_the_rest_is_left() -> None:
    tags = {"gpucluster": "demo", "pool": "old"}
    network = TaggedResource("cluster_network", "n", "demo-old", "RUNNING", tags)
    files = TaggedResource("file_system", "f", "somebody's", "ACTIVE", {"gpucluster": "demo"})
    target = TaggedResource("mount_target", "t", "other", "ACTIVE", {"gpucluster": "demo"})
    findings = compare(WANTED, [*MADE.values(), network, files, target], STATE)
    assert (findings.unwanted, findings.left) == ((network,), (files, target))


# What can't be decided


def test_of_two_networks_the_one_in_use_is_adopted() -> None:
    empty = replace(MADE[VCN], id="empty", created="1999")
    findings = compare(WANTED, [*MADE.values(), empty], {})
    assert (findings.adopt[VCN], findings.surplus) == (MADE[VCN], (empty,))


def test_of_two_unused_networks_the_first_is_adopted() -> None:
    first, second = (replace(MADE[VCN], id=number, created=number) for number in "12")
    findings = compare(WANTED, [second, first], {})
    assert (findings.adopt, findings.surplus) == ({VCN: first}, (second,))


@pytest.mark.parametrize("kind", ["instance", "cluster_network", "file_system"])
def test_of_two_that_may_be_in_use_none_is_removed(kind: str) -> None:
    (address, one) = next((address, each) for address, each in MADE.items() if each.kind == kind)
    with pytest.raises(ToolError, match=f"{re.escape(one.id)}(.|\n)*twin(.|\n)*console"):
        compare(WANTED, [*MADE.values(), replace(one, id="twin")], {})
    assert compare(WANTED, [*MADE.values(), replace(one, id="twin")], {address: one.id}).adopt.keys() == (
        MADE.keys() - {address}
    )


def test_a_state_that_is_older_than_the_cluster_is_stale_and_removes_nothing() -> None:
    """As after a state was restored: its controller is gone, and another one runs."""
    findings = compare(WANTED, list(MADE.values()), {**STATE, CONTROLLER: "gone"})
    assert (findings.stale, findings.removable, findings.adopt) == ({CONTROLLER: MADE[CONTROLLER]}, (), {})


def test_a_state_is_lost_if_it_is_empty_and_hosts_exist() -> None:
    assert compare(WANTED, list(MADE.values()), {}).state_lost
    network = [each for each in MADE.values() if each.kind not in ("instance", "cluster_network")]
    assert not compare(WANTED, network, {}).state_lost, "an interrupted first run: no host has ever been there"
    assert not compare(WANTED, list(MADE.values()), {VCN: MADE[VCN].id}).state_lost
    assert not compare(WANTED, [], {}).state_lost


def test_the_images_of_existing_hosts() -> None:
    def instance(name: str, image: str, **tags: str) -> TaggedResource:
        return TaggedResource("instance", name, name, "RUNNING", tags, image_id=image)

    found = [
        instance("demo-controller", "a"),
        instance("gpu-1", "b", pool="gpu"),
        instance("gpu-e1", "baked", pool="gpu", node="gpu-e1"),
        instance("old-1", "c", pool="old"),
        replace(instance("cpu-1", "d", pool="cpu"), state="TERMINATING"),
    ]
    assert existing_images(found, ["gpu", "cpu"], "demo") == {"controller": "a", "pool/gpu": "b"}
    login = [instance("demo-login-1", "e", role="login"), instance("demo-login-2", "e", role="login")]
    assert existing_images([*found, *login], ["gpu"], "demo") == {"controller": "a", "pool/gpu": "b", "login": "e"}


def test_login_nodes_are_adopted_and_further_ones_removed() -> None:
    address = 'module.login["three-kinds-login-1"].oci_core_instance.this'
    assert STATE[address]
    without = {known: ocid for known, ocid in STATE.items() if known != address}
    tags = {"gpucluster": "three-kinds", "role": "login"}
    first, second = (TaggedResource("instance", n, f"three-kinds-login-{n}", "RUNNING", tags) for n in "12")
    others = [each for known, each in MADE.items() if known != address]
    findings = compare(WANTED, [*others, first, second], without)
    assert (findings.adopt, findings.unwanted, findings.left) == ({address: first}, (second,), ())
    assert FILES in STATE


def test_another_cluster_of_this_name_is_not_a_duplicate() -> None:
    def controller(ocid: str, **others: str) -> TaggedResource:
        tags = {"gpucluster": "demo", "role": "controller", **others}
        return TaggedResource("instance", ocid, "demo-controller", "RUNNING", tags)

    ours, theirs = controller("a"), controller("b")
    with pytest.raises(ToolError, match="the state knows the controller a, and not b"):
        require_one_cluster([ours, theirs], {"a"}, "demo")
    require_one_cluster([ours, replace(theirs, state="TERMINATED")], {"a"}, "demo")
    require_one_cluster([ours, controller("b", gpucluster="other")], {"a"}, "demo")
    # Without one of them in the state, `compare` decides what is adopted.
    require_one_cluster([ours, theirs], set(), "demo")
