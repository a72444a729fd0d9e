"""The HCL itself: formatted, valid, documented, and without anything that the real provider lacks."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucluster.localcloud.provider import installation
from gpucluster.localcloud.provider.schema import SchemaBlock, catalogue
from gpucluster.paths import terraform_dir

FACTS: dict[str, Any] = json.loads((Path(__file__).parent / "oracle_oci_8.28.0.json").read_text())
FOLDERS = sorted({path.parent for path in terraform_dir().rglob("*.tf") if ".terraform" not in path.parts})


def _ids(path: Path) -> str:
    return path.name


def test_the_files_are_formatted(terraform: str, terraform_environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        [terraform, "fmt", "-check", "-recursive", "-diff", str(terraform_dir())],
        env=dict(terraform_environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("folder", FOLDERS, ids=_ids)
@pytest.mark.parametrize("kind", ["variable", "output"])
def test_variables_and_outputs_are_described_and_in_order(folder: Path, kind: str) -> None:
    file = folder / f"{kind}s.tf"
    blocks = re.split(rf'^{kind} "', file.read_text(), flags=re.MULTILINE)[1:]
    names = [block.partition('"')[0] for block in blocks]
    assert names == sorted(names)
    assert all(re.search(r"^  description = ", block, re.MULTILINE) for block in blocks)
    if kind == "variable":
        assert all(re.search(r"^  type +=", block, re.MULTILINE) for block in blocks)
    others = [path.name for path in folder.glob("*.tf") if path != file and f'\n{kind} "' in path.read_text()]
    assert others == []


@pytest.mark.parametrize("folder", FOLDERS, ids=_ids)
def test_every_folder_states_which_provider_it_needs(folder: Path) -> None:
    text = (folder / "versions.tf").read_text()
    assert re.search(r'source\s+= "oracle/oci"', text)
    assert re.search(r'required_version = ">= 1\.5"', text)


def test_the_root_has_no_backend() -> None:
    assert not [path for path in terraform_dir().rglob("*.tf") if re.search(r'^\s*backend\s+"', path.read_text(), re.M)]


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


def test_the_root_uses_what_the_stand_in_knows() -> None:
    """`terraform validate` with the stand-in's schema is then also a check against the real one."""
    text = "\n".join(path.read_text() for path in terraform_dir().rglob("*.tf"))
    assert set(re.findall(r'^resource "(oci_\w+)"', text, re.M)) == set(catalogue().resources)
    assert set(re.findall(r'^data "(oci_\w+)"', text, re.M)) <= set(catalogue().data_sources)


def test_what_the_stand_in_changes_in_place_exists_and_is_not_a_new_resource_for_the_real_provider() -> None:
    for kind in catalogue().resources.values():
        for path in (*kind.updatable, *kind.replace_bare_metal, *(entry.partition(".")[0] for entry in kind.replace)):
            found = kind.schema.at(path)
            if found is None:
                assert path in ("defined_tags", "display_name", "freeform_tags"), f"{kind.type_name}.{path}"
            elif path in kind.updatable:
                forces = found.forces_new if isinstance(found, SchemaBlock) else found.force_new
                assert not forces, f"{kind.type_name}.{path}"
