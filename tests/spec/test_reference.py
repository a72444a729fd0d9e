"""The reference page and the schema have every key, and the schema refuses what is wrong."""

from __future__ import annotations

import jsonschema
import pytest

from gpucluster.spec import json_schema
from tests.spec.spec_texts import LOCAL, MINIMAL, OCI
from tests.spec.test_spec import DEMO, REPOSITORY, _against_schema


def test_the_schema_is_a_schema_and_accepts_what_is_right() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    for text in (LOCAL, OCI, MINIMAL, DEMO.read_text()):
        _against_schema(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: demo", "name: Demo_1"),
        ("count: 2", 'count: "2"'),
        ("shape: BM.GPU4.8", "shape: BM.GPU5.8"),
        ("provider: local", "provider: aws"),
        ("  compute:", "  all:"),
        ("name: demo", "name: demo\nnam: x"),
        ("ssh_allowed_cidrs: [127.0.0.0/8]", "ssh_allowed_cidrs: []"),
    ],
)
def test_the_schema_refuses_what_is_wrong(old: str, new: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        _against_schema(LOCAL.replace(old, new))


def test_every_key_of_the_model_is_in_the_reference() -> None:
    schema = json_schema()
    text = (REPOSITORY / "docs" / "reference" / "cluster-yml.md").read_text()
    for definition in [schema, *schema["$defs"].values()]:
        for key, field in definition["properties"].items():
            assert f"| `{key}` |" in text, key
            assert field.get("description") or "$ref" in field, f"{key} has no description"
