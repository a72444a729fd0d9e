"""Identity with the real SDK: domains, compartments, users, dynamic groups and policies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import oci
import pytest

from tests.localcloud.api_harness import Api, refused, running
from tests.localcloud.entitled import new_compartment

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "cloud"


@pytest.fixture
def api(home: Path) -> Iterator[Api]:
    with running(home) as api:
        yield api


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("server") / "cloud") as api:
        yield api


# identity


def test_identity(shared: Api) -> None:
    domain = shared.domain
    assert domain == "local:LOCAL-1-AD-1"
    faults = shared.identity.list_fault_domains(shared.tenancy, domain).data
    assert [one.name for one in faults] == ["FAULT-DOMAIN-1", "FAULT-DOMAIN-2", "FAULT-DOMAIN-3"]
    assert shared.identity.list_region_subscriptions(shared.tenancy).data[0].region_name == "local-1"
    assert shared.identity.list_regions().data[0].name == "local-1"
    assert shared.identity.get_compartment(shared.tenancy).data.lifecycle_state == "ACTIVE"
    assert shared.identity.get_user(shared.config["user"]).data.lifecycle_state == "ACTIVE"
    details = oci.identity.models.CreateCompartmentDetails(
        compartment_id=shared.tenancy, name="gpu", description="for the cluster"
    )
    compartment = shared.identity.create_compartment(details).data
    with refused(409, "Conflict"):
        shared.identity.create_compartment(details)
    assert shared.network.list_vcns(compartment.id).data == []
    group = shared.identity.create_dynamic_group(
        oci.identity.models.CreateDynamicGroupDetails(
            compartment_id=shared.tenancy, name="nodes", description="d", matching_rule="any {instance.id = 'x'}"
        )
    ).data
    assert group.matching_rule == "any {instance.id = 'x'}"
    shared.identity.delete_dynamic_group(group.id)
    shared.identity.delete_compartment(compartment.id)
    assert shared.identity.get_compartment(compartment.id).data.lifecycle_state == "DELETED"


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
        api.identity.create_dynamic_group(create(**details, compartment_id=new_compartment(api, "rule")))
