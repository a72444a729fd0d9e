"""The words of this project: terms of the field only. docs/reference/glossary.md says which, and what they replace."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The list itself, and the page that names the words so that nobody uses them.
EXEMPT = {"tests/contract/test_words.py", "docs/reference/glossary.md"}
# A text of others.
AS_THEY_ARE = ("LICENSE",)
# System accounts that no user may have the name of; one of Ubuntu's is called landscape.
SYSTEM_NAMES = "gpucluster/controller/rules/names.py"

PRIVATE = {
    "wish": r"wish",
    "mend": r"(?<![a-z])mend(?:s|ed|ing)?(?![a-z])",
    "door": r"(?<![a-z])doors?(?![a-z])|doorbell|(?-i:Door(?![a-z]))",
    "landscape": r"landscape",
    "anew": r"(?<![a-z])anew(?![a-z])",
    "make way": r"make[_ ]way",
    "diary": r"(?<![a-z])diary(?![a-z])",
    "withdrawal": r"withdrawal",
    "setback": r"setback",
    "whoever": r"whoever|whomever",
    "look ahead": r"look[_ ]ahead",
    "say --option": r"\bsay --[a-z]",
    "hourglass, waist": r"hourglass|\bwaist\b",
    "downstairs": r"\bdownstairs\b|\bupstairs\b|\bstairs\b",
    "unfinished plural": r"\b(?:change|check|error|file|group|host|image|instance|job|key|line|node|pool|user)\(s\)",
}
#: Small letters of which each text that has the word has some: looking for them takes a hundredth of the time.
LETTERS = {
    "make way": ("make",),
    "look ahead": ("look",),
    "say --option": ("say --",),
    "hourglass, waist": ("hourglass", "waist"),
    "downstairs": ("stairs",),
    "unfinished plural": ("(s)",),
}


def places(word: str, text: str) -> list[tuple[int, str]]:
    """Number and content of each line that has the word."""
    if not any(letters in text.lower() for letters in LETTERS.get(word, (word,))):
        return []
    pattern = re.compile(PRIVATE[word], re.IGNORECASE)
    return [(number, line) for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


def tracked() -> list[str]:
    """Every file that git knows, or will know: tracked, or new and not ignored."""
    argv = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    named = [name for name in listed.split("\0") if name and name not in EXEMPT and not name.startswith(AS_THEY_ARE)]
    return [name for name in named if (ROOT / name).is_file()]


def texts() -> dict[str, str]:
    found = {}
    for name in tracked():
        try:
            found[name] = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


@pytest.fixture(scope="module")
def content() -> dict[str, str]:
    return texts()


@pytest.mark.parametrize("word", PRIVATE)
def test_no_word_of_our_own_stands_where_the_field_has_one(word: str, content: dict[str, str]) -> None:
    found = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in content.items()
        if not (word == "landscape" and name == SYSTEM_NAMES)
        for number, line in places(word, text)
    ]
    assert not found, f"{len(found)} lines say {word!r}:\n" + "\n".join(found[:40])


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("wish", "the wished size"),
        ("mend", "Mend the cause"),
        ("door", "class Door:"),
        ("door", "open_door = 1"),
        ("anew", "it is made anew"),
        ("make way", "MAKE_WAY = 1"),
        ("look ahead", "Look ahead"),
        ("say --option", "or say --delete-data"),
        ("hourglass, waist", "the waist"),
        ("hourglass, waist", "an hourglass"),
        ("downstairs", "Upstairs"),
        ("unfinished plural", "3 node(s)"),
    ],
)
def test_the_list_finds_them(word: str, text: str) -> None:
    assert places(word, f"a line\n{text}\n") == [(2, text)]


@pytest.mark.parametrize(("word", "text"), [("mend", "we recommend an amendment"), ("door", "indoors")])
def test_the_list_leaves_other_words_alone(word: str, text: str) -> None:
    assert places(word, text) == []
