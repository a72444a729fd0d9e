"""Lines for the administrator: the journal of a service keeps its standard error."""

from __future__ import annotations

import sys

_LONGEST = 2000


def to_stderr(words: str) -> None:
    """Write a line. What users wrote in it can't begin another line or move a cursor."""
    sys.stderr.write("".join(sign if sign.isprintable() else " " for sign in words)[:_LONGEST] + "\n")
    sys.stderr.flush()
