"""Slurm's short form of many names: `gpu-e[1-3,7],login` is gpu-e1, gpu-e2, gpu-e3, gpu-e7 and login.

ClusterShell's NodeSet expands the ranges. This wrapper guards it, because hooks and users can write any text: NodeSet
also knows operators (`!`, `&`, `^`), groups (`@name`) and wildcards, expands `a[1-10000000]` for 24 s (measured), and
sorts names and drops doubled ones. Slurm prints names in their order, with doubled ones (`scontrol show hostnames`).
"""

from __future__ import annotations

import re

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

# A list that is longer than any cluster is a mistake and would take all memory.
MOST = 100_000
_RANGE = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_ENTRY = rf"(?:[\w.-]|\[{_RANGE}(?:,{_RANGE})*\])+"
_LIST = re.compile(rf"{_ENTRY}(?:,{_ENTRY})*", re.ASCII)
_ENTRIES = re.compile(_ENTRY, re.ASCII)
_RANGES = re.compile(r"\[([^\]]*)\]")


class HostlistError(ValueError):
    """A text is not a list of hosts."""


def expand(text: str) -> list[str]:
    """The names of a host list in their order, doubled ones included.

    Leading zeros count: `n[08-10]` is n08, n09, n10. A name may have several ranges: `r[1-2]n[1-2]`.

    Raises:
        HostlistError: the text is not a host list, or it stands for more names than `MOST`.
    """
    text = text.strip()
    if text and not _LIST.fullmatch(text):
        raise HostlistError(f"not a list of hosts: {text[:80]!r}")
    names: list[str] = []
    for entry in _ENTRIES.findall(text):
        if len(names) + _size(entry) > MOST:
            raise HostlistError(f"more than {MOST} names in {text[:80]!r}")
        names += _names(entry)
    return names


def _size(entry: str) -> int:
    """How many names an entry stands for; checked before it is expanded."""
    size = 1
    for ranges in _RANGES.findall(entry):
        size *= sum(_length(one) for one in ranges.split(","))
    return size


def _length(numbers: str) -> int:
    first, _, last = numbers.partition("-")
    return int(last or first) - int(first) + 1


def _names(entry: str) -> list[str]:
    if "[" not in entry:
        return [entry]
    try:
        return list(NodeSet(entry, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise HostlistError(f"not a list of hosts: {entry[:80]!r}") from error
