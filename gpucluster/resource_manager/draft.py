"""A cluster.yml in the making: values by key, with the variables that they come from, and what is left to decide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str, ...]


@dataclass(frozen=True)
class Value:
    """The value of a key, and the variables of the stack that decided it; none for what the converter chose."""

    value: Any
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """What the variables do not settle: the key, what to decide, and the variables that it is about.

    `has_value`: whether the file has a value for the key, which is valid and may not be what is meant.
    """

    key: str
    text: str
    sources: tuple[str, ...] = ()
    has_value: bool = True


@dataclass
class Draft:
    """Values and decisions, in the order of the file.

    `given`: the variables that have a value; of the others a value is the stack's default. `missing`: keys without
    which there is no cluster.yml, with the variable that has no value.
    """

    given: frozenset[str] = frozenset()
    values: dict[Path, Value] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def put(self, key: str, value: Any, *sources: str) -> None:
        """Set a key, such as `cloud.region`."""
        self.values[_path(key)] = Value(value, tuple(dict.fromkeys(sources)))

    def decide(self, key: str, text: str, *sources: str, has_value: bool = True) -> None:
        """Leave a key to the operator."""
        self.decisions[key] = Decision(key, text, tuple(dict.fromkeys(sources)), has_value)

    def require(self, key: str, variable: str) -> None:
        """A key has no value, because the variable has none."""
        self.missing[key] = variable

    def override(self, key: str, value: Any) -> None:
        """Set a key as the operator wants, instead of the values and decisions at it and below it."""
        path = _path(key)
        for known in [each for each in self.values if _within(each, path) or _within(path, each)]:
            del self.values[known]
        for listed in (self.decisions, self.missing):
            for name in [each for each in listed if _within(_path(each), path) or _within(path, _path(each))]:
                del listed[name]
        self.put(key, value)

    def value(self, key: str) -> Any:
        """The value of a key; None if the draft has none."""
        found = self.values.get(_path(key))
        return found.value if found else None

    def sources(self) -> Iterator[tuple[str, str]]:
        """Each variable with a key that it decided, or that is left to decide because of it."""
        for path, value in self.values.items():
            for source in value.sources:
                yield source, ".".join(path)
        for decision in self.decisions.values():
            for source in decision.sources:
                yield source, decision.key

    def sources_of(self, key: str) -> tuple[str, ...]:
        """The variables from which a key, or the keys above and below it, have their values."""
        path = _path(key)
        found: dict[str, None] = {}
        for known, value in self.values.items():
            if _within(known, path) or _within(path, known):
                found.update(dict.fromkeys(value.sources))
        return tuple(found)


def _path(key: str) -> Path:
    return tuple(key.split("."))


def _within(path: Path, outer: Path) -> bool:
    """Whether a path is `outer`, or lies in it."""
    return path[: len(outer)] == outer
