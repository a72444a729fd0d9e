"""The schema document of the stack: how Resource Manager's console shows the form.

Source: Oracle, "Extend Console Pages Using Schema Documents". Its meta schema wants the choices of an enum as texts,
and two operands for `and` and `or`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from gpucluster.resource_manager.form import SSH_KEYS, Field, When, groups

#: Variables that Resource Manager fills in by their names, and that no form shows.
HIDDEN = ("compartment_ocid",)
OUTPUTS = {"cluster_yml": "cluster.yml", "next_steps": "What to do next"}
_TYPES = {"text": "string", "choice": "enum", "flag": "boolean", "number": "integer", "list": "string"}


def text() -> str:
    """The text of schema.yaml."""
    return yaml.safe_dump(document(), sort_keys=False, allow_unicode=True, width=118)


def document() -> dict[str, Any]:
    """The schema document."""
    form = groups()
    return {
        "schemaVersion": "1.1.0",
        "version": "1",
        "locale": "en",
        "title": "gpucluster",
        "description": "Writes the cluster.yml of a GPU cluster from a form. It creates nothing.",
        "informationalText": "The outputs have the file, and what to do with it.",
        "variableGroups": [
            *({"title": each.title, "variables": [_reference(field.name) for field in each.fields]} for each in form),
            {"title": "Filled in by Resource Manager", "visible": False, "variables": list(map(_reference, HIDDEN))},
        ],
        "variables": {field.name: variable(field) for group in form for field in group.fields}
        | {name: {"type": "string", "title": name} for name in HIDDEN},
        "outputGroups": [{"title": "The file", "outputs": list(OUTPUTS)}],
        "outputs": {name: {"type": "copyableString", "title": title} for name, title in OUTPUTS.items()},
    }


def variable(field: Field) -> dict[str, Any]:
    """What the schema document has of a field. A dynamic control has neither a pattern nor bounds."""
    shown: dict[str, Any] = {
        "type": field.control or _TYPES[field.kind],
        "title": field.title,
        "description": field.description,
        "required": field.required,
    }
    if field.control == SSH_KEYS:
        # The console gives several keys as one text, with commas between them.
        shown["additionalProps"] = {"allowMultiple": True}
    if field.default is not None:
        shown["default"] = field.default
    if field.depends_on:
        shown["dependsOn"] = {name: _reference(other) for name, other in field.depends_on.items()}
    if field.when:
        shown["visible"] = _all([_condition(each) for each in field.when])
    return shown if field.control else {**shown, **_limits(field)}


def _limits(field: Field) -> dict[str, Any]:
    limits: dict[str, Any] = {"minimum": field.minimum, "maximum": field.maximum}
    if field.kind == "choice":
        limits["enum"] = list(field.choices)
    elif field.kind == "text" and field.pattern:
        limits["pattern"] = field.pattern
    return {name: value for name, value in limits.items() if value is not None}


def _reference(name: str) -> str:
    return f"${{{name}}}"


def _condition(when: When) -> Any:
    if not when.values:
        return _reference(when.field)
    return _joined("or", [{"eq": [_reference(when.field), value]} for value in when.values])


def _all(conditions: Sequence[Any]) -> Any:
    return _joined("and", conditions)


def _joined(word: str, conditions: Sequence[Any]) -> Any:
    """Conditions in pairs."""
    first, *rest = conditions
    return {word: [first, _joined(word, rest)]} if rest else first
