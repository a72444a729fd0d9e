"""The documentation of the file format: a JSON schema for editors and a Markdown page. Both are generated."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gpucluster import shapes
from gpucluster.spec import defaults, document, model, reserved, rules, updates
from gpucluster.spec.sections import fields, slurm
from gpucluster.spec.sections.cloud import LOCAL_IMAGE, PROVIDERS

_LOCAL_IMAGE = f"{' '.join(LOCAL_IMAGE.values())} with provider local"
#: Defaults that depend on other values (see defaults.py), as the page shows them.
_DEPENDENT_DEFAULTS = {
    "cloud.region": f"`{PROVIDERS['local'].only_region}` with provider local",
    "network.public_subnet_cidr": "required with access public",
    "controller.image": _LOCAL_IMAGE,
    "login.image": "that of the controller",
    "pools.<name>.image": _LOCAL_IMAGE,
    "pools.<name>.max_count": "`count`",
    "pools.<name>.default": "the first pool",
    "pools.<name>.partition": "the pool's name",
    "pools.<name>.availability_domain": "`cloud.availability_domain`",
    "users.people[].full_name": "`name`",
    "users.people[].group": "`users.group`",
    "slurm.enabled": "whether `scheduler` is `slurm`",
    "storage.home.enabled": "`false` with `scheduler: none`, else `true`",
    "slurm.cluster_name": "`name`",
    "slurm.default_partition": "that of the default pool",
    "backup.directory": "on the home share",
    "controller.ocpus": f"`{defaults.CONTROLLER_OCPUS}` without `shape`",
    "controller.memory_gb": f"`{defaults.CONTROLLER_MEMORY_GB}` without `shape`",
    "login.ocpus": f"`{defaults.CONTROLLER_OCPUS}` without `shape`",
    "login.memory_gb": f"`{defaults.CONTROLLER_MEMORY_GB}` without `shape`",
}


def json_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a cluster.yml: the keys and their types. Only load() checks rules between keys."""
    schema = model.ClusterSpec.model_json_schema(mode="validation")
    paths = {kind.__name__: paths[0] for kind, paths in model.sections().items()}
    for title, definition in [("", schema), *schema["$defs"].items()]:
        for name, field in definition.get("properties", {}).items():
            field.pop("title", None)
            field.update(_update_policy(paths.get(title, ""), name))
            # A placeholder for a default that depends on other values; editors must not show it.
            if field.get("default", "") in ("", None):
                field.pop("default", None)
            if name == "shape":
                field["enum"] = list(shapes.catalogue())
            if name == "extra_config":
                field["additionalProperties"] = {"type": ["string", "integer"]}
            if name == "config":
                field["additionalProperties"] = {"type": ["string", "integer", "boolean"]}
            if title == "SlurmSpec" and name in ("accounts", "qos"):
                field["propertyNames"] = {"pattern": fields.SLURM_CLUSTER_PATTERN}
            if name == "times":
                field["propertyNames"] = {"enum": sorted(slurm.TIME_NAMES)}
        definition.pop("title", None)
    pools = schema["properties"]["pools"]
    pools["propertyNames"] = {
        "pattern": fields.POOL_NAME_PATTERN,
        "not": {"enum": sorted(reserved.RESERVED_POOL_NAMES)},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"gpucluster cluster.yml, version {model.VERSION}",
        **schema,
    }


def _update_policy(section: str, name: str) -> dict[str, str]:
    """What `apply` does when the value of a key changes, as annotations of the schema; none for a section."""
    rule = updates.policies().get(f"{section}.{name}" if section else name)
    if rule is None:
        return {}
    return {"x-update-policy": rule.policy, **({"x-update-note": rule.note} if rule.note else {})}


def json_schema_text() -> str:
    """The content of docs/reference/cluster.schema.json."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def markdown() -> str:
    """The content of docs/reference/cluster-yml.md."""
    lines = [
        "<!-- Generated: python -m gpucluster.spec reference. Change gpucluster/spec, not this file. -->",
        "# cluster.yml",
        "",
        "One file describes the desired state of a cluster. gpucluster reports every error in it at once, with line",
        "and column, before it creates anything. `gpucluster init` writes a first file. Unknown keys are refused,",
        "numbers are written without quotes, and the only booleans are `true` and `false`. File names are relative",
        "to the file; `~` is your home directory.",
        "For editors that support JSON schema there is [cluster.schema.json](cluster.schema.json).",
        "",
        *_changes(),
    ]
    for kind, paths in model.sections().items():
        title = " and ".join(f"`{path}`" if path else "Top level" for path in paths)
        lines += [f"## {title}", "", (kind.__doc__ or "").strip().partition("\n\n")[0].replace("\n    ", " "), ""]
        lines += ["| key | type | default | a change | meaning |", "|---|---|---|---|---|"]
        lines += [_row(paths[-1], name, info) for name, info in kind.model_fields.items()]
        lines.append("")
    return "\n".join([*lines, *_rules(), *_shapes()]) + "\n"


def _row(path: str, name: str, info: FieldInfo) -> str:
    key = f"{path}.{name}" if path else name
    default = _DEPENDENT_DEFAULTS.get(key) or _default(info)
    rule = updates.policies().get(key)
    policy, note = (rule.policy, f" *A change:* {rule.note}" if rule.note else "") if rule else ("see below", "")
    return f"| `{name}` | {_type(info.annotation)} | {default} | {policy} | {info.description}{note} |"


def _changes() -> list[str]:
    """What each update policy means."""
    return [
        "## What a change does",
        "",
        "The column *a change* states the strongest effect that a change of the value may have on a cluster that",
        "stands. `gpucluster plan` shows the effect of the change at hand, with the hosts and the jobs.",
        "",
        "| policy | meaning |",
        "|---|---|",
        *(f"| {policy} | {meaning} |" for policy, meaning in updates.MEANINGS.items()),
        "",
    ]


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    default = info.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return "see below"
    if default in ("", None, (), {}) or default is PydanticUndefined:
        return "none"
    return f"`{json.dumps(default)}`" if not isinstance(default, str) else f"`{default}`"


def _type(annotation: Any) -> str:
    arguments = [part for part in get_args(annotation) if part is not type(None)]
    origin = get_origin(annotation)
    if type(None) in get_args(annotation) or origin is Annotated:
        return _type(arguments[0])
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    return {str: "text", int: "whole number", float: "number", bool: "`true`, `false`"}.get(annotation, "mapping")


def _rules() -> list[str]:
    yaml = (
        f"YAML: one document of at most {document.MAX_BYTES // 1024} KiB in UTF-8; no tabs in the indentation, no "
        "duplicate keys, no tags, no merge keys."
    )
    return ["## Rules between keys", "", *(f"- {rule}" for rule in (*rules.documentation(), yaml)), ""]


def _shapes() -> list[str]:
    lines = [
        "## Shapes",
        "",
        "From `gpucluster/shapes.toml`, which gives the source of each value. *Assumed* values are those that no",
        "source states, or on which the sources disagree.",
        "",
        "| shape | GPUs | Slurm type | cores | memory, GiB | NVMe | RDMA, Gb/s | assumed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, shape in shapes.catalogue().items():
        cores = f"{shape.sockets} x {shape.cores_per_socket}" if shape.sockets else "flexible"
        rdma = f"{len(shape.rdma_devices)} x {shape.rdma_link_gbps}" if shape.rdma else "-"
        memory, gres, assumed = shape.memory_gib or "flexible", shape.gres_type or "-", ", ".join(shape.assumed) or "-"
        lines.append(
            f"| {name} | {shape.gpus} | {gres} | {cores} | {memory} | {shape.nvme_count} | {rdma} | {assumed} |"
        )
    return lines
