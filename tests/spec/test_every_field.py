"""Wrong values in every field that the model has: each is reported with a place, and nothing else happens.

Every field gets every value of a list. A file has two of them per section at a time, so that 10,000 values need some
hundred files: an error in one section must not hide a crash in another, and the values that remain valid are read.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from gpucluster.errors import InputError, InputFinding
from gpucluster.spec import loads, messages
from gpucluster.spec.model import sections
from tests.spec.spec_texts import LOCAL, OCI

#: What a text, a number, a list or a mapping may be instead, and characters that mean something to another program.
WRONG: tuple[Any, ...] = (
    None, "", " ", "a b", "A", "-", "--help", "a\nb", "a\tb", "\u0000", "\u001b[31m", "\u007f", "\u2028",
    "\u202e", "é", "x$(id>pwn)", "`id`", "a;id", "'", '"', "\\", "{{ 7 * 7 }}", "${x}", "%h", "<script>",
    "../../etc", "/", "~nobody-x/y", "http://x/\ny", "ssh-ed25519 AAAA\nssh-rsa BBBB", "1" * 5000, 0, -1, 10**30,
    1.5, float("inf"), float("nan"), True, [], [None], ["a b"], ["\u001b"], [[]], [{}], ["a", "a"], {}, {"a": 1},
    {"": None}, {"a b": {}},
)  # fmt: skip


#: Fields of each section that are wrong in one file.
AT_A_TIME = 2


def fields() -> list[tuple[list[str], str, type[BaseModel]]]:
    """Each section by its path in the file, and each of its fields."""
    return [
        (path.split(".") if path else [], name, section)
        for section, paths in sections().items()
        for path in paths
        for name in section.model_fields
    ]


def place(document: dict[str, Any], path: list[str], name: str, value: Any) -> None:
    """Set a field; what is on the way to it is made. A list has one entry, and a mapping of free keys one key."""
    current: Any = document
    for word in path:
        key = "example" if word == "<name>" else word.removesuffix("[]")
        inner = current.get(key)
        if word.endswith("[]"):
            if not (isinstance(inner, list) and inner and isinstance(inner[0], dict)):
                current[key] = inner = [{}]
            inner = inner[0]
        elif not isinstance(inner, dict):
            current[key] = inner = {}
        current = inner
    current[name] = copy.deepcopy(value)


def files() -> Iterator[tuple[str, int]]:
    """Texts of files, and how many wrong values each has."""
    by_section: dict[str, list[tuple[list[str], str]]] = {}
    for path, name, _ in fields():
        by_section.setdefault(".".join(path), []).append((path, name))
    longest = max(len(found) for found in by_section.values())
    base = yaml.safe_load(OCI)
    for value in WRONG:
        for number in range(0, longest, AT_A_TIME):
            document = copy.deepcopy(base)
            chosen = [one for found in by_section.values() for one in found[number : number + AT_A_TIME]]
            # Those of outer sections first: an inner one is placed in what they leave.
            for path, name in sorted(chosen, key=lambda one: len(one[0])):
                place(document, path, name, value)
            yield json.dumps(document), len(chosen)


@pytest.mark.slow
def test_every_field_reports_wrong_values_with_their_place() -> None:
    tried, refused = 0, 0
    bad: list[InputFinding] = []
    for text, values in files():
        tried += values
        try:
            loads(text, "dir/cluster.yml")
        except InputError as error:
            bad += [finding for finding in error.findings if not is_good(finding)]
            refused += len(error.findings)
    assert bad == []
    assert tried > 10_000
    assert refused > tried / 2


def is_good(finding: InputFinding) -> bool:
    """It has a place, and words that can be printed."""
    words = f"{finding.path}{finding.message}{finding.hint}"
    return finding.line >= 1 and finding.column >= 1 and bool(finding.message) and words.isprintable()


def _patterns(kind: Any) -> Iterator[str]:
    for metadata in getattr(kind, "__metadata__", ()) or ():
        yield from (pattern for pattern in [getattr(metadata, "pattern", None)] if pattern)
        yield from (one.pattern for one in getattr(metadata, "metadata", ()) if getattr(one, "pattern", None))
    for inner in get_args(kind):
        if not isinstance(inner, str):
            yield from _patterns(inner)


def test_every_pattern_of_the_model_has_a_message() -> None:
    found: set[str] = set()
    for section in sections():
        for info in section.model_fields.values():
            found.update(_patterns(info.annotation))
            found.update(one.pattern for one in info.metadata if getattr(one, "pattern", None))
    assert len(found) > 20
    assert found <= set(messages._PATTERNS)


@pytest.mark.parametrize("mirror", ["http://x/\ny", "http://x/\ty"])
def test_a_text_of_several_lines_is_refused(mirror: str) -> None:
    document = yaml.safe_load(LOCAL) | {"software": {"mirror": mirror}}
    with pytest.raises(InputError) as caught:
        loads(json.dumps(document), "dir/cluster.yml")
    assert [(found.path, found.message) for found in caught.value.findings] == [
        ("software.mirror", "has a tab or several lines")
    ]
