"""Values of any type that the public interface has, made from its annotations: the same ones each time.

A record has a value in each field, so what is written or pickled is whole. What can't be made is an error of the test.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime
from enum import Enum
from pathlib import Path
from typing import Any

_SCALARS: dict[Any, Any] = {
    str: "text",
    int: 7,
    float: 1.5,
    bool: True,
    bytes: b"bytes",
    type(None): None,
    Any: {"any": ["value"]},
    object: {"any": ["value"]},
    Path: Path("/some/file"),
    datetime: datetime(2031, 5, 6, tzinfo=UTC),
    date: date(2031, 5, 6),
}
_MAPPINGS = (dict, Mapping)
_SETS = (set, frozenset, AbstractSet)
_SEQUENCES = (tuple, list, Sequence, Collection, Iterable)


def made(annotation: Any, known: Mapping[Any, Any]) -> Any:
    """A value of a type.

    Args:
        known: values for types that can't be made from their annotations, by type.
    """
    if annotation in known:
        return known[annotation]
    if isinstance(annotation, typing.TypeVar):
        annotation = object
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is not None:
        return _generic(origin, parts, known)
    if annotation in (*_MAPPINGS, *_SETS, *_SEQUENCES):
        return (dict if annotation is Mapping else annotation)()
    if isinstance(annotation, type):
        return _instance(annotation, known)
    raise TypeError(f"no value of {annotation!r}")


def _generic(origin: Any, parts: tuple[Any, ...], known: Mapping[Any, Any]) -> Any:
    if origin is typing.Literal:
        return parts[0]
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return made(next(part for part in parts if part is not type(None)), known)
    if dataclasses.is_dataclass(origin):
        of_parameters = zip(origin.__parameters__, parts, strict=True)  # type: ignore[union-attr]
        return _instance(
            typing.cast(type, origin), {**known, **{one: made(part, known) for one, part in of_parameters}}
        )
    return _collection(origin, parts, known)


def _collection(origin: Any, parts: tuple[Any, ...], known: Mapping[Any, Any]) -> Any:
    if origin in _MAPPINGS:
        return {made(parts[0], known): made(parts[1], known)}
    if origin is tuple and parts[-1:] != (...,):
        return tuple(made(part, known) for part in parts)
    if origin in _SETS:
        return frozenset({made(parts[0], known)})
    if origin in _SEQUENCES:
        return (list if origin is list else tuple)([made(parts[0], known)])
    raise TypeError(f"no value of {origin!r}")


def _instance(kind: type, known: Mapping[Any, Any]) -> Any:
    if issubclass(kind, Enum):
        return next(iter(kind))
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {each.name: made(hints[each.name], known) for each in dataclasses.fields(kind) if each.init}
        return kind(**fields)
    if typing.is_typeddict(kind) or issubclass(kind, tuple):
        hints = typing.get_type_hints(kind)
        return kind(**{name: made(hint, known) for name, hint in hints.items()})
    parameters = inspect.signature(kind).parameters
    hints = typing.get_type_hints(kind.__init__)
    return _called(kind, parameters, hints, known)


def _called(
    kind: type, parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any], known: Mapping[Any, Any]
) -> Any:
    """By the constructor, which may take its arguments by position or by name."""
    positional = [made(hints[each.name], known) for each in parameters.values() if each.kind is each.POSITIONAL_ONLY]
    by_name = {
        each.name: made(hints[each.name], known)
        for each in parameters.values()
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }
    return kind(*positional, **by_name)
