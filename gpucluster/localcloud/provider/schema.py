"""Resources and data sources of the stand-in: their schemas, and the API calls behind them.

Both are data: schema.json has the attributes (facts of oracle/oci), resources.toml the API calls.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any
from urllib.parse import quote

# A state, a body, or a type: plain JSON, with `UNKNOWN` for values that a plan does not know yet.
Json = dict[str, Any]
_ALWAYS_UPDATABLE = ("defined_tags", "display_name", "freeform_tags", "timeouts")
_VM_PLATFORMS = ("INTEL_VM", "AMD_VM")
_VERBS = ("create", "get", "update", "delete")


class _Unknown:
    """A value that is known only after apply."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


def known(value: Any) -> Any:
    """A value with null in the place of unknown values."""
    if value is UNKNOWN:
        return None
    if isinstance(value, list):
        return [known(item) for item in value]
    if isinstance(value, dict):
        return {name: known(item) for name, item in value.items()}
    return value


@dataclass(frozen=True)
class Attribute:
    """One attribute: its type as Terraform writes it in JSON, who may set it, and whether another value is another
    resource."""

    type: Any
    required: bool
    optional: bool
    computed: bool
    force_new: bool = False


@dataclass(frozen=True)
class SchemaBlock:
    """Attributes and nested blocks; a nested block also has its nesting mode and number of items."""

    attributes: Mapping[str, Attribute]
    blocks: Mapping[str, SchemaBlock]
    nesting: str = "single"
    min_items: int = 0
    max_items: int = 0
    force_new: bool = False

    @property
    def forces_new(self) -> bool:
        """Whether a block more or less is another resource."""
        inside = any(each.force_new for each in self.attributes.values())
        return self.force_new or inside or any(each.forces_new for each in self.blocks.values())

    def at(self, path: str) -> Attribute | SchemaBlock | None:
        """What is at `block.attribute`; None if nothing is. The keys of a map are those of its attribute."""
        name, _, rest = path.partition(".")
        if name in self.attributes:
            return self.attributes[name]
        nested = self.blocks.get(name)
        return nested.at(rest) if nested and rest else nested


@dataclass(frozen=True)
class CompositeKey:
    """How to address a resource that has no OCID (see composite_keys.py).

    Attributes:
        id_template: Terraform's id, made from attributes.
        create_method: HTTP method of the create, at the resource's path.
        read: "get": at its path; "list": in the list at its path; "none": never, only Terraform's state has it.
        query: name of a query parameter -> attribute; for the list and the delete.
        match: attributes that identify the resource in the list.
    """

    id_template: str
    create_method: str
    read: str
    query: Mapping[str, str]
    match: tuple[str, ...]


@dataclass(frozen=True)
class ManagedResource:
    """A resource: its schema and its API calls.

    Attributes:
        updatable: what an update carries out here: "block.attribute", or a block with all of its attributes.
        replace: what makes a new resource by a rule in the provider's code (CustomizeDiff), and not by its schema.
        kept: it stays when Terraform destroys it, unless its enable_delete is set.
        replace_bare_metal: the same, where the platform configuration is or becomes one of bare metal.
        collection: where it is created, if that is not `path`; with {attributes}.
        id_template: Terraform's id, made from attributes, of a resource without an OCID: its path below `path`.
        delete_query: parameter of the delete -> attribute.
        work_requests: a create or update ends when its work request does.
        update_whole: an update sends every value that is set, and not only those that differ.
    """

    type_name: str
    schema: SchemaBlock
    service: str
    noun: str
    path: str
    ready: tuple[str, ...]
    updatable: tuple[str, ...]
    replace: tuple[str, ...]
    replace_bare_metal: tuple[str, ...]
    operations: Mapping[str, str]
    update_waits: bool
    composite_key: CompositeKey | None = None
    kept: bool = False
    collection: str = ""
    id_template: str = ""
    update_whole: bool = False
    work_requests: bool = False
    delete_query: Mapping[str, str] = field(default_factory=dict)

    def forces_replacement(self, path: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """Whether a change of `block.attribute` makes a new resource."""
        if path in self.replace:
            return True
        if path in self.replace_bare_metal:
            return any(_is_bare_metal(each) for each in (before, after))
        changed = self.schema.at(path)
        return changed.forces_new if isinstance(changed, SchemaBlock) else changed is not None and changed.force_new

    def carries_out(self, path: str) -> bool:
        """Whether the stand-in changes `block.attribute`, or a part of a block, in place."""
        return any(f"{path}.".startswith(f"{known}.") or known.startswith(f"{path}.") for known in self.updatable)


def _is_bare_metal(state: Mapping[str, Any]) -> bool:
    """Whether a state of an instance has firmware settings of bare metal."""
    blocks = state.get("platform_config") or [{}]
    return (blocks[0].get("type") or "AMD_VM") not in _VM_PLATFORMS


@dataclass(frozen=True)
class DataSource:
    """A data source: its schema and its API call.

    `path` may have arguments, such as {vcn_id}. `items` is the attribute with the listed items; empty for a data source
    of one resource. `content` is the attribute with the text of an answer to a POST, in which the arguments `body` are
    sent; empty for an answer in JSON.
    """

    type_name: str
    schema: SchemaBlock
    service: str
    noun: str
    path: str
    query: tuple[str, ...]
    items: str
    operation: str
    body: tuple[str, ...] = ()
    content: str = ""


@dataclass(frozen=True)
class WireFormat:
    """Differences of names and types between Terraform and JSON; `sent_names`: names in a create alone."""

    names: Mapping[str, str]
    sent_names: Mapping[str, str]
    integers: frozenset[str]
    booleans: frozenset[str]
    namespaced: frozenset[str]
    unsent: frozenset[str]


@dataclass(frozen=True)
class ProviderCatalogue:
    """All resources and data sources of the stand-in."""

    version: str
    resources: Mapping[str, ManagedResource]
    data_sources: Mapping[str, DataSource]
    wire: WireFormat


def _tags_and_name(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """What is updatable of most resources; a volume attachment has a name that is not."""
    forced = {name for name, (_, flags) in schema["attributes"].items() if "n" in flags}
    return tuple(name for name in _ALWAYS_UPDATABLE if name not in forced)


@functools.cache
def catalogue() -> ProviderCatalogue:
    """Read the two data files of this package."""
    folder = files("gpucluster.localcloud.provider")
    schema = json.loads((folder / "schema.json").read_text())
    calls = tomllib.loads((folder / "resources.toml").read_text())
    resources = {
        name: ManagedResource(
            type_name=name,
            schema=_block(schema["resources"][name]),
            service=entry["service"],
            noun=entry["noun"],
            path=entry["path"],
            ready=tuple(entry["ready"]),
            updatable=(*_tags_and_name(schema["resources"][name]), *entry["update"]),
            replace=tuple(entry.get("replace", ())),
            replace_bare_metal=tuple(entry.get("replace_bare_metal", ())),
            operations={verb: _operation(verb, entry) for verb in _VERBS},
            update_waits=entry.get("update_waits", True),
            composite_key=_composite_key(entry),
            kept=entry.get("kept", False),
            collection=entry.get("collection", entry["path"]),
            id_template=entry.get("id", ""),
            update_whole=entry.get("update_whole", False),
            work_requests=entry.get("work_requests", False),
            delete_query=entry.get("delete_query", {}),
        )
        for name, entry in calls["resources"].items()
    }
    data_sources = {
        name: DataSource(
            type_name=name,
            schema=_block(schema["data_sources"][name]),
            service=entry["service"],
            noun=entry["noun"],
            path=entry["path"],
            query=tuple(entry.get("query", ())),
            items=entry.get("items", ""),
            operation=entry.get("operation", f"{'List' if 'items' in entry else 'Get'}{entry['noun']}"),
            body=tuple(entry.get("body", ())),
            content=entry.get("content", ""),
        )
        for name, entry in calls["data_sources"].items()
    }
    wire = calls["wire"]
    return ProviderCatalogue(
        version=schema["version"],
        resources=resources,
        data_sources=data_sources,
        wire=WireFormat(
            names=wire["names"],
            sent_names=wire["sent_names"],
            integers=frozenset(wire["integers"]),
            booleans=frozenset(wire["booleans"]),
            namespaced=frozenset(wire["namespaced"]),
            unsent=frozenset(wire["unsent"]),
        ),
    )


def _composite_key(entry: Mapping[str, Any]) -> CompositeKey | None:
    if "key" not in entry:
        return None
    match = tuple(entry.get("match", ()))
    return CompositeKey(
        entry["key"], entry.get("create_method", "POST"), entry.get("read", "get"), entry.get("query", {}), match
    )


def filled(template: str, values: Mapping[str, Any]) -> str:
    """A path or an id with its {attributes} filled in; each is quoted as one segment of a path."""
    return re.sub(r"\{(\w+)\}", lambda match: quote(str(values[match[1]]), safe=":@&=+$"), template)


def _operation(verb: str, entry: Mapping[str, Any]) -> str:
    """The SDK's name of an operation. The entry "update" is a list of attributes and not a name."""
    named = entry.get(verb)
    return named if isinstance(named, str) else f"{verb.title()}{entry['noun']}"


def _block(raw: Mapping[str, Any]) -> SchemaBlock:
    return SchemaBlock(
        attributes={
            name: Attribute(kind, "r" in flags, "o" in flags, "c" in flags, "n" in flags)
            for name, (kind, flags) in raw["attributes"].items()
        },
        blocks={name: _block(nested) for name, nested in raw.get("blocks", {}).items()},
        nesting=raw.get("nesting", "single"),
        min_items=raw.get("min", 0),
        max_items=raw.get("max", 0),
        force_new=raw.get("force_new", False),
    )
