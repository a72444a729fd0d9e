"""Outputs of Terraform as types: a whole cluster, an earlier or damaged state, and what a cluster is."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import NewerReleaseError, TerraformError
from gpucluster.handover.outputs import Identity, Outputs, ServiceRecord

GOLDEN = Path(__file__).parents[1] / "golden"


def outputs(name: str = "local_demo") -> dict[str, Any]:
    made: dict[str, Any] = json.loads((GOLDEN / name / "outputs.json").read_text())
    return made


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/outputs.json")))
def test_every_member_of_the_golden_outputs_arrives(name: str) -> None:
    raw = outputs(name)
    parsed = Outputs.parse(raw)
    cluster = raw["cluster"]
    assert (parsed.name, parsed.region, parsed.controller.id) == (
        cluster["name"], cluster["region"], cluster["controller"]["id"],
    )  # fmt: skip
    assert set(parsed.pools) == set(cluster["pools"])
    for pool, made in parsed.pools.items():
        assert [each.name for each in made.instances] == [each["name"] for each in cluster["pools"][pool]["instances"]]
    assert (parsed.oke is None) == (not raw.get("oke"))
    assert parsed.elastic_compartment_id


def test_what_a_cluster_does_not_have_is_empty() -> None:
    raw = outputs()
    cluster = raw["cluster"]
    cluster["home"] = {"file_system_id": None, "mount_target_ip": None, "export_path": None}
    cluster.update(bastion_id=None, login=None, private_subnet_domain_name=None, elastic_compartment_id=None)
    parsed = Outputs.parse({**raw, "oke": None, "identity": None})
    assert (parsed.home_file_system_id, parsed.home_server, parsed.home_export_path) == ("", "", "")
    assert (parsed.bastion_id, parsed.login, parsed.private_subnet_domain_name, parsed.identity) == (None, (), "", "")
    assert parsed.elastic_compartment_id == cluster["compartment_id"]


def test_a_state_without_a_cluster_or_of_a_newer_release_is_refused() -> None:
    with pytest.raises(TerraformError, match="the state holds no cluster"):
        Outputs.parse({})
    raw = outputs()
    raw["cluster"]["contract_version"] = 99
    with pytest.raises(NewerReleaseError, match="Terraform's state has the format 99") as caught:
        Outputs.parse(raw)
    assert "Use gpucluster of the last apply or a newer one" in caught.value.hint
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("path", [("name",), ("controller", "id"), ("home", "export_path"), ("pools",)])
def test_a_member_that_is_missing_is_named(path: tuple[str, ...]) -> None:
    raw = copy.deepcopy(outputs())
    place = raw["cluster"]
    for part in path[:-1]:
        place = place[part]
    del place[path[-1]]
    with pytest.raises(TerraformError, match=f"lacks '{path[-1]}'"):
        Outputs.parse(raw)


def test_the_identity_has_what_the_hosts_have_reported() -> None:
    assert Identity.parse({}) == Identity()
    identity = Identity.parse(
        {
            "identity": {
                "contract_version": 1, "compartment_id": "c", "id": "ab12", "name": None, "login_keys": {"ann": "key"},
                "host_keys": {"ocid1.x": "ssh-ed25519 AAAA"}, "certificates": None,
            }
        }
    )  # fmt: skip
    assert (identity.id, identity.name, identity.login_keys, identity.certificates) == ("ab12", "", {"ann": "key"}, {})
    assert identity.recorded["host_keys"] == {"ocid1.x": "ssh-ed25519 AAAA"}
    assert set(identity.recorded) == {"host_keys", "certificates", "secrets", "physical_hosts", "reported_hosts"}
    assert identity.ssh_authority == ""


def pair(**service: str) -> Outputs:
    """A cluster with a standby."""
    raw = outputs()
    raw["cluster"].update(standby={**raw["cluster"]["controller"], "id": "two", "private_ip": "10.9.9.3"})
    raw["cluster"]["standby"]["name"] = "demo-standby"
    return Outputs.parse({**raw, "service": service})


def test_the_host_in_service_has_the_name_of_the_controller_and_the_address_that_moves() -> None:
    first = pair(address="10.9.9.9")
    assert first.standby is not None
    assert first.controller_address == "10.9.9.9"
    turned = pair(host="standby", address="10.9.9.9", begun="yes")
    assert (turned.controller.id, turned.controller.name) == ("two", first.controller.name)
    assert turned.standby is not None
    assert (turned.standby.id, turned.standby.name) == (first.controller.id, "demo-standby")
    assert (turned.controller_address, turned.service.begun) == ("10.9.9.9", True)
    back = turned.turned()
    assert (back.controller, back.standby, back.service.host) == (first.controller, first.standby, "controller")


def test_without_a_standby_the_record_means_nothing() -> None:
    raw = outputs()
    parsed = Outputs.parse({**raw, "service": {"host": "standby", "address": "10.9.9.9"}})
    assert parsed.standby is None
    assert parsed.controller_address == parsed.controller.private_ip == raw["cluster"]["controller"]["private_ip"]
    with pytest.raises(TerraformError, match="no standby"):
        parsed.turned()


@pytest.mark.parametrize(
    "record", [ServiceRecord(), ServiceRecord("standby", "10.0.0.9", begun=True), ServiceRecord(current=True)]
)
def test_a_record_is_read_as_it_was_written(record: ServiceRecord) -> None:
    assert ServiceRecord.parse({"service": record.to_dict()}) == record
    assert ServiceRecord.parse({}) == ServiceRecord.parse({"service": None}) == ServiceRecord()
