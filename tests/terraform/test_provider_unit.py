"""The stand-in provider without Terraform: names and types translated, plans made, files installed."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.localcloud.provider import installation
from gpucluster.localcloud.provider.operations import ResourceOperator, describe
from gpucluster.localcloud.provider.planning import differences, dotted, with_kept_zeros, with_unknowns
from gpucluster.localcloud.provider.rest import ApiCredentials, CredentialsError, RestClient, ServiceError
from gpucluster.localcloud.provider.schema import UNKNOWN, catalogue, known
from gpucluster.localcloud.provider.translation import from_wire, to_wire

KINDS = catalogue().resources
ADDRESS = "example.test/oracle/oci"


def _planned(type_name: str, **values: Any) -> dict[str, Any]:
    return with_unknowns(KINDS[type_name].schema, values)


INSTANCE = {
    "availability_domain": "ad",
    "compartment_id": "c",
    "display_name": "compute-1",
    "shape": "VM.Standard.E5.Flex",
    "preserve_boot_volume": False,
    "metadata": {"ssh_authorized_keys": "ssh-ed25519 AAAA"},
    "create_vnic_details": [{"assign_public_ip": "true", "hostname_label": "compute-1", "subnet_id": "s"}],
    "shape_config": [{"ocpus": 4, "memory_in_gbs": 32}],
    "source_details": [{"source_type": "image", "source_id": "i", "boot_volume_size_in_gbs": "256"}],
    "timeouts": {"create": "60m", "delete": None, "update": None},
}


def test_an_instance_is_asked_for_as_the_real_provider_does() -> None:
    assert to_wire(KINDS["oci_core_instance"].schema, _planned("oci_core_instance", **INSTANCE)) == {
        "availabilityDomain": "ad",
        "compartmentId": "c",
        "displayName": "compute-1",
        "shape": "VM.Standard.E5.Flex",
        "metadata": {"ssh_authorized_keys": "ssh-ed25519 AAAA"},
        "createVnicDetails": {"assignPublicIp": True, "hostnameLabel": "compute-1", "subnetId": "s"},
        "shapeConfig": {"ocpus": 4, "memoryInGBs": 32},
        "sourceDetails": {"sourceType": "image", "imageId": "i", "bootVolumeSizeInGBs": 256},
    }


def test_port_ranges_are_one_level_deeper_on_the_wire() -> None:
    rule = {
        "protocol": "6",
        "source": "10.0.0.0/16",
        "stateless": False,
        "tcp_options": [{"min": 22, "max": 22, "source_port_range": []}],
    }
    schema = KINDS["oci_core_security_list"].schema
    body = to_wire(schema, {"compartment_id": "c", "vcn_id": "v", "ingress_security_rules": [rule]})
    assert body["ingressSecurityRules"] == [
        {
            "protocol": "6",
            "source": "10.0.0.0/16",
            "isStateless": False,
            "tcpOptions": {"destinationPortRange": {"min": 22, "max": 22}},
        }
    ]
    shown = from_wire(schema, {**body, "id": "l", "lifecycleState": "AVAILABLE"}, {})
    assert shown["state"] == "AVAILABLE"
    assert shown["ingress_security_rules"][0]["tcp_options"] == rule["tcp_options"]
    assert shown["ingress_security_rules"][0]["icmp_options"] == []


def test_what_was_never_configured_stays_out_of_the_state_but_not_of_an_import() -> None:
    schema = KINDS["oci_core_instance"].schema
    body = {"id": "x", "agentConfig": {"isMonitoringDisabled": False}, "launchOptions": {"firmware": "UEFI_64"}}
    assert from_wire(schema, body, _planned("oci_core_instance", **INSTANCE))["agent_config"] == []
    assert from_wire(schema, body, {}, everything=True)["agent_config"][0]["is_monitoring_disabled"] is False


def test_what_the_api_does_not_show_keeps_its_value() -> None:
    state = from_wire(KINDS["oci_core_instance"].schema, {"id": "x"}, _planned("oci_core_instance", **INSTANCE))
    assert state["preserve_boot_volume"] is False
    assert state["source_details"][0]["source_id"] == "i"
    assert state["timeouts"] == INSTANCE["timeouts"]
    assert known(state) == state


def test_odd_names_are_found_whatever_their_capitals() -> None:
    schema = KINDS["oci_core_vcn"].schema
    state = from_wire(schema, {"id": "x", "isIpv6Enabled": True, "ipv6CidrBlocks": ["fd00::/56"]}, {})
    assert (state["is_ipv6enabled"], state["ipv6cidr_blocks"]) == (True, ["fd00::/56"])


def test_tags_with_namespaces_are_flat_in_terraform() -> None:
    schema = KINDS["oci_core_vcn"].schema
    assert to_wire(schema, {"defined_tags": {"ops.owner": "ann"}})["definedTags"] == {"ops": {"owner": "ann"}}
    state = from_wire(schema, {"definedTags": {"ops": {"owner": "ann"}}, "systemTags": {}}, {})
    assert state["defined_tags"] == {"ops.owner": "ann"}


@pytest.mark.parametrize(
    ("change", "replaces"),
    [
        ({"display_name": "other"}, []),
        ({"availability_domain": "other"}, ["availability_domain"]),
        ({"shape_config": [{"ocpus": 8, "memory_in_gbs": 64}]}, []),
        # Since 5.40 of the real provider, another image replaces the boot volume of the same instance.
        ({"source_details": [{"source_type": "image", "source_id": "j"}]}, []),
        ({"metadata": {"ssh_authorized_keys": "other"}}, ["metadata.ssh_authorized_keys"]),
        ({"metadata": {**INSTANCE["metadata"], "note": "x"}}, []),  # type: ignore[dict-item]
        ({"timeouts": {"create": "90m", "delete": None, "update": None}}, []),
        ({"shape_config": []}, []),
        ({"compartment_id": "d"}, []),
        ({"create_vnic_details": []}, ["create_vnic_details"]),
        ({"platform_config": [{"type": "AMD_VM"}]}, []),
        ({"platform_config": [{"type": "AMD_MILAN_BM_GPU"}]}, ["platform_config"]),
        ({"launch_options": [{"firmware": "UEFI_64"}]}, ["launch_options"]),
    ],
)
def test_what_forces_a_new_instance(change: dict[str, Any], replaces: list[str]) -> None:
    kind = KINDS["oci_core_instance"]
    before = known(_planned("oci_core_instance", **INSTANCE))
    after = known(_planned("oci_core_instance", **{**INSTANCE, **change}))
    if change.get("source_details"):
        after["source_details"][0]["boot_volume_size_in_gbs"] = "256"
    paths = [dotted(path) for path in differences(kind.schema, before, after)]
    assert paths
    assert [path for path in paths if kind.forces_replacement(path, before, after)] == replaces


def test_what_is_changed_in_place_on_oci_and_not_here_is_refused() -> None:
    before = known(_planned("oci_core_instance", id="i", **INSTANCE))
    client: Any = None
    with pytest.raises(ServiceError, match="OCI changes compartment_id of Instance in place"):
        ResourceOperator(client).update(KINDS["oci_core_instance"], before, {**before, "compartment_id": "d"})


def test_an_empty_value_of_the_real_provider_is_not_a_change_where_nothing_is_set() -> None:
    schema = KINDS["oci_core_security_list"].schema
    rule = {"protocol": "6", "source": "10.0.0.0/16", "source_type": None, "description": None, "stateless": None}
    other = {**rule, "protocol": "17"}
    stored = {**rule, "source_type": "CIDR_BLOCK", "description": "", "stateless": False}
    kept = with_kept_zeros(schema, {"ingress_security_rules": [stored]}, {"ingress_security_rules": [rule, other]})
    assert kept["ingress_security_rules"] == [stored, other]
    schema = KINDS["oci_core_instance"].schema
    zeros = {"preserve_boot_volume": False, "async": False, "shape": "s", "source_details": [{"kms_key_id": "k"}]}
    kept = with_kept_zeros(schema, zeros, {"preserve_boot_volume": None, "shape": None, "source_details": [{}]})
    assert (kept["preserve_boot_volume"], kept["shape"]) == (False, None)


def test_sets_have_no_order() -> None:
    schema = KINDS["oci_core_subnet"].schema
    assert list(differences(schema, {"security_list_ids": ["a", "b"]}, {"security_list_ids": ["b", "a"]})) == []
    schema = KINDS["oci_core_route_table"].schema
    one, two = {"network_entity_id": "a"}, {"network_entity_id": "b"}
    assert list(differences(schema, {"route_rules": [one, two]}, {"route_rules": [two, one]})) == []
    assert list(differences(schema, {"route_rules": [one, two]}, {"route_rules": [two]})) == [("route_rules",)]


@given(st.sampled_from(sorted(KINDS)), st.dictionaries(st.text(max_size=4), st.text(max_size=4)))
def test_a_plan_names_every_member_and_decides_nothing_that_was_configured(
    type_name: str, tags: dict[str, str]
) -> None:
    schema = KINDS[type_name].schema
    planned = with_unknowns(schema, {"freeform_tags": tags})
    assert set(planned) >= set(schema.attributes) | set(schema.blocks)
    if "freeform_tags" in schema.attributes:
        assert planned["freeform_tags"] == tags
    assert planned["id"] is UNKNOWN


def test_an_error_reads_like_the_real_providers() -> None:
    error = ServiceError(409, "IncorrectState", "Still in use.", target="DELETE /20160918/vcns/x", request_id="r-1")
    assert describe(error, "Core Vcn", "DeleteVcn").splitlines() == [
        "409-IncorrectState, Still in use.",
        "Suggestion: Please update the parameter(s) in the Terraform config as per error message Still in use.",
        "Request Target: DELETE /20160918/vcns/x",
        f"Provider version: {installation.VERSION}, stand-in for the local cloud",
        "Service: Core Vcn",
        "Operation Name: DeleteVcn",
        "OPC request ID: r-1",
    ]


def test_a_missing_or_wrong_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"key\.pem can't be read: No such file"):
        RestClient("http://127.0.0.1:1", ApiCredentials("t", "u", "f", tmp_path / "key.pem"))
    (tmp_path / "key.pem").write_text("no key")
    with pytest.raises(CredentialsError, match="is not a private key"):
        RestClient("http://127.0.0.1:1", ApiCredentials("t", "u", "f", tmp_path / "key.pem"))


def test_installing_twice_changes_nothing_and_the_package_is_the_same_everywhere(tmp_path: Path) -> None:
    installation.install(tmp_path / "one", ADDRESS)
    installation.install(tmp_path / "two", ADDRESS)
    (program,) = (tmp_path / "one" / ADDRESS / installation.VERSION).glob(
        f"*/terraform-provider-oci_v{installation.VERSION}"
    )
    other = tmp_path / "two" / program.relative_to(tmp_path / "one")
    # Terraform keeps a checksum of the package; it must not depend on this machine's Python or folders.
    assert program.read_bytes() == other.read_bytes()
    assert str(tmp_path) not in program.read_text()
    assert stat.S_IMODE(program.stat().st_mode) & stat.S_IXUSR
    before = program.stat().st_mtime_ns, (tmp_path / "one" / "launch").stat().st_mtime_ns
    installation.install(tmp_path / "one", ADDRESS)
    assert before == (program.stat().st_mtime_ns, (tmp_path / "one" / "launch").stat().st_mtime_ns)
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["example.test", "launch"]


def test_the_installed_program_starts_from_anywhere_and_reports_what_it_is(tmp_path: Path) -> None:
    """A folder of the working directory that is named like the package must not be taken for it."""
    installation.install(tmp_path / "a b", ADDRESS)
    (program,) = (tmp_path / "a b" / ADDRESS / installation.VERSION).glob("*/*")
    (tmp_path / "gpucluster").mkdir()
    (tmp_path / "gpucluster" / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    linked = tmp_path / "linked"
    linked.symlink_to(program.parent)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [linked / program.name], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Terraform starts it" in done.stderr
