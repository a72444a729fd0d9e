"""Removes secrets from evidence. Programs such as nccl-tests write their whole environment into their results.

What goes is chosen by name, and rather too much than too little: who needs a value can measure again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

#: In the place of a secret.
REMOVED = "(removed)"

_SECRET = r"(?:key|token|pass|secret|credential|cookie|authorization|private|netrc)"  # noqa: S105 - names, no secret
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
# The rest of a line `NAME=value`, as `env` prints it; and a value behind a name within a line.
_ASSIGNED = re.compile(rf"^(\s*(?:export\s+)?[\w.-]*{_SECRET}[\w.-]*=).*$", re.IGNORECASE | re.MULTILINE)
_NAMED = re.compile(
    rf"""([\w.-]*{_SECRET}[\w.-]*["']?\s*[=:]\s*)(?:(?:bearer|basic)\s+)?("[^"]*"|'[^']*'|[^\s,;&}}]+)""", re.IGNORECASE
)
_IN_ADDRESS = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@]+@", re.IGNORECASE)
# Also one whose end is cut off.
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def scrubbed(value: Any, name: str = "") -> Any:
    """The same JSON value without secrets. A text that is JSON itself becomes the value that it stands for.

    Args:
        name: the name under which it stands.
    """
    if value is None or isinstance(value, bool):
        return value
    if _SECRET_NAME.search(name):
        return REMOVED
    if isinstance(value, Mapping):
        return {str(key): scrubbed(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(inner) for inner in value]
    return _scrubbed_text(value) if isinstance(value, str) else value


def _scrubbed_text(text: str) -> Any:
    if text.lstrip()[:1] in ("{", "["):
        try:
            inner = json.loads(text)
        except (ValueError, RecursionError):
            pass  # cut off, or no JSON
        else:
            return scrubbed(inner)
    text = _PRIVATE_KEY.sub(REMOVED, text)
    text = _ASSIGNED.sub(rf"\g<1>{REMOVED}", text)
    return _IN_ADDRESS.sub(rf"\g<1>{REMOVED}@", _NAMED.sub(rf"\g<1>{REMOVED}", text))
