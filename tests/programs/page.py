"""The page about programs that others have made, as tests run it: the files and the commands of each section.

A block of code in which `# NAME` (`// NAME` in C) is the first line is that file, without the line. A block `sh` that
names no file is typed into a shell. Blocks that are indented are examples, and nothing runs them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "programs.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"(?:#|//) ([\w.-]+)\n")


@dataclass(frozen=True)
class Section:
    """What a section has: the text of each file by its name, and the blocks of commands in their order."""

    files: dict[str, str]
    commands: tuple[str, ...]


def section(title: str, page: Path = PAGE) -> Section:
    """The section with this title. A title that the page does not have is an error, and so is one without commands."""
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"{page} has no section {title!r}"
    files: dict[str, str] = {}
    commands: list[str] = []
    for language, block in _BLOCK.findall(found.group(1)):
        if named := _NAME.match(block):
            files[named.group(1)] = block[named.end() :]
        else:
            assert language == "sh", f"{title}: a block {language!r} names no file"
            commands.append(block)
    assert commands, f"{title}: the section has no commands"
    return Section(files, tuple(commands))
