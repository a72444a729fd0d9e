"""What came of many steps, of which some may fail and none may hinder the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from directory.errors import Failed, InHome, PeopleError, of_system

_T = TypeVar("_T")


@dataclass
class Outcome:
    """What came of each person's wish: whether something changed, and what did not work."""

    changed: dict[str, bool] = field(default_factory=dict)
    problems: dict[str, PeopleError] = field(default_factory=dict)
    general: bool = False

    @property
    def any_change(self) -> bool:
        """Whether anything at all changed."""
        return self.general or any(self.changed.values())

    def attempt(self, name: str, work: Callable[[], bool]) -> None:
        """Do one thing for a person; what goes wrong is noted, and does not hinder the rest."""
        self.changed[name] = self.tried(name, False, work) or self.changed.get(name, False)

    def tried(self, name: str, otherwise: _T, work: Callable[[], _T]) -> _T:
        """The result of one step; if it fails, that is noted, and the others go on."""
        try:
            return work()
        except PeopleError as error:
            self.note(name, error)
        except OSError as error:
            self.note(name, of_system(error))
        return otherwise

    def note(self, name: str, error: PeopleError) -> None:
        """Of two for one person, the one that is not their own matter counts."""
        if name not in self.problems or isinstance(self.problems[name], InHome):
            self.problems[name] = error

    def in_homes(self) -> dict[str, PeopleError]:
        """Those that their owners' own files cause."""
        return {name: problem for name, problem in self.problems.items() if isinstance(problem, InHome)}


def partly(problem: PeopleError, so_far: str, done: dict[str, object] | None = None) -> PeopleError:
    """That most of it is done, and what is not."""
    return Failed(f"{so_far} {problem.message}", f"{problem.hint}; then do the same again".lstrip("; "), done)


def sentence(problem: PeopleError) -> str:
    """Message and hint in one."""
    return f"{problem.message}. {problem.hint}".rstrip(". ")


def unless_problem(outcome: Outcome, done: dict[str, object], so_far: str) -> dict[str, object]:
    """What was done.

    Raises:
        Failed: a step did not work.
    """
    for problem in outcome.problems.values():
        raise partly(problem, so_far, done)
    return done
