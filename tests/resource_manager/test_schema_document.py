"""The schema document, against the words of Oracle's page "Extend Console Pages Using Schema Documents".

The page has a meta schema, from which these words are; the document was also checked against all of it, once: it had no
objection but to the control of ssh keys, which it defines and forgets to list. The console itself was not at hand.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpucluster.resource_manager import form, schema_document

READ: dict[str, Any] = yaml.safe_load(schema_document.text())
VARIABLES: dict[str, dict[str, Any]] = READ["variables"]
COMMON = {"type", "title", "description", "required", "visible", "default"}
#: For each type what it may have besides, and what it must depend on.
TYPES: dict[str, tuple[set[str], set[str]]] = {
    "string": ({"pattern", "minLength", "maxLength"}, set()),
    "boolean": (set(), set()),
    "enum": ({"enum", "allowMultiple"}, set()),
    "integer": ({"minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"}, set()),
    "oci:core:ssh:publickey": ({"additionalProps"}, set()),
    "oci:identity:compartment:id": (set(), set()),
    "oci:identity:availabilitydomain:name": ({"dependsOn"}, {"compartmentId"}),
    "oci:core:vcn:id": ({"dependsOn"}, {"compartmentId"}),
    "oci:core:subnet:id": ({"dependsOn"}, {"compartmentId", "vcnId"}),
    "oci:core:image:id": ({"dependsOn"}, {"compartmentId"}),
}
TOP = {
    "title", "description", "stackDescription", "packageVersion", "version", "schemaVersion", "locale", "logoUrl",
    "source", "informationalText", "instructions", "troubleshooting", "allowViewState", "variables", "groupings",
    "variableGroups", "outputs", "outputGroups", "primaryOutputButton",
}  # fmt: skip


def test_the_top_level_has_documented_keys() -> None:
    assert set(READ) <= TOP
    assert (READ["schemaVersion"], READ["locale"]) == ("1.1.0", "en")
    assert all(isinstance(READ[key], str) for key in ("title", "description", "version", "informationalText"))


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_has_documented_words(name: str) -> None:
    variable = VARIABLES[name]
    allowed, needed = TYPES[variable["type"]]
    assert set(variable) <= COMMON | allowed
    assert set(variable.get("dependsOn", {})) == needed
    assert variable["title"]
    for reference in variable.get("dependsOn", {}).values():
        assert reference.removeprefix("${").removesuffix("}") in VARIABLES
    if variable["type"] == "enum":
        assert all(isinstance(each, str) for each in variable["enum"])
        assert variable["default"] in variable["enum"]
    if variable["type"] == "boolean":
        assert isinstance(variable["default"], bool)
    if variable["type"] == "integer":
        assert variable["minimum"] <= variable["default"] <= variable["maximum"]


def _statement(statement: Any) -> set[str]:
    """The variables of a condition, whose form is checked: two operands, and `eq` of a text with a variable."""
    if isinstance(statement, str):
        assert statement.startswith("${")
        assert statement.endswith("}")
        return {statement[2:-1]}
    ((word, operands),) = statement.items()
    assert len(operands) == 2
    if word == "eq":
        assert isinstance(operands[1], str)
        return _statement(operands[0])
    assert word in ("and", "or")
    return _statement(operands[0]) | _statement(operands[1])


def test_what_is_shown_depends_on_other_fields_in_documented_form() -> None:
    for field in form.fields():
        shown = VARIABLES[field.name].get("visible")
        assert (_statement(shown) if shown is not None else set()) == {each.field for each in field.when}


def test_each_variable_is_in_one_group() -> None:
    grouped = [each[2:-1] for group in READ["variableGroups"] for each in group["variables"]]
    assert sorted(grouped) == sorted(VARIABLES)
    hidden = [group for group in READ["variableGroups"] if group.get("visible") is False]
    assert [group["variables"] for group in hidden] == [["${compartment_ocid}"]]


def test_outputs_are_of_a_documented_type_and_in_a_group() -> None:
    assert {each["type"] for each in READ["outputs"].values()} == {"copyableString"}
    assert [name for group in READ["outputGroups"] for name in group["outputs"]] == list(READ["outputs"])


def test_a_field_that_the_console_fills_in_has_no_pattern() -> None:
    """The page has none for these controls, but for a few."""
    assert all("pattern" not in each for each in VARIABLES.values() if each["type"].startswith("oci:"))
