"""The outcome of many steps. Some may fail, and none keeps the others from being done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpucluster.controller.users.errors import InHome
from gpucluster.node_agent.errors import AgentError, Failed, of_system

_T = TypeVar("_T")


@dataclass
class UserOutcomes:
    """For each user, whether something changed and what did not work."""

    changed: dict[str, bool] = field(default_factory=dict)
    problems: dict[str, AgentError] = field(default_factory=dict)
    general: bool = False

    @property
    def any_change(self) -> bool:
        """Whether anything at all changed."""
        return self.general or any(self.changed.values())

    def attempt(self, name: str, work: Callable[[], bool]) -> None:
        """Do one step for a user and note whether it changed something, or its error."""
        self.changed[name] = self.tried(name, False, work) or self.changed.get(name, False)

    def tried(self, name: str, otherwise: _T, work: Callable[[], _T]) -> _T:
        """The result of one step; `otherwise` if it fails, which is noted."""
        try:
            return work()
        except AgentError as error:
            self.note(name, error)
        except OSError as error:
            self.note(name, of_system(error))
        return otherwise

    def note(self, name: str, error: AgentError) -> None:
        """Note an error. It replaces an earlier one of the user that is about the user's own home."""
        if name not in self.problems or isinstance(self.problems[name], InHome):
            self.problems[name] = error

    def in_homes(self) -> dict[str, AgentError]:
        """The errors that users' own files cause, by user."""
        return {name: problem for name, problem in self.problems.items() if isinstance(problem, InHome)}


def partly(problem: AgentError, so_far: str, result: dict[str, object] | None = None) -> AgentError:
    """An error with what is done and what is not."""
    return Failed(
        f"{so_far} {problem.message}", f"{problem.hint}; then run the same command again".lstrip("; "), result
    )


def sentence(problem: AgentError) -> str:
    """Message and hint as one text."""
    return f"{problem.message}. {problem.hint}".rstrip(". ")


def unless_problem(outcome: UserOutcomes, result: dict[str, Any], so_far: str) -> dict[str, Any]:
    """`result`, if every step worked.

    Raises:
        Failed: a step did not work.
    """
    for problem in outcome.problems.values():
        raise partly(problem, so_far, result)
    return result
