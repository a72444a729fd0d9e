"""The policy language, the tables of permissions, and policies that the API stores and enforces."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import oci
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

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
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.server.application import all_routes
from gpucluster.localcloud.server.home import open_authority, open_cloud
from gpucluster.localcloud.state.tenancy import Tenancy, key_id
from tests.localcloud.api_harness import Api, refused, running
from tests.localcloud.entitled import Entitled, key_of_an_earlier_release

pytestmark = pytest.mark.slow

TENANCY = "ocid1.tenancy.local..t"
HERE, BELOW, BESIDE = (f"ocid1.compartment.local..{name}" for name in "hbs")
PARENTS = {HERE: TENANCY, BELOW: HERE, BESIDE: TENANCY}
NAMES = {(TENANCY, "gpu"): HERE, (HERE, "nodes"): BELOW, (TENANCY, "other"): BESIDE}
ME = {"instance.id": "ocid1.instance.local..me", "instance.compartment.id": HERE, "tag.ops.role.value": "head"}
MY_GROUP = DynamicGroup("ocid1.dynamicgroup.local..g", "controllers", f"instance.id = '{ME['instance.id']}'")


# --- the tables -----


def test_every_operation_of_the_api_has_an_entry_or_is_the_operators() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cloud = open_cloud(Path(folder), NullEngine(Path(folder) / "null"), open_authority(Path(folder)))
        offered = {route.operation for route in all_routes(cloud)}
        cloud.close()
    known, operators = set(tables().operations), tables().operator_only
    assert offered - known - operators == set(), "permissions.toml lacks these"
    assert (known | operators) - offered == set(), "permissions.toml has entries for what does not exist"
    assert known & operators == set()


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


# --- the API -----


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("policies") / "cloud") as api:
        yield api


def _compartment(api: Api, name: str) -> str:
    details = oci.identity.models.CreateCompartmentDetails(compartment_id=api.tenancy, name=name, description="d")
    return str(api.identity.create_compartment(details).data.id)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Allow dynamic-group a to swallow instances in tenancy", "can't be parsed"),
        ("Allow dynamic-group a to read instances in compartment nowhere", "not part of the policy compartment"),
        ("Allow dynamic-group a to read instances in compartment id ocid1.compartment.local..x", "not part of"),
    ],
)
def test_a_policy_that_could_not_be_enforced_is_refused(api: Api, text: str, said: str) -> None:
    models = oci.identity.models
    good = "Allow dynamic-group a to read instances in tenancy"
    details = {"compartment_id": api.tenancy, "name": "p", "description": "d"}
    with refused(400, "InvalidParameter") as words:
        api.identity.create_policy(models.CreatePolicyDetails(**details, statements=[good, text]))
    assert said in words[0]
    policy = api.identity.create_policy(models.CreatePolicyDetails(**details, statements=[good])).data
    with refused(400, "InvalidParameter"):
        api.identity.update_policy(policy.id, models.UpdatePolicyDetails(statements=[text]))
    assert api.identity.get_policy(policy.id).data.statements == [good]
    api.identity.delete_policy(policy.id)


def test_a_dynamic_group_needs_a_rule_and_lives_in_the_tenancy(api: Api) -> None:
    details = {"name": "g", "description": "d", "matching_rule": "instance.id = 'x'"}
    create = oci.identity.models.CreateDynamicGroupDetails
    with refused(400, "InvalidParameter"):
        api.identity.create_dynamic_group(
            create(**{**details, "matching_rule": "everybody"}, compartment_id=api.tenancy)
        )
    with refused(400, "InvalidParameter"):
        api.identity.create_dynamic_group(create(**details, compartment_id=_compartment(api, "rule")))


def test_an_instance_may_do_what_policies_allow_from_then_on_and_only_then(api: Api, tmp_path: Path) -> None:
    subnet = api.subnet(api.vcn())
    there = _compartment(api, "there")
    mine, other = api.launch(subnet, "mine"), api.launch(subnet, "other", compartment_id=there)
    one, two = (Entitled(api, which.id, tmp_path / which.display_name, name="x") for which in (mine, other))
    one.in_group()
    with refused(404, "NotAuthorizedOrNotFound") as words:
        one.compute.get_instance(mine.id)
    assert words == ["Authorization failed or requested resource not found."], "OCI does not say which"
    one.allow([f"Allow dynamic-group {one.group.name} to read instances in compartment there"])
    with refused(404, "NotAuthorizedOrNotFound"):
        one.compute.get_instance(mine.id)
    assert one.compute.get_instance(other.id).status == 200
    assert [i.id for i in one.compute.list_instances(there).data] == [other.id]
    with refused(404, "NotAuthorizedOrNotFound"):
        two.compute.get_instance(other.id)  # is in no group
    one.allow([f"Allow dynamic-group {one.group.name} to manage all-resources in tenancy"])
    assert one.compute.get_instance(mine.id).status == 200
    with refused(404, "NotAuthorizedOrNotFound"):
        one.identity.delete_policy("ocid1.policy.local..x")  # only the operator may do it, independent of policies
    one.allow([])
    with refused(404, "NotAuthorizedOrNotFound"):
        one.compute.get_instance(mine.id)
    api.identity.delete_dynamic_group(one.group.id)


def test_an_instance_that_is_gone_has_no_identity_and_its_key_goes_at_the_next_start(api: Api, tmp_path: Path) -> None:
    instance = api.launch(api.subnet(api.vcn("10.78.0.0/16", "gone"), "10.78.0.0/24"), "gone")
    one = Entitled(api, instance.id, tmp_path / "config", name="gone").in_group()
    one.allow([f"Allow dynamic-group {one.group.name} to read instances in tenancy"])
    assert one.compute.get_instance(instance.id).status == 200
    api.compute.terminate_instance(instance.id)
    api.wait(api.compute.get_instance, instance.id, "TERMINATED")
    with refused(401, "NotAuthenticated"):
        one.compute.get_instance(instance.id)
    folder = api.home / "credentials" / "instances" / instance.id
    assert folder.is_dir()
    api.kill()
    api.start()
    assert not folder.exists()


@pytest.mark.parametrize("owner", ["../stolen", "stolen", "ocid1.user.local..x", "ocid1.instance.local..", "."])
def test_a_key_id_leads_nowhere_else(tmp_path: Path, owner: str) -> None:
    """The client chooses the owner in a keyId: only an instance's OCID may become the name of a folder."""
    key_of_an_earlier_release(tmp_path, TENANCY, "ocid1.instance.local..a")
    made = tmp_path / "credentials" / "instances" / "ocid1.instance.local..a"
    public = load_pem_public_key((made / "public.pem").read_bytes())
    assert isinstance(public, RSAPublicKey)
    for name in ("stolen", "ocid1.user.local..x", "ocid1.instance.local.."):
        shutil.copytree(made, made.parent / name)
    shutil.copy(made / "public.pem", made.parent)
    identity = Tenancy(TENANCY, (), made.parent)
    assert identity.key(key_id(TENANCY, "ocid1.instance.local..a", public)) is not None
    assert identity.key(key_id("ocid1.tenancy.local..z", "ocid1.instance.local..a", public)) is None
    assert identity.key(key_id(TENANCY, owner, public)) is None
