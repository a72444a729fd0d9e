"""The text of a cluster.yml from a draft, with comments that name the variables that values come from."""

from __future__ import annotations

import textwrap
from typing import Any

import yaml

from gpucluster.resource_manager.draft import Draft, Path, Value

_HEAD = """\
# Written by `gpucluster migrate orm`. Behind a value, # names the variable of the stack that it comes from.
# Lines with DECIDE are left to you. Every key: docs/reference/cluster-yml.md
"""
_WIDTH = 118
#: In the order of the reference; keys that it does not name come last.
_ORDER = (
    "version", "name", "cloud", "network", "ssh", "controller", "login", "storage", "pools", "scheduler", "users",
    "slurm", "checks", "monitoring", "backup", "containers",
)  # fmt: skip


def render(draft: Draft) -> str:
    """The text of the file."""
    tree: dict[str, Any] = {}
    for path, value in draft.values.items():
        place = tree
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    lines = _HEAD.splitlines()
    sections = sorted(tree, key=lambda key: _ORDER.index(key) if key in _ORDER else len(_ORDER))
    for section in sections:
        if section not in ("version", "name"):
            lines.append("")
        lines += _entry(draft, (section,), tree[section])
    # Keys that have no value in the file, and may need one.
    for decision in draft.decisions.values():
        if not decision.has_value:
            lines += ["", *_comment(f"DECIDE {decision.key}: {decision.text}", "")]
    return "\n".join(lines) + "\n"


def _entry(draft: Draft, path: Path, node: Any) -> list[str]:
    indent = "  " * (len(path) - 1)
    decision = draft.decisions.get(".".join(path))
    notes = _comment(f"DECIDE: {decision.text}", indent) if decision and decision.has_value else []
    if isinstance(node, Value):
        return [*notes, f"{indent}{_scalar(path[-1])}: {_scalar(node.value)}{_origin(node, draft.given)}"]
    inner = [line for key, child in node.items() for line in _entry(draft, (*path, key), child)]
    return [*notes, f"{indent}{_scalar(path[-1])}:", *inner]


def _origin(value: Value, given: frozenset[str]) -> str:
    """The comment that names where a value is from; empty for what the converter chose, or an option of the command."""
    from_file = [name for name in value.sources if name in given]
    if from_file:
        return f"  # {', '.join(from_file)}"
    return f"  # the stack's default of {value.sources[0]}" if value.sources else ""


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ")


def _scalar(value: Any) -> str:
    """A value on one line, as YAML 1.1 and 1.2 both read it."""
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
