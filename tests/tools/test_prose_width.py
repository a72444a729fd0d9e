"""Prose is wrapped at one width, and a page shows the same as before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tools.prose_width import WIDTH, files, wrapped

SHOW = MarkdownIt("commonmark").enable("table")


def shown(text: str) -> str:
    return re.sub(r"\s+", " ", SHOW.render(text))


def test_a_paragraph_fills_lines_and_those_of_a_list_are_indented() -> None:
    text = "one two three four\nfive\n\n- six seven eight nine ten\n  eleven\n1. twelve thirteen fourteen\n"
    assert wrapped(text, 20) == (
        "one two three four\nfive\n\n- six seven eight\n  nine ten eleven\n1. twelve thirteen\n   fourteen\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "| a | b |\n|---|---|\n| one two three four | five six seven eight |\n",
        "    code that is longer than the width, in a block\n",
        "```\ncode that is longer than the width, in a block\n```\n",
        "# A heading that is longer than the width\n",
        "> a quotation that is longer than the width\n",
        "a line break  \nthat is meant\n",
    ],
)
def test_all_else_stays_as_it_is(text: str) -> None:
    assert wrapped(text, 20) == text


def test_a_line_ends_in_no_code_and_begins_with_no_sign_of_markdown() -> None:
    assert wrapped("run `gpucluster apply --yes` now\n", 12) == "run\n`gpucluster apply --yes`\nnow\n"
    assert wrapped("from one to 2. and 3 - 4 # no > yes\n", 8) == "from one\nto 2.\nand 3 -\n4 # no >\nyes\n"


WORDS = st.sampled_from(["word", "a", "`two words`", "-", "1.", "#", ">", "[link](page.md)", "*so*", "=", "--", "x|y"])
PARTS = st.lists(WORDS, min_size=1, max_size=30).map(" ".join)


@given(st.lists(st.tuples(st.sampled_from(["", "- ", "1. ", "  - ", "| "]), PARTS), min_size=1, max_size=6))
def test_a_page_shows_the_same(parts: list[tuple[str, str]]) -> None:
    text = "\n\n".join(prefix + part for prefix, part in parts) + "\n"
    assert shown(wrapped(text, 24)) == shown(text)
    assert wrapped(wrapped(text, 24), 24) == wrapped(text, 24)


@pytest.mark.parametrize("file", files(), ids=lambda file: file.name)
def test_each_page_is_wrapped(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert wrapped(text) == text, f"not wrapped at {WIDTH}: python -m tools.prose_width"
