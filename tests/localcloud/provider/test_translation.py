"""Names, types and values of the states of Terraform, translated to the JSON of the API and back."""

from __future__ import annotations

from gpucluster.localcloud.provider.schema import known
from gpucluster.localcloud.provider.translation import from_wire, to_wire
from tests.localcloud.provider.instance_values import INSTANCE, KINDS, planned


def test_an_instance_is_asked_for_as_the_real_provider_does() -> None:
    assert to_wire(KINDS["oci_core_instance"].schema, planned("oci_core_instance", **INSTANCE)) == {
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
    assert from_wire(schema, body, planned("oci_core_instance", **INSTANCE))["agent_config"] == []
    assert from_wire(schema, body, {}, everything=True)["agent_config"][0]["is_monitoring_disabled"] is False


def test_what_the_api_does_not_show_keeps_its_value() -> None:
    state = from_wire(KINDS["oci_core_instance"].schema, {"id": "x"}, planned("oci_core_instance", **INSTANCE))
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
