"""Whoever waits for the answer: told what happens, and missed when they go."""

from __future__ import annotations

import select
import sys

from images.errors import Gone


def say(words: str) -> None:
    """Tell whoever waits."""
    try:
        sys.stderr.write(words + "\n")
        sys.stderr.flush()
    except OSError:
        raise Gone from None


def somebody_waits() -> bool:
    """Whether our answer would still be read."""
    poll = select.poll()
    for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
        poll.register(descriptor, 0)
    return not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
