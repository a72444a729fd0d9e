"""The policy language, the tables of permissions, and policies that the API stores and enforces."""

from __future__ import annotations

import pytest

from gpucluster.localcloud.auth import policies
from gpucluster.localcloud.auth.policies import (
    DynamicGroup,
    PolicySet,
    PolicySyntaxError,
    RequiredPermission,
    StoredPolicy,
    matching_rule,
    statement,
    tables,
)

pytestmark = pytest.mark.slow

TENANCY = "ocid1.tenancy.local..t"
HERE, BELOW, BESIDE = (f"ocid1.compartment.local..{name}" for name in "hbs")
PARENTS = {HERE: TENANCY, BELOW: HERE, BESIDE: TENANCY}
NAMES = {(TENANCY, "gpu"): HERE, (HERE, "nodes"): BELOW, (TENANCY, "other"): BESIDE}
ME = {"instance.id": "ocid1.instance.local..me", "instance.compartment.id": HERE, "tag.ops.role.value": "head"}
MY_GROUP = DynamicGroup("ocid1.dynamicgroup.local..g", "controllers", f"instance.id = '{ME['instance.id']}'")


def test_every_permission_that_is_needed_can_be_given_by_the_verb_of_some_type_or_by_its_name() -> None:
    named = [need for need in tables().operations.values() if need != policies.INHERITED]
    needed = {one for need in (*named, *tables().launch.values()) for one in need}
    assert needed <= tables().types["all-resources"]["manage"] | tables().unlisted


def test_verbs_add_up_and_families_are_their_types() -> None:
    instances = tables().types["instances"]
    assert instances["inspect"] < instances["read"] < instances["use"] < instances["manage"]
    assert tables().types["work-requests"]["manage"] == {"WORKREQUEST_INSPECT"}
    family = tables().types["compute-management-family"]["read"]
    assert family == {
        "INSTANCE_CONFIGURATION_INSPECT", "INSTANCE_CONFIGURATION_READ", "INSTANCE_POOL_INSPECT", "INSTANCE_POOL_READ",
        "CLUSTER_NETWORK_INSPECT", "CLUSTER_NETWORK_READ",
    }  # fmt: skip
    more = tables().types["instance-family"]
    assert "VNIC_READ" in more["inspect"]
    assert "VOLUME_ATTACHMENT_DELETE" in more["manage"] - more["use"]


# --- the language -----


def test_a_statement_is_read() -> None:
    read = statement("Allow dynamic-group 'Default'/'controllers' to use subnets in compartment id ocid1.compartment.x")
    assert read.subjects == (("Default", "controllers"),)
    assert read.permissions == {"SUBNET_READ", "SUBNET_ATTACH", "SUBNET_DETACH"}
    assert (read.place, read.condition) == ("ocid1.compartment.x", None)
    read = statement("ALLOW dynamic-group a, b TO {INSTANCE_READ, vnic_read} IN tenancy WHERE request.operation != 'X'")
    assert (read.subjects, read.place) == ((("Default", "a"), ("Default", "b")), "tenancy")
    assert read.permissions == {"INSTANCE_READ", "VNIC_READ"}
    assert statement("Allow group Domain/people to manage all-resources in compartment A:B").place == "A:B"
    assert statement("Allow any-user to inspect vcns in tenancy").names("Default", "anybody", "ocid1.x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "`allow` is expected at the end"),
        ("Permit dynamic-group a to read instances in tenancy", "`allow` is expected instead of `Permit`"),
        ("Allow dynamic-group a to own instances in tenancy", "`inspect` or `read` or `use` or `manage` is expected"),
        ("Allow dynamic-group a to read instanzes in tenancy", "there is no resource-type instanzes"),
        ("Allow dynamic-group a to {INSTANCE_EAT} in tenancy", "there is no permission INSTANCE_EAT"),
        ("Allow dynamic-group a to read instances", "`in` is expected at the end"),
        ("Allow dynamic-group a to read instances in region x", "`tenancy` or `compartment` is expected"),
        ("Allow dynamic-group a to read instances in tenancy or so", "nothing may follow before `or`"),
        ("Allow dynamic-group a to read instances in tenancy where x", "`=` or `!=` is expected at the end"),
        ("Allow dynamic-group a to read instances in tenancy where x = 1", "must be in quotes"),
        ("Allow dynamic-group a to read instances in tenancy where any {x = '1'", "`}` is expected at the end"),
        ("Allow dynamic-group a; to read instances in tenancy", "can't be read"),
    ],
)
def test_what_is_not_a_statement_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(PolicySyntaxError) as caught:
        statement(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        ("instance.id = 'ocid1.instance.local..me'", True),
        ("instance.id = 'ocid1.instance.local..you'", False),
        (f"Any {{instance.id = 'x', instance.compartment.id = '{HERE}'}}", True),
        (f"ALL {{instance.id = 'x', instance.compartment.id = '{HERE}'}}", False),
        ("All {tag.Ops.Role.value = 'head', instance.id != 'x'}", True),
        ("tag.Ops.Other.value != 'head'", False),  # an instance without the tag does not match, also with !=
    ],
)
def test_a_matching_rule_matches(rule: str, matches: bool) -> None:
    assert matching_rule(rule).holds(ME) is matches


@pytest.mark.parametrize("rule", ["", "any {}", "instance.id = x", "instance.shape = 'BM'", "instance.id 'x'"])
def test_what_is_not_a_matching_rule_is_refused(rule: str) -> None:
    with pytest.raises(PolicySyntaxError):
        matching_rule(rule)


# --- granted permissions -----


def _ancestors(compartment: str) -> tuple[str, ...]:
    above = PARENTS.get(compartment)
    return (compartment, *_ancestors(above)) if above else (compartment,) if compartment == TENANCY else ()


def _missing(
    *statements: str, at: str = HERE, need: str = "INSTANCE_READ", where: str = HERE, operation: str = "GetInstance"
) -> list[str]:
    law = PolicySet(
        (MY_GROUP,), (StoredPolicy(at, statements),), _ancestors, lambda parent, name: NAMES.get((parent, name))
    )
    found = law.missing(operation, [RequiredPermission(need, where)], ME)
    return [one.permission for one in found]


WHO = "Allow dynamic-group controllers to"


def test_a_right_holds_in_its_compartment_and_below_and_nowhere_else() -> None:
    right = f"{WHO} read instances in compartment id {HERE}"
    assert _missing(right) == []
    assert _missing(right, where=BELOW) == []
    assert _missing(right, where=BESIDE) == ["INSTANCE_READ"]
    assert _missing(right, where=TENANCY) == ["INSTANCE_READ"]
    assert _missing(f"{WHO} read instances in tenancy", at=TENANCY, where=BESIDE) == []
    assert _missing(f"{WHO} read instances in tenancy", at=HERE) == ["INSTANCE_READ"], "not a compartment's to say"
    assert _missing(f"{WHO} read instances in compartment gpu:nodes", at=TENANCY, where=BELOW) == []
    assert _missing(f"{WHO} read instances in compartment gpu:nodes", at=TENANCY, where=HERE) == ["INSTANCE_READ"]


@pytest.mark.parametrize(
    ("right", "enough"),
    [
        ("read instances", True),
        ("manage instance-family", True),
        ("read all-resources", True),
        ("inspect instances", False),
        ("manage instance-images", False),
    ],
)
def test_a_verb_permits_what_is_below_it(right: str, enough: bool) -> None:
    assert (_missing(f"{WHO} {right} in compartment id {HERE}") == []) is enough


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("request.permission = 'INSTANCE_READ'", True),
        ("request.permission = 'INSTANCE_CREATE'", False),
        ("request.permission != 'INSTANCE_DELETE'", True),
        ("any {request.permission = 'INSTANCE_CREATE', request.operation = 'getinstance'}", True),
        ("all {request.permission = 'INSTANCE_READ', request.operation = 'ListInstances'}", False),
        ("target.tag-namespace.name != 'x'", False),  # not a variable of this request
    ],
)
def test_a_condition_narrows_a_right(condition: str, holds: bool) -> None:
    right = f"{WHO} manage instances in compartment id {HERE} where {condition}"
    assert (_missing(right) == []) is holds


@pytest.mark.parametrize(
    ("subject", "meant"),
    [
        ("dynamic-group Controllers", True),
        ("dynamic-group 'default'/'controllers'", True),
        ("dynamic-group id ocid1.dynamicgroup.local..g", True),
        ("dynamic-group others, controllers", True),
        ("any-user", True),
        ("dynamic-group 'Other'/'controllers'", False),
        ("dynamic-group others", False),
        ("group controllers", False),
        ("service controllers", False),
    ],
)
def test_a_right_is_given_to_who_is_named(subject: str, meant: bool) -> None:
    assert (_missing(f"Allow {subject} to read instances in compartment id {HERE}") == []) is meant
