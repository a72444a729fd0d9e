"""Folders that only compute may take plain data from folders with effects, but nothing that acts."""

from __future__ import annotations

import ast
import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2] / "gpucluster"
PURE = ("handover", "preflight/checks")
#: Folders and modules with effects from which plain data may be imported; import-linter forbids the others.
EFFECTS = ("gpucluster.cloud", "gpucluster.artifacts", "gpucluster.ssh")
#: Pure itself: a table of release files.
PURE_MODULES = ("gpucluster.artifacts.catalogue",)


def _imported(folder: str) -> Iterator[tuple[str, str, Any]]:
    for file in sorted((PACKAGE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(EFFECTS):
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    if node.module not in PURE_MODULES and name not in PURE_MODULES:
                        module = importlib.import_module(node.module or "")
                        yield file.relative_to(PACKAGE).as_posix(), name, getattr(module, alias.name)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) or (isinstance(value, type) and dataclasses.is_dataclass(value))


@pytest.mark.parametrize("folder", PURE)
def test_only_plain_data_comes_from_folders_with_effects(folder: str) -> None:
    assert [(file, name) for file, name, value in _imported(folder) if not _is_plain(value)] == []


def test_the_check_sees_the_imports() -> None:
    assert {name for _, name, _ in _imported("handover")}
