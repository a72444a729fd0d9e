"""The requester at the other end of the connection: progress messages, and whether it still waits."""

from __future__ import annotations

import select
import sys


class RequesterGone(Exception):
    """The requester does not wait for the answer any more."""


def report(words: str) -> None:
    """Send a line of progress.

    Raises:
        RequesterGone: it is not read any more.
    """
    try:
        sys.stderr.write(words + "\n")
        sys.stderr.flush()
    except OSError:
        raise RequesterGone from None


def is_waiting() -> bool:
    """Whether the answer would still be read."""
    poll = select.poll()
    for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
        poll.register(descriptor, 0)
    return not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
