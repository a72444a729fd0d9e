"""Code in strings and pages, which no type checker reads: programs that tests start, and examples of the library."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Their code is never run.
MADE_UP = {"tests/tools/test_affected.py", "tests/contract/test_code_in_strings.py"}


def pieces() -> Iterator[tuple[str, ast.Module]]:
    """Each piece of code that imports something of ours, with its place."""
    for file in sorted(path for top in ("tests", "benchmarks", "tools") for path in (ROOT / top).rglob("*.py")):
        place, text = str(file.relative_to(ROOT)), file.read_text()
        if "import gpucluster" in text or "from gpucluster" in text:
            for node in ast.walk(ast.parse(text)):
                code = _text(node)
                if "import" in code and "gpucluster" in code and place not in MADE_UP:
                    yield from _parsed(f"{place}:{node.lineno}", code)  # type: ignore[attr-defined]
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for code in re.findall(r"```python\n(.*?)```", file.read_text(), re.DOTALL):
            yield from _parsed(str(file.relative_to(ROOT)), code)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
    return ""


def _parsed(place: str, code: str) -> Iterator[tuple[str, ast.Module]]:
    try:
        yield place, ast.parse(textwrap.dedent(code))
    except (SyntaxError, ValueError):
        return  # prose that mentions an import


def missing(code: ast.Module) -> Iterator[str]:
    """Names of ours in the code that do not exist."""
    known: dict[str, object] = {}
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "gpucluster":
            for alias in node.names:
                if alias.name != "*":
                    try:
                        known[alias.asname or alias.name] = _named(str(node.module), alias.name)
                    except (ImportError, AttributeError):
                        yield f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            known.update(
                {alias.name: importlib.import_module(alias.name) for alias in node.names if alias.name == "gpucluster"}
            )
    for node in ast.walk(code):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
            owner = known[node.value.id]
            if isinstance(owner, type | type(ast)) and not hasattr(owner, node.attr):
                yield ast.unparse(node)


def _named(module: str, name: str) -> object:
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")


@pytest.mark.slow  # it parses all tests
def test_code_in_strings_and_pages_names_what_exists() -> None:
    found = [(place, name) for place, code in pieces() for name in missing(code)]
    assert not found


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("from gpucluster.events import Event, Gone", ["gpucluster.events.Gone"]),
        ("from gpucluster.gone import Event", ["gpucluster.gone.Event"]),
        ("from gpucluster.autoscaler.daemon import loop\nloop.Gone", ["loop.Gone"]),
        ("from gpucluster.events import Event\nEvent.gone", ["Event.gone"]),
        ("import gpucluster\ngpucluster.Gone", ["gpucluster.Gone"]),
        ("from gpucluster.autoscaler.daemon import loop\nloop.AutoscalerLoop\nother.Gone", []),
    ],
)
def test_a_name_that_is_gone_is_found(code: str, names: list[str]) -> None:
    assert list(missing(ast.parse(code))) == names
