"""Numbers and booleans that a client sends as JSON strings, as oci-cli does: OCI takes them, and so does this.

`member_types.json` has the names of members by type. It is made from the SDK's models (`UPDATE_GOLDEN=1 pytest
tests/golden`). Content of free maps, such as tags and metadata, is the client's own and stays as it is.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

NUMBERS, BOOLEANS, MAPS = "numbers", "booleans", "maps"
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_WORDS = {"true": True, "false": False}


@cache
def _names() -> dict[str, frozenset[str]]:
    listed = json.loads(Path(__file__).with_suffix(".json").read_text())
    return {kind: frozenset(names) for kind, names in listed.items()}


def read(body: Any) -> Any:
    """A body in which members that are numbers or booleans are such.

    Raises:
        ValueError: a text is not of its member's type. The message names the member.
    """
    if isinstance(body, list):
        return [read(item) for item in body]
    if not isinstance(body, dict):
        return body
    return {name: _member(name, value) for name, value in body.items()}


def _member(name: str, value: Any) -> Any:
    known = _names()
    if not isinstance(value, str):
        return value if name in known[MAPS] else read(value)
    if name in known[NUMBERS]:
        if not _NUMBER.fullmatch(value):
            raise ValueError(f"{name} must be a number, not {value!r}")
        return float(value) if "." in value else int(value)
    if name in known[BOOLEANS]:
        if value.lower() not in _WORDS:
            raise ValueError(f"{name} must be true or false, not {value!r}")
        return _WORDS[value.lower()]
    return value
