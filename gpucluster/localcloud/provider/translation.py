"""Names, types and values of Terraform's states translated to the API's JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpucluster.localcloud.provider.schema import UNKNOWN, Json, SchemaBlock, catalogue, known


def to_wire(schema: SchemaBlock, state: Mapping[str, Any], *, inside: str = "", update: bool = False) -> Json:
    """The body of a create or an update: attributes that have a value and may be set.

    Args:
        inside: name of the block that `schema` describes.
        update: keep the ids of nested blocks, by which an update finds them, and empty lists of removed blocks.
    """
    wire = catalogue().wire
    body: Json = {}
    for name, attribute in schema.attributes.items():
        value = state.get(name)
        settable = attribute.required or attribute.optional or (update and inside and name == "id")
        if value is None or value is UNKNOWN or not settable or name in wire.unsent or (name == "id" and not inside):
            continue
        _put(body, wire.sent_names.get(name) or wire_name(inside, name), _wire_value(name, value))
    for name, nested in schema.blocks.items():
        if name == "timeouts" or not isinstance(items := state.get(name), list):
            continue
        bodies = [to_wire(nested, item, inside=name, update=update) for item in items]
        if nested.max_items != 1 and (bodies or update):
            body[wire_name(inside, name)] = bodies
        elif bodies:
            body[wire_name(inside, name)] = bodies[0]
    return body


def wire_name(inside: str, name: str) -> str:
    """The JSON name of an attribute of the block `inside` ("" for the resource itself)."""
    names = catalogue().wire.names
    first, *rest = name.split("_")
    return names.get(f"{inside}.{name}") or names.get(name) or first + "".join(word.capitalize() for word in rest)


def _wire_value(name: str, value: Any) -> Any:
    wire = catalogue().wire
    if name in wire.integers:
        return int(value)
    if name in wire.booleans:
        return str(value).lower() == "true"
    if name in wire.namespaced:
        spaces: Json = {}
        for key, item in value.items():
            space, _, short = key.partition(".")
            spaces.setdefault(space, {})[short] = item
        return spaces
    return value


def _put(body: Json, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        body = body.setdefault(parent, {})
    body[last] = value


def from_wire(
    schema: SchemaBlock,
    body: Mapping[str, Any],
    before: Mapping[str, Any],
    *,
    inside: str = "",
    everything: bool = False,
) -> Json:
    """The state after a read.

    An attribute that the API does not show keeps its earlier value. A block that was never configured is left out, even
    if the API fills it with defaults: the real provider marks such blocks as computed. Sets always come from the API.

    Args:
        before: the planned or earlier state.
        everything: include all blocks, as an import must.
    """
    spelled = {name.lower(): name for name in body}
    state: Json = {}
    for name, attribute in schema.attributes.items():
        is_present, value = _find(body, spelled, wire_name(inside, name))
        state[name] = state_value(name, attribute.type, value) if is_present else known(before.get(name))
    for name, nested in schema.blocks.items():
        old = known(before.get(name))
        is_present, value = _find(body, spelled, wire_name(inside, name))
        if nested.nesting == "single" or not is_present:
            state[name] = old if old is not None or nested.nesting == "single" else []
            continue
        olds = old if isinstance(old, list) else []
        items = value if isinstance(value, list) else [value] if value else []
        is_set = nested.nesting == "set"
        if not (is_set or olds or everything):
            items = []
        state[name] = [
            from_wire(
                nested,
                item,
                {} if is_set or position >= len(olds) else olds[position],
                inside=name,
                everything=everything or is_set,
            )
            for position, item in enumerate(items)
        ]
    return state


def _find(body: Mapping[str, Any], spelled: Mapping[str, str], path: str) -> tuple[bool, Any]:
    """Find a member; upper and lower case are equal (`isIpv6Enabled`, `memoryInGBs`)."""
    first, _, rest = path.partition(".")
    name = spelled.get(first.lower())
    if name is None:
        return False, None
    if not rest:
        return True, body[name]
    inner = body[name]
    if not isinstance(inner, Mapping):
        return False, None
    return _find(inner, {member.lower(): member for member in inner}, rest)


def state_value(name: str, kind: Any, value: Any) -> Any:
    """A JSON value as Terraform's state has it; `kind` is the attribute's type."""
    if value is None:
        return None
    if kind == "string":
        return ("true" if value else "false") if isinstance(value, bool) else str(value)
    if isinstance(kind, str):
        return value
    container, inner = kind
    if container in ("list", "set"):
        return [state_value("", inner, item) for item in (value if isinstance(value, list) else [value])]
    if container == "map":
        if name in catalogue().wire.namespaced:
            value = {f"{space}.{key}": item for space, keys in value.items() for key, item in keys.items()}
        return {key: item if isinstance(item, str) else json.dumps(item) for key, item in value.items()}
    spelled = {member.lower(): member for member in value}
    return {
        member: state_value(member, member_type, _find(value, spelled, wire_name("", member))[1])
        for member, member_type in inner.items()
    }
