"""How wide text is on a terminal. Names of users may have any script: a Japanese character takes two columns."""

from __future__ import annotations

import unicodedata

#: Marks over another character, and characters that are not seen.
_WITHOUT_WIDTH = ("Mn", "Me", "Cf")


def columns(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return len(text) if text.isascii() else sum(map(_of_one, text))


def _of_one(char: str) -> int:
    if unicodedata.category(char) in _WITHOUT_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def padded(text: str, width: int) -> str:
    """The text, with spaces behind it until it takes this many columns."""
    return text + " " * (width - columns(text))
