"""What a plan of the stand-in provider changes, and what it leaves as it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpucluster.localcloud.provider.planning import differences, with_kept_zeros, with_unknowns
from gpucluster.localcloud.provider.schema import UNKNOWN
from tests.localcloud.provider.instance_values import KINDS


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
