"""What ends a command of the agent: a message for the user, what to do next, and the exit status."""

from __future__ import annotations

import sys
from typing import Any

#: The exit status where a change is made, and not every host has confirmed it. The operator's commands have the same.
UNCONFIRMED = 8


class AgentError(Exception):
    """A message, and what to do next.

    Args:
        message: what is wrong, and where.
        hint: what to do about it; may be empty.
        partial_result: what was done nevertheless, as the command's answer would show it.
    """

    #: The exit status of the command.
    status = 1

    def __init__(self, message: str, hint: str = "", partial_result: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message, self.hint, self.partial_result = message, hint, partial_result


class Failed(AgentError):
    """Something did not work. The same request may work later."""


class Unconfirmed(Failed):
    """A change of the directory is made, and not every host has confirmed it. The same request asks them again."""

    status = UNCONFIRMED


class Refused(AgentError):
    """The request is not possible. Nothing was changed."""

    status = 2


def report(error: AgentError | OSError, command: str = "") -> int:
    """Write to standard error why a command of the agent could not do its work. Returns its exit status.

    Args:
        command: its name, which stands before the message, for a person or a journal; without one, the hint follows on
            a line of its own, for the program that asked.
    """
    problem = of_system(error) if isinstance(error, OSError) else error
    if command:
        sys.stderr.write(f"gpucluster-agent {command}: {problem.message}\n")
    else:
        sys.stderr.write(f"{problem.message}\n{problem.hint}\n" if problem.hint else f"{problem.message}\n")
    return problem.status


def of_system(error: OSError, what: str = "") -> Failed:
    """An error of the operating system as an AgentError; `what` names the object that it is about."""
    parts = (what, error.filename, error.strerror or error)
    return Failed(": ".join(str(part) for part in parts if part), "Fix that and try again")
