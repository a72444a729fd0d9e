"""A judge of ValidatingAdmissionPolicies: Google's evaluator of CEL, with the strings library that the API server adds.

It proves the value of an expression for an object, and that an expression that fails is a refusal, as with
`failurePolicy: Fail`. It does not prove that an API server accepts the policy within its limits of cost:
`make test-kubernetes` has one only of the releases that can be built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

_NAMES = ("object", "oldObject", "request", "namespaceObject", "variables")


class Failed(Exception):
    """An expression has no value."""


def refusals(
    policies: Sequence[Mapping[str, Any]],
    namespace: Mapping[str, Any],
    new: Mapping[str, Any],
    old: Mapping[str, Any] | None = None,
    resource: str = "pods",
) -> list[str]:
    """The messages of the validations that an object of a namespace does not meet."""
    env = cel.NewEnv(variables=dict.fromkeys(_NAMES, cel.Type.DYN), extensions=[ext_strings.ExtStrings()])
    operation = "CREATE" if old is None else "UPDATE"
    found = []
    for policy in policies:
        spec = policy["spec"]
        if not any(resource in rule["resources"] for rule in spec["matchConstraints"]["resourceRules"]):
            continue
        data: dict[str, Any] = {
            "object": new, "oldObject": old, "request": {"operation": operation}, "namespaceObject": namespace,
            "variables": {},
        }  # fmt: skip
        if not all(_value(env, each["expression"], data) for each in spec.get("matchConditions", ())):
            continue
        for each in spec["variables"]:
            data["variables"][each["name"]] = _value(env, each["expression"], data)
        for each in spec["validations"]:
            try:
                met = _value(env, each["expression"], data) is True
            except Failed:
                met = False
            if not met:
                found.append(each["message"])
    return found


def _value(env: cel.Env, expression: str, data: Mapping[str, Any]) -> Any:
    value = env.compile(expression).eval(data=data)
    if value.type() == cel.Type.ERROR:
        raise Failed(f"{expression}: {value}")
    return value.plain_value()
