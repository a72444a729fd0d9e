"""Kept lines of one host, chosen by time and expression as journalctl chooses those of its host."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpucluster.controller.logs.store import HOST, LogStore, day, stamp
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed, Refused

#: What `systemd-analyze timestamp` prints of a time that it has understood.
_SECONDS = re.compile(r"UNIX seconds: @(\d+(?:\.\d+)?)")
_STAMP_LENGTH = len(stamp(0))


@dataclass(frozen=True)
class Choice:
    """Which lines.

    Args:
        host: its name.
        since, until: as systemd reads times: "2026-11-29 01:00", "-2h"; empty for no limit.
        grep: a regular expression; without a capital letter it matches both cases, as in journalctl. Python reads it
            here, journalctl's PCRE on hosts: what both know is the same in both.
        lines: the last ones of those that match.
    """

    host: str
    since: str = ""
    until: str = ""
    grep: str = ""
    lines: int = 1000


def read(store: LogStore, choice: Choice) -> list[str]:
    """The lines, the oldest first.

    Raises:
        Refused: a time or an expression that can't be read, or a host of which nothing is kept.
        Failed: systemd-analyze gives no answer.
    """
    if not HOST.fullmatch(choice.host) or choice.host not in store.hosts():
        raise Refused(f"no lines of {choice.host} are kept", "See which hosts have some: gpucluster logs --kept")
    since, until = _time(choice.since), _time(choice.until)
    try:
        wanted = re.compile(choice.grep, 0 if re.search("[A-Z]", choice.grep) else re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        raise Refused(f"the expression can't be read: {error}", "Write a regular expression") from error
    since_day = "" if since is None else day(since)
    return list(_chosen(entries(store.lines(choice.host, since_day=since_day)), since, until, wanted, choice.lines))


def entries(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines of one message each: the further ones are indented."""
    entry: list[str] = []
    for line in lines:
        if entry and not line[:1].isspace():
            yield entry
            entry = []
        entry.append(line)
    if entry:
        yield entry


def _chosen(
    found: Iterable[list[str]], since: float | None, until: float | None, wanted: re.Pattern[str], most: int
) -> Iterator[str]:
    first, last = ("" if each is None else stamp(each) for each in (since, until))
    kept: deque[list[str]] = deque(maxlen=most)
    for entry in found:
        # Text of one form in one zone has the order of time.
        written = entry[0][:_STAMP_LENGTH]
        if written < first or (last and written > last):
            continue
        if any(wanted.search(line.partition(" ")[2]) for line in entry):
            kept.append(entry)
    for entry in kept:
        yield from entry


def _time(text: str) -> float | None:
    """Seconds since 1970 of a time as systemd reads it; None for an empty one."""
    if not text:
        return None
    done = programs.call(["systemd-analyze", "timestamp", "--", text])
    found = _SECONDS.search(done.stdout)
    if found:
        return float(found.group(1))
    if done.returncode == programs.MISSING:
        raise Failed(done.stderr.strip(), "Leave out --since and --until")
    raise Refused(f"the time can't be read: {text}", "Write it as '2026-11-29 01:00', or as -2h")
