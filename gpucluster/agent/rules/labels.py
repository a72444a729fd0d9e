"""Labels of nodes in Kubernetes that more than one part reads, and their values."""

from __future__ import annotations

import re

#: The label with the name of a node's host, where the node has another one.
HOST = "gpucluster.io/host"
_LONGEST = 63
_EDGES = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$")


def label_value(text: str) -> str:
    """The text as the value of a label: 63 characters of letters, digits, `-`, `_` and `.`, its end if it is longer."""
    return _EDGES.sub("", re.sub(r"[^-A-Za-z0-9_.]", "-", text)[-_LONGEST:])
