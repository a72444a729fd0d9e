"""The tests that `make test` leaves out: each exists, and names a test with real programs that stays (ADR 0129)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.long_tests import LONG, TESTS, is_long

_NAMED = re.compile(r"[a-z0-9_/]+/test_[a-z0-9_]+\.py")


def _functions(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", LONG)
def test_it_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert (TESTS / file).is_file()
    assert not function or function.partition("[")[0] in _functions(TESTS / file)


@pytest.mark.parametrize("name", LONG)
def test_what_proves_it_in_the_short_run_stays(name: str) -> None:
    named = _NAMED.findall(LONG[name])
    assert named, "it names no file of tests"
    for file in named:
        assert (TESTS / file).is_file(), file
        stay = {each for each in _functions(TESTS / file) if each.startswith("test_") and not _left_out(file, each)}
        assert stay, f"make test leaves out {file}, too"


@pytest.mark.parametrize("name", LONG)
def test_no_entry_of_a_file_stands_beside_one_of_its_tests(name: str) -> None:
    file, _, function = name.partition("::")
    around = {file, f"{file}::{function.partition('[')[0]}"} - {name}
    assert around.isdisjoint(LONG)


def _left_out(file: str, function: str) -> bool:
    return is_long(TESTS / file, function)
