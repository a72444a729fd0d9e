"""What can go wrong, in words for whoever asked."""

from __future__ import annotations

from typing import Any


class PeopleError(Exception):
    """A message, and what to do next.

    Args:
        message: what is wrong, and where.
        hint: what to do about it; may be empty.
        done: what was done in spite of it.
    """

    status = 1

    def __init__(self, message: str, hint: str = "", done: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message, self.hint, self.done = message, hint, done


class Failed(PeopleError):
    """Something did not work; the same request may work later."""


class InHome(Failed):
    """Something inside of a home did not work, where its owner decides what lies there: nobody else's matter."""


class Refused(PeopleError):
    """What is asked for can't be had. Nothing was changed."""

    status = 2


def of_system(error: OSError, what: str = "") -> Failed:
    """What the operating system refused, with what it was about in front."""
    parts = (what, error.filename, error.strerror or error)
    return Failed(": ".join(str(part) for part in parts if part), "Put that right and try again")
