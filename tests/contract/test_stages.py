"""`make test` has two stages: no test is between them, and each begins with the files that take longest."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import LONGEST

TESTS = Path(__file__).parents[1]
MARK = re.compile(r"\bmark\.e2e\b")


def test_whole_clusters_are_in_one_folder() -> None:
    marked = {file for file in TESTS.rglob("*.py") if MARK.search(file.read_text()) and file != Path(__file__)}
    assert marked == set((TESTS / "e2e").glob("test_*.py"))


def test_the_files_that_take_longest_exist() -> None:
    assert [name for name in LONGEST if not (TESTS / name).is_file()] == []
