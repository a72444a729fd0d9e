"""The catalogue of errors, docs/reference/errors.md: each message of the package with what to do about it, by exit code.

    python -m tools.error_catalogue

prints it. tests/golden compares it with the page. Messages are read from the places that raise them: a message that is
another program's, or is made of a value alone, is not in it.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from gpucluster import errors
from gpucluster.errors import GpuClusterError
from gpucluster.paths import import_root

PACKAGE = import_root() / "gpucluster"
#: Programs of hosts, and of the local cloud's server: what they report reaches a user as part of another message.
_OF_HOSTS = ("autoscaler", "controller", "localcloud", "node_agent", "jobs/templates")
#: They show a value, and change nothing of what it is about.
_SHOWING = frozenset({"printable", "shown", "str", "repr", "quote", "sorted", "count", "join", "listed", "named"})
_ANY = "..."

# ruff: noqa: E501
_INTRODUCTION = """\
# Errors and what to do

<!-- Written by tools/error_catalogue.py from the places that raise them; checked by tests/golden -->

Every error states what went wrong, where, and what to do next, and ends the command with an [exit code](command-line.md#exit-codes). This page has
the messages by exit code, so that you can search for one. Words in capitals stand for a value, `...` for a longer text. Errors in cluster.yml have
the place in the file and are explained with [each key](cluster-yml.md); what preflight finds is on [its page](../how-to/preflight.md), and what checks
of hosts find on [theirs](../how-to/node-checks.md).
"""


class Message(NamedTuple):
    """A message of an error.

    Args:
        error: the class. `text`: with placeholders. `hint`: what to do; empty if the message states it.
    """

    error: str
    text: str
    hint: str


def classes() -> dict[str, type[GpuClusterError]]:
    """The errors, by name."""
    found = inspect.getmembers(errors, inspect.isclass)
    return {name: each for name, each in found if issubclass(each, GpuClusterError)}


def messages() -> set[Message]:
    """The messages of the package."""
    names = classes()
    found: set[Message] = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        if not file.relative_to(PACKAGE).as_posix().startswith(_OF_HOSTS):
            found.update(_messages(ast.parse(file.read_text(encoding="utf-8")), frozenset(names)))
    return found


def _messages(tree: ast.Module, names: frozenset[str]) -> Iterator[Message]:
    known = _texts(tree.body, {})
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            nodes = list(ast.walk(function))
            own = _texts(nodes, known)
            for node in nodes:
                if isinstance(node, ast.Call) and node.args and (name := _name(node.func)) in names:
                    hints = [template(each.value, own) for each in node.keywords if each.arg == "hint"]
                    text = template(node.args[0], known)
                    if re.search(r"[a-z]{3}", text.replace(_ANY, "")):
                        yield Message(name, _one_line(text), _one_line(hints[0]) if hints else "")


def _texts(nodes: Iterable[ast.AST], known: Mapping[str, str]) -> dict[str, str]:
    """The texts that a module, or a function of it, has names for, with those that are known."""
    found = dict(known)
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text, name = template(node.value, found), node.targets[0].id
            if " " in text:
                found[name] = f"{found[name]} / {text}" if name in found else text
    return found


def template(node: ast.expr, known: Mapping[str, str] = MappingProxyType({})) -> str:
    """A text of the program, with placeholders for its values.

    Args:
        known: texts by their names.
    """
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(each, known) for each in node.values)
    if isinstance(node, ast.FormattedValue):
        return _placeholder(node.value, known)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left, known) + template(node.right, known)
    if isinstance(node, ast.IfExp):
        first, second = template(node.body, known), template(node.orelse, known)
        return " / ".join(dict.fromkeys(each for each in (first, second) if each))
    return known.get(_name(node), _ANY)


def _placeholder(node: ast.expr, known: Mapping[str, str]) -> str:
    """The name of a value in capitals, such as HOST; or dots."""
    if isinstance(node, ast.Call) and _name(node.func) in _SHOWING and node.args:
        return _placeholder(node.args[-1], known)
    if isinstance(node, ast.Constant | ast.JoinedStr | ast.IfExp) or _name(node) in known:
        return template(node, known)
    if isinstance(node, ast.Subscript):
        return _placeholder(node.value, known)
    name = _name(node).strip("_")
    return name.upper() if re.fullmatch(r"[a-z][a-z_]{2,}", name) else _ANY


def _name(node: ast.expr) -> str:
    """The last word of a name; empty for another expression."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def page() -> str:
    """The page as Markdown."""
    rows: dict[str, list[Message]] = {}
    for each in messages():
        rows.setdefault(each.error, []).append(each)
    parts = [_INTRODUCTION]
    for name, error in sorted(classes().items(), key=lambda item: (item[1].exit_code, item[0])):
        if name in rows:
            summary = " ".join((inspect.getdoc(error) or "").partition("\n\n")[0].split())
            parts.append(f"\n## `{name}`, exit code {error.exit_code}\n\n{summary}\n\n{_table(rows[name])}")
    return "".join(parts)


def _table(rows: list[Message]) -> str:
    lines = {f"| {_cell(each.text)} | {_cell(each.hint) or '-'} |\n" for each in rows}
    return "| message | what to do |\n|---|---|\n" + "".join(sorted(lines, key=str.casefold))


def _one_line(text: str) -> str:
    return " ".join(text.split()).removesuffix(": " + _ANY).rstrip(":")


def _cell(text: str) -> str:
    return re.sub(r"([|<>*_`\[\]])", r"\\\1", text)


if __name__ == "__main__":
    print(page(), end="")
