"""Resources and data sources of the stand-in provider: what makes a new resource, and the real provider's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucluster.localcloud.provider import installation
from gpucluster.localcloud.provider.planning import differences, dotted
from gpucluster.localcloud.provider.schema import SchemaBlock, catalogue, known
from tests.localcloud.provider.instance_values import INSTANCE, KINDS, planned


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
    before = known(planned("oci_core_instance", **INSTANCE))
    after = known(planned("oci_core_instance", **{**INSTANCE, **change}))
    if change.get("source_details"):
        after["source_details"][0]["boot_volume_size_in_gbs"] = "256"
    paths = [dotted(path) for path in differences(kind.schema, before, after)]
    assert paths
    assert [path for path in paths if kind.forces_replacement(path, before, after)] == replaces


FACTS: dict[str, Any] = json.loads(Path(__file__).with_name("oracle_oci_8.28.0.json").read_text())


def _differences(at: str, block: SchemaBlock, facts: Mapping[str, Any]) -> list[str]:
    found = []
    for name, attribute in block.attributes.items():
        fact = facts["attributes"].get(name)
        flags = [flag for flag in ("required", "optional", "computed", "force_new") if getattr(attribute, flag)]
        if fact is None or fact["type"] != attribute.type or fact["flags"] != flags:
            found.append(f"{at}.{name}: {attribute.type} {flags} is {fact} in the real provider")
    found += [f"{at}.{name} is missing" for name in sorted(set(facts["attributes"]) - set(block.attributes))]
    for name, nested in block.blocks.items():
        fact = facts.get("blocks", {}).get(name)
        ours = (nested.nesting, nested.min_items, nested.max_items, nested.force_new)
        if fact is None or (fact["nesting"], fact["min"], fact["max"], fact.get("force_new", False)) != ours:
            found.append(f"{at}.{name}: {ours} is not as in the real provider")
        else:
            found += _differences(f"{at}.{name}", nested, fact)
    return found


def test_the_stand_in_has_the_real_providers_schema() -> None:
    """It may lack nested blocks that no cluster uses; what it has is as in oracle/oci, attribute by attribute."""
    known = catalogue()
    assert known.version == FACTS["version"] == installation.VERSION
    found = []
    for name, kind in known.resources.items():
        found += _differences(name, kind.schema, FACTS["resources"][name])
    for name, lookup in known.data_sources.items():
        found += _differences(name, lookup.schema, FACTS["data_sources"][name])
    assert found == []


def test_what_the_stand_in_changes_in_place_exists_and_is_not_a_new_resource_for_the_real_provider() -> None:
    for kind in catalogue().resources.values():
        for path in (*kind.updatable, *kind.replace_bare_metal, *(entry.partition(".")[0] for entry in kind.replace)):
            found = kind.schema.at(path)
            if found is None:
                assert path in ("defined_tags", "display_name", "freeform_tags"), f"{kind.type_name}.{path}"
            elif path in kind.updatable:
                forces = found.forces_new if isinstance(found, SchemaBlock) else found.force_new
                assert not forces, f"{kind.type_name}.{path}"
