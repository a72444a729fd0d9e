"""The files of the stack: Terraform that makes a cluster.yml from the values of the form, and its zip.

The Terraform has no resource and no provider: it writes the file as an output. What a field decides is in the form
(`form`), so a new field needs nothing here.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

from gpucluster import __version__
from gpucluster.resource_manager import form, schema_document
from gpucluster.resource_manager.form import Field, When

_TYPES = {"flag": "bool", "number": "number"}
# The oldest time that a zip can have: the same form makes the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)

_VERSIONS = """\
terraform {
  required_version = ">= 1.2"
}
"""
_OUTPUTS = """\
output "cluster_yml" {
  description = "The file of the cluster."
  value       = "${local.head}\\n${yamlencode(local.cluster)}"

  precondition {
    condition     = length(distinct(local.pool_names)) == length(local.pool_names)
    error_message = "Two pools have the same name."
  }
}

output "next_steps" {
  description = "What to do with the file."
  value       = local.next_steps
}
"""
_NEXT = """\
Save the output cluster_yml as cluster.yml on a machine with gpucluster and a profile of the OCI configuration file. \
Then: gpucluster validate; gpucluster preflight; gpucluster apply. This stack has created nothing, and holds no state \
of the cluster: keep the file in Git, and change the cluster there.\
"""
_README = """\
# A form for cluster.yml

Upload this zip as a stack of Resource Manager: the console shows a form, and an apply writes cluster.yml into the
outputs. The stack creates nothing in OCI and holds no state of the cluster.

{next}

Written by gpucluster {version}. For another version, write the zip again: gpucluster export orm
"""


def archive() -> bytes:
    """The zip, with the same bytes for the same form."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in sorted(files().items()):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = 0o644 << 16
            packed.writestr(entry, text, zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def files() -> Mapping[str, str]:
    """The text of each file of the stack."""
    return {
        "README.md": _README.format(next=_NEXT, version=__version__),
        "cluster_file.tf": _cluster_file(),
        "outputs.tf": _OUTPUTS,
        "schema.yaml": schema_document.text(),
        "variables.tf": "\n".join(map(_variable, [*form.fields(), *map(_hidden, schema_document.HIDDEN)])),
        "versions.tf": _VERSIONS,
    }


# --- variables.tf -----


def _variable(field: Field) -> str:
    """The declaration. A field that may be hidden has a default: the console sends no value for it then."""
    lines = [f'variable "{field.name}" {{', f"  description = {_text(field.description or field.title)}"]
    lines.append(f"  type        = {_TYPES.get(field.kind, 'string')}")
    if not field.required or field.when or _is_plain(field.default):
        lines.append(f"  default     = {_default(field)}")
    return "\n".join([*lines, "}", ""])


def _hidden(name: str) -> Field:
    return Field(name, name, "Filled in by Resource Manager.", "text", default="")


def _is_plain(default: Any) -> bool:
    """Whether a default is a value, and not a reference that only the console resolves."""
    return default is not None and not str(default).startswith("${")


def _default(field: Field) -> str:
    if not _is_plain(field.default):
        return _text("")
    return _text(field.default) if isinstance(field.default, str) else json.dumps(field.default)


def _text(text: str) -> str:
    """A literal of HCL, in which nothing is a template."""
    return json.dumps(text, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


# --- cluster_file.tf -----


def _cluster_file() -> str:
    tree: dict[str, Any] = {"version": "1", "cloud": {"provider": _text("oci")}}
    for field in form.fields():
        if field.key and not _names_a_pool(field):
            _put(tree, field.key.split("."), _expression(field))
    head = f"# From the form of gpucluster {__version__}. Every key: docs/reference/cluster-yml.md"
    names = ", ".join(
        f"{_condition(field.when)} ? [var.{field.name}] : []" for field in form.fields() if _names_a_pool(field)
    )
    return (
        f"locals {{\n  head       = {_text(head)}\n  next_steps = {_text(_NEXT)}\n"
        f"  pool_names = concat({names})\n\n  # Keys without a value are left out.\n"
        f"  cluster = {_node(tree, 2)}\n}}\n"
    )


def _names_a_pool(field: Field) -> bool:
    return field.key.startswith("pools.{") and field.key.endswith("}")


def _put(tree: dict[str, Any], path: list[str], expression: str) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = expression


def _node(node: Any, depth: int) -> str:
    """A mapping without the keys that have no value; a list of one, or of none; or the expression of a leaf."""
    if isinstance(node, str):
        return node
    if set(node) == {"0"}:
        return f"[for each in [{_node(node['0'], depth)}] : each if length(each) > 0]"
    indent = "  " * depth
    inner = [f"{indent}{_key(name)} = {_node(child, depth + 1)}" for name, child in node.items()]
    # A text, a number or a truth has a value here; what has no length is one of the latter two.
    kept = "each != null && try(length(each), 1) > 0"
    return "\n".join(["{ for key, each in {", *inner, f"{indent[:-2]}}} : key => each if {kept} }}"])


def _key(part: str) -> str:
    """A key of HCL: that of a pool is what the form calls it."""
    return f"(var.pool_{part[1:-1]}_name)" if part.startswith("{") else part


def _expression(field: Field) -> str:
    value = _value(field)
    return f"{_condition(field.when)} ? ({value}) : null" if field.when else value


def _value(field: Field) -> str:
    name = f"var.{field.name}"
    if field.key == "containers.runtimes":
        return f'{name} ? ["enroot"] : null'
    if field.key.endswith(".max_count"):
        return f"max({name}, var.{field.name.replace('max_count', 'count')})"
    if field.kind == "list":
        return f'[for each in split("\\n", replace({name}, ",", "\\n")) : trimspace(each) if trimspace(each) != ""]'
    return name if field.kind in _TYPES or field.required else f'{name} == "" ? null : {name}'


def _condition(when: Iterable[When]) -> str:
    conditions = [
        f"contains([{', '.join(map(_text, each.values))}], var.{each.field})" if each.values else f"var.{each.field}"
        for each in when
    ]
    return " && ".join(conditions) or "true"
