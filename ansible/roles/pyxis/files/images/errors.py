"""What ends a request early."""

from __future__ import annotations


class ImageError(Exception):
    """A message, and what to do next."""

    status = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class Refused(ImageError):
    """What is asked for can't be had. Nothing was changed."""

    status = 2


class Gone(Exception):
    """Nobody waits for the answer any more."""
