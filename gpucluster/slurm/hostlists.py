"""Slurm's short form of many names: `gpu-e[1-3,7],login` is gpu-e1, gpu-e2, gpu-e3, gpu-e7 and login."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

# A list that is longer than any cluster is a mistake, and would take all memory.
MOST = 100_000
_PIECE = re.compile(r"([^\[\],]*)\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class HostlistError(ValueError):
    """A text is not a list of hosts."""


def expand(text: str) -> list[str]:
    """The names of a hostlist in its order, doubled ones included.

    Leading zeros count: `n[08-10]` is n08, n09, n10. A name may have several ranges: `r[1-2]n[1-2]`.

    Raises:
        HostlistError: it is none, or stands for more names than `MOST`.
    """
    names: list[str] = []
    for entry in _entries(text.strip()):
        if not entry.strip():
            raise HostlistError(f"an empty name in {text[:80]!r}")
        for name in _names(entry.strip()):
            names.append(name)
            if len(names) > MOST:
                raise HostlistError(f"more than {MOST} names in {text[:80]!r}")
    return names


def _entries(text: str) -> Iterator[str]:
    """What stands between the commas that are not in brackets."""
    depth, start = 0, 0
    for at, sign in enumerate(text):
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if depth not in (0, 1):
            raise HostlistError(f"brackets in {text[:80]!r}")
        if sign == "," and not depth:
            yield text[start:at]
            start = at + 1
    if depth:
        raise HostlistError(f"brackets in {text[:80]!r}")
    if text:
        yield text[start:]


def _names(entry: str) -> Iterator[str]:
    parts: list[list[str]] = []
    size = 1
    for match in _PIECE.finditer(entry):
        prefix, ranges, plain = match.groups()
        if plain is not None:
            parts.append([plain])
            continue
        numbers = [number for part in ranges.split(",") for number in _numbers(part)]
        size *= len(numbers)
        if size > MOST:
            raise HostlistError(f"more than {MOST} names in {entry[:80]!r}")
        parts.append([f"{prefix}{number}" for number in numbers])
    return ("".join(pieces) for pieces in product(*parts))


def _numbers(text: str) -> Iterator[str]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise HostlistError(f"no range of numbers: {text[:80]!r}")
    first, last = match.group(1), match.group(2) or match.group(1)
    if int(last) < int(first) or int(last) - int(first) >= MOST:
        raise HostlistError(f"no range of numbers: {text[:80]!r}")
    return (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
