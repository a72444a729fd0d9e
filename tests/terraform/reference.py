"""The tables of docs/reference/terraform.md, made from the HCL: variables and outputs of the root and its modules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hcl2

ROOT = "cluster"


def with_tables(page: str, folder: Path) -> str:
    """The page with the tables between its marks `<!-- tables: <name> -->` and `<!-- end -->` written again.

    Args:
        folder: `terraform/`, with the root and `modules/`.
    """

    def again(mark: re.Match[str]) -> str:
        name = mark[1]
        return f"<!-- tables: {name} -->\n\n{tables(folders(folder)[name])}\n<!-- end -->"

    return re.sub(r"<!-- tables: (\w+) -->\n.*?<!-- end -->", again, page, flags=re.DOTALL)


def folders(folder: Path) -> dict[str, Path]:
    """The root and the modules, by name."""
    return {ROOT: folder / ROOT, **{path.name: path for path in sorted((folder / "modules").iterdir())}}


def tables(folder: Path) -> str:
    """The variables of a folder, the attributes of those that are objects, and the outputs, as Markdown."""
    variables = _blocks(folder / "variables.tf", "variable")
    parts = [_table(("variable", "type", "default", "description"), (_variable(*item) for item in variables.items()))]
    for name, block in variables.items():
        attributes = list(_attributes(_plain(block["type"])))
        if attributes:
            parts.append(f"Attributes of `{name}`:\n\n" + _table(("attribute", "type", "default"), attributes))
    outputs = _blocks(folder / "outputs.tf", "output")
    rows = ((f"`{name}`", _text(block["description"])) for name, block in outputs.items())
    return "\n".join([*parts, _table(("output", "description"), rows)])


def _blocks(file: Path, kind: str) -> dict[str, Mapping[str, Any]]:
    with file.open() as text:
        parsed = hcl2.load(text)
    return {name.strip('"'): block for item in parsed.get(kind, ()) for name, block in item.items()}


def _variable(name: str, block: Mapping[str, Any]) -> tuple[str, ...]:
    kind = re.sub(r"object\(\{.*\}\)", "object", _plain(block["type"]))
    default = f"`{_literal(block['default'])}`" if "default" in block else "required"
    return f"`{name}`", f"`{kind}`", default, _text(block["description"])


def _attributes(kind: str, path: str = "") -> Iterator[tuple[str, ...]]:
    """A row for each attribute of an object, those of nested objects under the path of their own."""
    inner = re.fullmatch(r"(?:map|list|set|optional)\((.*)\)", kind, re.DOTALL)
    if inner:
        yield from _attributes(_split(inner[1])[0], path)
    elif kind.startswith("object({"):
        for entry in _split(kind.removeprefix("object({").removesuffix("})")):
            name, _, of = entry.partition(" = ")
            wrapped = re.fullmatch(r"optional\((.*)\)", of, re.DOTALL)
            of, *default = _split(wrapped[1]) if wrapped else (of,)
            shown = "object" if of.startswith("object(") else of
            yield f"`{path}{name}`", f"`{shown}`", f"`{default[0] if default else 'null'}`" if wrapped else "required"
            yield from _attributes(of, f"{path}{name}.")


def _split(text: str) -> list[str]:
    """At commas, but not at those inside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _plain(expression: str) -> str:
    return expression.removeprefix("${").removesuffix("}") if expression.startswith("${") else expression


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return _plain(value) if isinstance(value, str) else str(value)


def _text(quoted: str) -> str:
    return quoted[1:-1].replace('\\"', '"').replace("|", "\\|").replace("<", "&lt;")


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
