"""Authorization of instances: what a request requires, and what policies of the store allow."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from oci.core import models

from gpucluster.localcloud.auth.policies import (
    tables,
)
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.server.application import all_routes
from gpucluster.localcloud.server.home import open_authority, open_cloud
from tests.localcloud.api_harness import Api, refused, running
from tests.localcloud.entitled import Entitled, new_compartment

pytestmark = pytest.mark.slow


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


# --- the API -----


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("policies") / "cloud") as api:
        yield api


def test_an_instance_may_do_what_policies_allow_from_then_on_and_only_then(api: Api, tmp_path: Path) -> None:
    subnet = api.subnet(api.vcn())
    there = new_compartment(api, "there")
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


def test_defined_tags_that_an_instance_does_not_have_need_a_right_on_their_namespace(api: Api, tmp_path: Path) -> None:
    subnet = api.subnet(api.vcn("10.79.0.0/16", "tags"), "10.79.0.0/24")
    has = {"Finance": {"CostCenter": "gpu"}}
    instance = api.launch(subnet, "tagged", defined_tags=has)
    one = Entitled(api, instance.id, tmp_path / "config", name="tags").in_group()
    use = f"Allow dynamic-group {one.group.name} to use instances in tenancy"

    def tag(tags: dict[str, dict[str, str]]) -> None:
        one.compute.update_instance(instance.id, models.UpdateInstanceDetails(defined_tags=tags))

    one.allow([use])
    tag(has)
    other = {**has, "Ops": {"Owner": "ann"}}
    with refused(404, "NotAuthorizedOrNotFound"):
        tag(other)
    spaces = f"Allow dynamic-group {one.group.name} to use tag-namespaces in tenancy"
    one.allow([use, f"{spaces} where target.tag-namespace.name = 'Finance'"])
    with refused(404, "NotAuthorizedOrNotFound"):
        tag(other)
    one.allow([use, f"{spaces} where target.tag-namespace.name = 'Ops'"])
    tag(other)
