"""`make test` gives each of its stages the files with its tests: no test is between two stages."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
MARK = re.compile(r"\bmark\.(e2e|slurm)\b")


def _with_mark(mark: str) -> set[Path]:
    return {file for file in TESTS.rglob("*.py") if mark in MARK.findall(file.read_text()) and file != Path(__file__)}


def test_whole_clusters_are_in_one_folder() -> None:
    assert _with_mark("e2e") == set((TESTS / "e2e").glob("test_*.py"))


def test_tests_of_real_slurm_name_their_mark_in_the_file_in_which_they_are() -> None:
    found = _with_mark("slurm")
    assert len(found) > 5
    assert {file.name[:5] for file in found} == {"test_"}
    assert {file for file in found if "pytest.mark.slurm" not in file.read_text()} == set()
