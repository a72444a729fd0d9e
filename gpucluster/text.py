"""Text for people: numbers with their noun, and suggestions for a misspelled word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def count(number: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun: `count(1, "node")` is "1 node", `count(2, "node")` is "2 nodes".

    Args:
        plural: where it is not the singular with an `s`: `count(2, "address", "addresses")`.
    """
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"


def did_you_mean(word: str, known: Iterable[str], *, most: int = 2) -> str:
    """A hint that names up to `most` known words with a similar spelling; empty if there is none. Case is ignored."""
    by_folded = {one.casefold(): one for one in known}
    matches = difflib.get_close_matches(word.casefold(), by_folded, n=most, cutoff=0.6)
    return f"Did you mean {' or '.join(by_folded[match] for match in matches)}?" if matches else ""
