"""What the outputs of all jobs have in common. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpucluster.agent import bounded
from gpucluster.jobs.model import HEADER

#: Lines of a rank may be long; longer ones are of a program that ran wild.
_LONGEST_OBJECT = 1 << 16


def header(text: str) -> Mapping[str, Any] | None:
    """What the job says of itself in the first line of its output; None without such a line. The last one counts."""
    for line in reversed(text.splitlines()):
        if line.startswith(HEADER):
            try:
                found = bounded.loads(line.removeprefix(HEADER))
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                return found
    return None


def last_run(text: str) -> str:
    """What the last run of a job has printed: a job that was requeued goes on in the same file."""
    _before, line, after = text.rpartition(f"\n{HEADER}")
    return after if line else text


def objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines, in their order."""
    for line in text.splitlines():
        if line.startswith("{") and len(line) <= _LONGEST_OBJECT:
            try:
                found = bounded.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                yield found


def number(found: Mapping[str, Any], key: str) -> float | None:
    """A number of an object; None if it has none, or one that is not finite."""
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        return None
    return float(value)
