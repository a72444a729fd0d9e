"""Removes secrets from evidence: from JSON values by the names that they have, from texts with `controller.scrub`.

Rather too much is removed than too little: who needs a value can measure again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gpucluster.controller import scrub
from gpucluster.node_agent import bounded

_WORD = r"(?:key|token|pass|secret|credential|cookie|authorization|private|netrc)"
_NAME = re.compile(_WORD, re.IGNORECASE)
# A whole name of limited length: else a long text without spaces would take its length squared.
_LONG_NAME = rf"(?<![\w.-])[\w.-]{{0,128}}{_WORD}[\w.-]{{0,128}}"
# The rest of a line `NAME=value`, as `env` prints it; and a value behind a name within a line.
_ASSIGNED = re.compile(rf"^(\s*(?:export\s+)?{_LONG_NAME}=).*$", re.IGNORECASE)
_NAMED = re.compile(rf"""({_LONG_NAME}["']?\s{{0,8}}[=:]\s{{0,8}})("[^"]*"|'[^']*'|[^\s,;&}}]+)""", re.IGNORECASE)


_SHORT = 512


def scrubbed(value: Any, name: str = "") -> Any:
    """The same JSON value without secrets. A text that is JSON itself becomes the value that it stands for.

    Args:
        name: the name under which it stands.
    """
    if value is None or isinstance(value, bool):
        return value
    if _is_secret(name):
        return scrub.HIDDEN
    if isinstance(value, Mapping):
        return {str(key): scrubbed(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(inner) for inner in value]
    return _scrubbed_text(value) if isinstance(value, str) else value


# Cached: the same names and messages stand in the facts of each of thousands of hosts.
@lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    return _NAME.search(name) is not None


def _scrubbed_text(text: str) -> Any:
    if text.lstrip()[:1] in ("{", "["):
        try:
            inner = bounded.loads(text)
        except (ValueError, RecursionError):
            pass  # cut off, or no JSON
        else:
            return scrubbed(inner)
    return _cleaned(text) if len(text) <= _SHORT else _cleaned.__wrapped__(text)


@lru_cache(maxsize=4096)
def _cleaned(text: str) -> str:
    text = scrub.scrubbed(text)
    return "\n".join(map(_line, text.split("\n"))) if _NAME.search(text) else text


def _line(line: str) -> str:
    if not _NAME.search(line):
        return line
    line = _ASSIGNED.sub(rf"\g<1>{scrub.HIDDEN}", line)
    return _NAMED.sub(rf"\g<1>{scrub.HIDDEN}", line)
