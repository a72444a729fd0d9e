"""The words of this project: terms of the field only. docs/reference/glossary.md has them, and what they replace.

Patterns of prose that are hard to read may only become fewer: each folder has a ceiling in words.toml. A folder without
one must have none of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The lists themselves, the page that names the words so that they are not used, and what counts them.
EXEMPT = {
    "docs/reference/glossary.md",
    "tests/contract/test_words.py",
    "tests/contract/words.toml",
    "tests/tools/test_counts.py",
    "tools/counts.py",
}
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
    "somebody": ("body",),
}

PROSE = {".j2", ".md", ".py", ".sh", ".tf", ".toml", ".yaml", ".yml"}
CEILINGS = Path(__file__).with_name("words.toml")
LOWER = "UPDATE_GOLDEN=1 python -m pytest -n 0 tests/contract/test_words.py"
#: Patterns that may only become fewer, and what to write instead.
FEWER = {
    # What begins a line may be a part of "there is no".
    "is no": re.compile(r"(?<!\bthere )(?<=[\w`')\"] )is no (?!longer\b|other\b|more\b)", re.IGNORECASE),
    "says": re.compile(r"\bsays\b", re.IGNORECASE),
    "somebody": re.compile(r"\b(?:some|any|every)body\b", re.IGNORECASE),
}
INSTEAD = {
    "is no": '"is not a"',
    "says": '"reports", "prints", "returns", "states" or "shows"',
    "somebody": "who it is: a user, an operator, a program",
}


def may_have(word: str, text: str) -> bool:
    """Whether it is worth the time to search a text for a word or a pattern."""
    small = text.lower()
    return any(letters in small for letters in LETTERS.get(word, (word,)))


def places(word: str, text: str) -> list[tuple[int, str]]:
    """Number and content of each line that has the word."""
    if not may_have(word, text):
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


def folder(name: str) -> str:
    """Whose ceiling counts for a file: its first two folders, as far as it has them."""
    return "/".join(name.split("/")[:-1][:2]) or "."


def occurrences(pattern: str, content: Mapping[str, str]) -> dict[str, list[str]]:
    """By folder: "file:line" of each occurrence of a pattern of `FEWER`."""
    found: dict[str, list[str]] = {}
    for name, text in content.items():
        if Path(name).suffix in PROSE and may_have(pattern, text):
            for number, line in enumerate(text.splitlines(), 1):
                if times := len(FEWER[pattern].findall(line)):
                    found.setdefault(folder(name), []).extend([f"{name}:{number}"] * times)
    return found


def lowered(ceilings: Mapping[str, Mapping[str, int]], counts: Mapping[str, Counter[str]]) -> str:
    """The table with each ceiling lowered to what was counted. None is raised."""
    lines = [
        "# How often a pattern of test_words.py may occur in a folder. This lowers the ceilings to what is there:",
        f"# {LOWER}",
    ]
    for name in FEWER:
        lines += ["", f'["{name}"]']
        least = {where: min(ceiling, counts[name][where]) for where, ceiling in sorted(ceilings[name].items())}
        lines += [f'"{where}" = {count}' for where, count in least.items() if count]
    return "\n".join(lines) + "\n"


def test_no_folder_has_more_of_what_is_hard_to_read(content: dict[str, str]) -> None:
    ceilings = tomllib.loads(CEILINGS.read_text(encoding="utf-8"))
    found = {name: occurrences(name, content) for name in FEWER}
    if os.environ.get("UPDATE_GOLDEN"):
        counts = {name: Counter({where: len(at) for where, at in by.items()}) for name, by in found.items()}
        CEILINGS.write_text(lowered(ceilings, counts), encoding="utf-8")
    above = [
        f"{where} has {name!r} {len(at)} times, and {ceilings[name].get(where, 0)} are allowed. "
        f"Instead of a new one write {INSTEAD[name]}. Places: {' '.join(at)}"
        for name, by in found.items()
        for where, at in sorted(by.items())
        if len(at) > ceilings[name].get(where, 0)
    ]
    assert not above, "\n".join([*above, f"After prose was improved, lower the ceilings: {LOWER}"])


def test_ceilings_only_go_down() -> None:
    ceilings = {"is no": {}, "says": {"a": 3, "b": 2, "c": 1}, "somebody": {}}
    counts = {name: Counter[str]() for name in FEWER} | {"says": Counter(a=1, b=5)}
    assert tomllib.loads(lowered(ceilings, counts))["says"] == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("is no", "The controller is no node", True),
        ("is no", "There is no node", False),
        ("is no", "where there\n# is no node", False),
        ("is no", "It is no longer listed", False),
        ("says", "The page says so", True),
        ("somebody", "Everybody asks", True),
        ("somebody", "the body of a request", False),
    ],
)
def test_which_prose_may_only_become_less(name: str, text: str, found: bool) -> None:
    assert bool(occurrences(name, {"docs/page.md": text})) is found
