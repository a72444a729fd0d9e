"""The connection to a controller, as operations see it: what it answers, and what it was asked.

It stands for `ControllerConnection.ask`. It proves nothing of ssh, of the shell there, or of the programs that it would
run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpucluster.process import Completed


@dataclass(frozen=True)
class Asked:
    """One question."""

    command: str
    host: str | None
    text: str
    timeout: float


def said(text: str, status: int = 0, errors: str = "") -> Completed:
    """What a program leaves that has ended."""
    return Completed((), status, text, errors)


class ControllerDouble:
    """Answers each question.

    Args:
        answer: the same for every question, or a function of it, which may raise.
    """

    def __init__(self, answer: str | Completed | Callable[[Asked], Completed]) -> None:
        self._answer = answer
        self.asked: list[Asked] = []

    @property
    def commands(self) -> list[str]:
        """The commands of all questions."""
        return [asked.command for asked in self.asked]

    def ask(self, command: str, *, host: str | None = None, text: str = "", timeout: float = 0.0) -> Completed:
        """As the connection has it; a limit of 0 is the connection's own."""
        asked = Asked(command, host, text, timeout)
        self.asked.append(asked)
        if isinstance(self._answer, str):
            return said(self._answer)
        return self._answer if isinstance(self._answer, Completed) else self._answer(asked)
