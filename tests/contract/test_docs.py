"""What the documents promise: links lead somewhere, and the commands in them and in our messages exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gpucluster.cli import cli
from gpucluster.cli.base import Root

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted((ROOT / "gpucluster").rglob("*.py"))
# A command in a code block, and one that a message or a sentence names.
IN_BLOCK = re.compile(
    r"^(?:    )+(?:\$ |- run: |[^#|]*\| )?(?:\.venv/bin/)?(gpucluster (?!init-)[^#|;]*)", re.MULTILINE
)
IN_TEXT = re.compile(r"(?:`|[Rr]un: |[Ss]ee: |[Nn]ext: )(gpucluster [a-z-][^`#|;,)\"\\\n]*)")


def _anchors(file: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_link_inside_of_the_documents_leads_somewhere(file: Path) -> None:
    for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", file.read_text()):
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


def _outside_of_blocks(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a document with their numbers, those of code blocks left out."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, line


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_code_is_broken_across_lines(file: Path) -> None:
    """Who copies it gets a line break, and the tests of this file do not see the command."""
    lines = _outside_of_blocks(file.read_text())
    assert [number for number, line in lines if line.replace("``", "").count("`") % 2] == []


def _commands() -> Iterator[tuple[str, str]]:
    for file in (*DOCUMENTS, *SOURCES):
        patterns = (IN_BLOCK, IN_TEXT) if file.suffix == ".md" else (IN_TEXT,)
        for pattern in patterns:
            for line in pattern.findall(file.read_text()):
                yield str(file.relative_to(ROOT)), line


def _fault(line: str) -> str:
    """What click would refuse in a command line of the documents; empty if nothing. Values are not checked."""
    try:
        words = shlex.split(line.rstrip(". "))[1:]
    except ValueError:  # the rest of a sentence
        words = line.split()[1:]
    command: click.Command = cli
    value_of_option = False
    for word in words:
        if value_of_option:
            value_of_option = False
        elif isinstance(command, click.Group) and not word.startswith("-"):
            inner = command.all_commands() if isinstance(command, Root) else command.commands
            if word not in inner:
                # A placeholder, such as COMMAND, or the rest of a sentence.
                return "" if not re.fullmatch("[a-z-]+", word) else f"no command {word}"
            command = inner[word]
        elif word == "--" or command.name in ("ssh", "simulate"):
            return ""
        elif re.fullmatch("--?[a-z][a-z-]*(=.*)?", word):
            known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
            if word.partition("=")[0] not in known | {"--help", "-h"}:
                return f"{command.name} has no option {word}"
            value_of_option = word in ("-f", "--file", "-o", "--output")
    return ""


def test_every_command_that_we_name_exists() -> None:
    found = list(_commands())
    assert len(found) > 150  # the patterns still find them
    assert [f"{file}: {line}: {fault}" for file, line in found if (fault := _fault(line))] == []
