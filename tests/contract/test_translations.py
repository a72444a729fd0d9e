"""Pages in Japanese have the commands of their English pages, in the same order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRANSLATIONS = sorted([*ROOT.glob("*.ja.md"), *(ROOT / "docs").rglob("*.ja.md")])
#: It has its commands in the rows of tables: tests/tools/test_error_catalogue.py compares them.
OF_ERRORS = ROOT / "docs" / "reference" / "errors.ja.md"


def commands(text: str) -> list[str]:
    """The lines of code blocks, also of those in lists and between fences, without their comments."""
    lines = re.findall(r"^(?: {4}| {7})(\S.*)$", text, re.MULTILINE)
    fenced = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines += [line for block in fenced for line in block.splitlines() if line]
    return [re.sub(r"\s+# .*", "", line) for line in lines]


def calls(text: str) -> set[str]:
    """The commands of gpucluster in sentences and tables, between backticks."""
    return set(re.findall(r"`(gpucluster [a-z][^`\n]*)`", text))


def test_there_are_translations() -> None:
    assert [file.name for file in TRANSLATIONS] == [
        "README.ja.md",
        "errors.ja.md",
        "first-cluster.ja.md",
        "kubernetes.ja.md",
        "oke.ja.md",
    ]


@pytest.mark.parametrize("file", [each for each in TRANSLATIONS if each != OF_ERRORS], ids=lambda file: file.name)
def test_a_translation_has_the_commands_of_its_page(file: Path) -> None:
    english = file.with_name(file.name.replace(".ja.md", ".md"))
    assert len(commands(english.read_text())) > 5
    assert commands(file.read_text()) == commands(english.read_text())
    assert calls(file.read_text()) == calls(english.read_text())


@pytest.mark.parametrize("file", TRANSLATIONS, ids=lambda file: file.name)
def test_both_pages_lead_to_each_other(file: Path) -> None:
    english = file.with_name(file.name.replace(".ja.md", ".md"))
    assert f"]({english.name})" in file.read_text()
    assert f"]({file.name})" in english.read_text()


def test_a_command_that_differs_is_seen() -> None:
    text = "Do:\n\n    a --b    # why\n\n1. and\n\n       c\n\n```sh\nd --e\n\n  f\n```\n\nand `gpucluster g --h`.\n"
    assert commands(text) == ["a --b", "c", "d --e", "  f"]
    assert calls(text) == {"gpucluster g --h"}
