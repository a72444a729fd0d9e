"""Values of labels of Kubernetes."""

from __future__ import annotations

import re

_LONGEST = 63
_EDGES = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$")


def label_value(text: str) -> str:
    """The text as the value of a label: 63 characters of letters, digits, `-`, `_` and `.`, its end if it is longer."""
    return _EDGES.sub("", re.sub(r"[^-A-Za-z0-9_.]", "-", text)[-_LONGEST:])
