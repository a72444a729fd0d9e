"""Wrap the prose of the Markdown files at one width; tables, code, headings and quotations stay as they are.

    python -m tools.prose_width             rewrite the files
    python -m tools.prose_width --check     name the files that would change, and end with 1 if there are some

Pages that programs write are left out: their generators decide. So are Japanese pages, which have no spaces at which a
line could end.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
#: That of Python's lines.
WIDTH = 120
#: Pages that a program writes as a whole or in parts; tests/golden compares them.
GENERATED = (
    "docs/reference/",
    "tests/",
)
#: What would begin a list, a heading or a quotation at the start of a line, or underline the line before.
_MARKER = re.compile(r"(?:[-+*>=|~]|#{1,6}|\d+[.)]|[-=]{2,}|\|.*|>.*|~{3,}.*|`{3,}.*)$")
#: A code span, or one character. A line never ends in a code span.
_ATOM = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)|.", re.DOTALL)


def wrapped(text: str, width: int = WIDTH) -> str:
    """A Markdown text whose paragraphs fill lines of this width. Pure; again, it changes nothing.

    A paragraph that would show something else then stays as it is.
    """
    paragraphs = list(_paragraphs(text))
    changed = _with(text, paragraphs, width)
    if _shown(changed) == _shown(text):
        return changed
    for paragraph in reversed(paragraphs):
        changed = _with(text, [paragraph], width)
        if _shown(changed) == _shown(text):
            text = changed
    return text


def _shown(text: str) -> str:
    """The page as HTML, in which the ends of lines are spaces."""
    return re.sub(r"\s+", " ", MarkdownIt("commonmark").enable("table").render(text))


def _with(text: str, paragraphs: Sequence[tuple[int, int, str]], width: int) -> str:
    """The text with these paragraphs wrapped."""
    lines = text.split("\n")
    for start, end, first in reversed(paragraphs):
        column = lines[start].find(first)
        prefix = lines[start][:column]
        # In a quotation each line has a sign of its own; two spaces or a backslash at the end are a line break.
        if column < 0 or ">" in prefix or any(line.endswith(("  ", "\\")) for line in lines[start:end]):
            continue
        content = " ".join([lines[start][column:], *lines[start + 1 : end]])
        lines[start:end] = _filled(_words(content), prefix, width)
    return "\n".join(lines)


def _paragraphs(text: str) -> Iterator[tuple[int, int, str]]:
    """The first line of each paragraph, the one after its last, and the text of the first line without its prefix."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for opened, inline in pairwise(tokens):
        if opened.type == "paragraph_open" and opened.map is not None:
            yield opened.map[0], opened.map[1], inline.content.split("\n", 1)[0]


def _words(content: str) -> list[str]:
    """What stands between spaces, code spans as one word; what may not begin a line stays with the word before it."""
    words: list[str] = []
    word = ""
    for match in _ATOM.finditer(content):
        atom = match.group()
        if atom.isspace():
            words += [word] if word else []
            word = ""
        else:
            word += " ".join(atom.split()) if len(atom) > 1 else atom
    words += [word] if word else []
    joined: list[str] = []
    for each in words:
        if joined and _MARKER.match(each):
            joined[-1] += f" {each}"
        else:
            joined.append(each)
    return joined


def _filled(words: Sequence[str], prefix: str, width: int) -> list[str]:
    lines, line = [], prefix
    for word in words:
        if line.strip() and line != prefix and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = " " * len(prefix) + word
        else:
            line += word if line == prefix or not line.strip() else f" {word}"
    return [*lines, line]


def files() -> list[Path]:
    """The Markdown files that people write, of this repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return [ROOT / name for name in listed if name and not name.startswith(GENERATED) and not name.endswith(".ja.md")]


def main(argv: Sequence[str]) -> int:
    """Rewrite or check. Returns the exit status."""
    changed = [file for file in files() if wrapped(text := file.read_text(encoding="utf-8")) != text]
    for file in changed:
        if "--check" in argv:
            print(f"{file.relative_to(ROOT)}: its prose is not wrapped at {WIDTH}: python -m tools.prose_width")
        else:
            file.write_text(wrapped(file.read_text(encoding="utf-8")), encoding="utf-8")
    return int(bool(changed) and "--check" in argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
