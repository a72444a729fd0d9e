"""The stand-in provider in Terraform's protocol: values and schemas on the wire, and what a failed call answers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tf.gen import tfplugin_pb2 as pb

from gpucluster.localcloud.provider import plugin
from gpucluster.localcloud.provider.schema import UNKNOWN, catalogue

INSTANCE = catalogue().resources["oci_core_instance"].schema


@pytest.mark.parametrize("value", [None, "text", 7, True, {"a": ["b", {"c": None}]}])
def test_a_value_comes_back_as_it_was_sent(value: Any) -> None:
    assert plugin._decode(plugin._encode(value)) == value


def test_a_value_that_the_cloud_will_set_is_unknown_on_the_wire() -> None:
    sent = plugin._encode({"id": UNKNOWN, "display_name": "gpu-1"})
    assert plugin._decode(sent) == {"id": UNKNOWN, "display_name": "gpu-1"}
    # Terraform takes any extension of code 0 as a value that is not known yet.
    assert b"\xd4\x00\x00" in sent.msgpack


def test_values_may_be_json_and_may_be_absent() -> None:
    assert plugin._decode(pb.DynamicValue(json=b'{"a": 1}')) == {"a": 1}
    assert plugin._decode(pb.DynamicValue()) is None


def test_the_schema_on_the_wire_has_every_attribute_and_block_with_its_bounds() -> None:
    block = plugin._schema_message(INSTANCE).block
    attributes = {each.name: each for each in block.attributes}
    assert set(attributes) == set(INSTANCE.attributes)
    assert json.loads(attributes["freeform_tags"].type) == ["map", "string"]
    for name, attribute in INSTANCE.attributes.items():
        message = attributes[name]
        flags = (attribute.required, attribute.optional, attribute.computed)
        assert (message.required, message.optional, message.computed) == flags, name
    nested = {each.type_name: each for each in block.block_types}
    assert set(nested) == set(INSTANCE.blocks)
    source = INSTANCE.blocks["source_details"]
    shown = nested["source_details"]
    assert (shown.min_items, shown.max_items) == (source.min_items, source.max_items)
    assert {each.name for each in shown.block.attributes} == set(source.attributes)


def test_the_path_of_a_difference_ends_at_the_attribute() -> None:
    path = plugin._attribute_path(INSTANCE, ("create_vnic_details", 0, "hostname_label"))
    assert [step.attribute_name or step.element_key_int for step in path.steps] == [
        "create_vnic_details", 0, "hostname_label",
    ]  # fmt: skip
    # Terraform compares a map as a whole.
    path = plugin._attribute_path(INSTANCE, ("metadata", "ssh_authorized_keys"))
    assert [step.attribute_name for step in path.steps] == ["metadata"]


def test_a_call_before_the_configuration_is_an_error_and_no_crash(tmp_path: Path) -> None:
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    try:
        servicer = plugin.Servicer(log)
        context: Any = None
        request = pb.ReadResource.Request(
            type_name="oci_core_vcn", current_state=plugin._encode({"id": "ocid1.vcn.local..x"})
        )
        answer = servicer.ReadResource(request, context)
    finally:
        os.close(log)
    (diagnostic,) = answer.diagnostics
    assert diagnostic.severity == pb.Diagnostic.ERROR
    assert "the stand-in provider failed in ReadResource of oci_core_vcn" in diagnostic.summary
    assert "Traceback" in (tmp_path / "log").read_text()
