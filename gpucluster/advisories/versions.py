"""Versions of projects and of packages, in order.

Source of the order: Debian Policy 5.6.12. It also fits versions of projects once a pre-release is written with `~`:
26.05.0~rc1 is older than 26.05.0.
"""

from __future__ import annotations

import itertools
import re

_PRE_RELEASE = re.compile(r"(?:-0?|[.~])?(alpha|beta|rc)[.]?(?=\d|$|-)")
# What packagers add to the version of a project: the epoch before it, the revision and the marks of a changed tarball.
_EPOCH = re.compile(r"^\d+:")
_ADDED = re.compile(r"[-+_].*|~(?:ds|dfsg|git|deb|bpo).*")
_PARTS = re.compile(r"(\d+)")
_END = ([0], 0)


def of_project(version: str) -> str:
    """The project's own version: 1.6.20 of 1:1.6.20~ds1-1+deb12u3, 1.4.0~rc.3 of v1.4.0-rc.3. Empty if it is none."""
    text = _EPOCH.sub("", version.strip().lower()).removeprefix("v")
    return _ADDED.sub("", _PRE_RELEASE.sub(r"~\1", text)) if text[:1].isdigit() else ""


def is_older(version: str, other: str) -> bool:
    """Whether a version is before another one: both of a project, or both of a package with epoch and revision."""
    return _key(version) < _key(other)


def is_of_line(version: str, line: str) -> bool:
    """Whether a project's version is of a release line: 25.11.7 and 25.11 of 25.11, but not 25.1.1."""
    numbers = line.split(".")
    return version.partition("~")[0].split(".")[: len(numbers)] == numbers


def _key(version: str) -> tuple[int, list[tuple[list[int], int]], list[tuple[list[int], int]]]:
    epoch, colon, rest = version.partition(":")
    upstream, _dash, revision = (rest if colon else version).rpartition("-")
    if not _dash:
        upstream, revision = revision, ""
    return (int(epoch) if colon and epoch.isdigit() else 0, _compared(upstream), _compared(revision))


def _compared(text: str) -> list[tuple[list[int], int]]:
    """Parts that are not digits, each with the number after it."""
    parts = _PARTS.split(text)
    # The end of a part is before a letter, and `~` is before the end.
    pairs = [
        ([*map(_rank, words), 0], int(number or 0))
        for words, number in itertools.zip_longest(parts[::2], parts[1::2], fillvalue="")
    ]
    # A missing number is 0, and a missing revision is 0.
    while len(pairs) > 1 and pairs[-1] == _END:
        pairs.pop()
    return [*pairs, _END]


def _rank(sign: str) -> int:
    if sign == "~":
        return -1
    return ord(sign) if sign.isalpha() else ord(sign) + 256
