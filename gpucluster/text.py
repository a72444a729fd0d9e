"""Small pieces of text that messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def count(number: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun: "1 node", "2 nodes", "0 nodes".

    Args:
        plural: the noun for any other number than one, where adding an `s` is not enough.
    """
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"


def some(names: Sequence[str], most: int = 4) -> str:
    """The first few of many names: "a, b and 3 more"."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def printable(text: str) -> str:
    """The text on one line, with an escape for each character that could move a cursor or hide other text."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def terminal(text: str) -> str:
    """The text as a terminal may get it: lines and tabs stay, and every other such character becomes an escape."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def reason_of(error: Exception) -> str:
    """The text of a library's error, for messages: of one of the operating system without its number and class."""
    inner = getattr(error, "reason", None)  # urllib wraps the error of a connection
    if isinstance(inner, Exception):
        return reason_of(inner)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(inner or error) or type(error).__name__


def did_you_mean(word: str, known: Iterable[str], *, most: int = 2) -> str:
    """A hint with up to `most` known words of a similar spelling; empty if there is none. Case is ignored."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    matches = difflib.get_close_matches(word.casefold(), by_folded, n=most, cutoff=0.6)
    return f"Did you mean {' or '.join(by_folded[match] for match in matches)}?" if matches else ""
