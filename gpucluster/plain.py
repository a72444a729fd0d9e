"""Results and errors of the library as JSON values: `as_json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import date
from enum import Enum
from pathlib import PurePath


def as_json(result: object) -> object:
    """What a method returned, or an error of the library, in values that `json.dumps` writes.

        print(json.dumps(gpucluster.as_json(cluster.status())))

    A result that has a method `to_dict` states itself what it is, and `--output json` of the command prints the same.
    Any other one becomes the object of its fields.

    Args:
        result: a result, or a value that one has; collections of them, too.

    Returns:
        Dictionaries with texts as keys, lists, texts, numbers, true, false and None. A number that JSON does not have
        (infinity) is None.

    Raises:
        TypeError: it has something that is none of these, such as a function.
    """
    if isinstance(result, Enum):
        return as_json(result.value)
    if result is None or isinstance(result, bool | int | str | float):
        return _scalar(result)
    if isinstance(result, type):
        raise _no_value(result)
    if (stated := _stated(result)) is not None:
        return as_json(stated)
    if isinstance(result, Mapping):
        return {_key(key): as_json(inner) for key, inner in result.items()}
    return _collection(result)


def _scalar(value: object) -> object:
    """As Python's own type: a subclass may print itself in another way."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return str(value) if isinstance(value, str) else value


def _stated(value: object) -> object:
    """The fields of a record, by name; None if it is none."""
    for method, options in (("to_dict", {}), ("model_dump", {"mode": "json"}), ("_asdict", {})):
        if callable(convert := getattr(value, method, None)):
            return convert(**options)
    return {each.name: getattr(value, each.name) for each in fields(value)} if is_dataclass(value) else None


def _collection(value: object) -> object:
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, AbstractSet):
        return sorted((as_json(each) for each in value), key=str)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    raise _no_value(value)


def _key(key: object) -> str:
    value = as_json(key)
    if not isinstance(value, str | int):
        raise _no_value(key)
    return str(value)


def _no_value(value: object) -> TypeError:
    kind = value if isinstance(value, type) else type(value)
    return TypeError(f"{kind.__module__}.{kind.__qualname__} has no form in JSON")
