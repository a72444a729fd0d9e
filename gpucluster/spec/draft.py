"""What the rules look at: the file's data with defaults filled in and unfit values left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from gpucluster.spec import derive, model
from gpucluster.spec.document import Document, Path


class Draft:
    """The file's data with defaults filled in and unfit values left out."""

    def __init__(self, document: Document, bad: set[Path], directory: FilePath) -> None:
        self.document = document
        self.directory = directory
        self.public_keys: dict[str, tuple[str, ...]] = {}
        self.prices: dict[str, float] = {}
        written = _pruned(derive.derived(document.data), (), bad)
        self.data: dict[str, Any] = _filled(model.ClusterSpec, written, (), bad)

    def section(self, *path: str) -> dict[str, Any]:
        """The mapping at `path`; empty if there is none."""
        current: Any = self.data
        for part in path:
            current = current.get(part) if isinstance(current, dict) else None
        return current if isinstance(current, dict) else {}

    def written(self, path: Path) -> bool:
        """Whether the file itself says something at `path`."""
        return path in self.document.keys

    def fault(self, path: Path, message: str, hint: str = "", *, key: bool = False) -> None:
        """Note a fault."""
        self.document.fault(path, message, hint, key=key)

    def line(self, path: Path) -> int:
        """The line of the value at `path`."""
        return self.document.place(path).line


def is_elastic(pool: Any) -> bool:
    """Whether the nodes of a pool come and go, as far as its counts are fit to tell."""
    if not isinstance(pool, dict):
        return False
    count, most = pool.get("count"), pool.get("max_count")
    return isinstance(count, int) and isinstance(most, int) and most > count


def _pruned(value: Any, path: Path, bad: set[Path]) -> Any:
    """`value` without what is unfit: keys are left out, entries of lists become None."""
    if isinstance(value, dict):
        return {key: _pruned(item, (*path, key), bad) for key, item in value.items() if (*path, key) not in bad}
    if isinstance(value, tuple):
        items = enumerate(value)
        return tuple(None if (*path, i) in bad else _pruned(item, (*path, i), bad) for i, item in items)
    return value


def _filled(kind: Any, value: Any, path: Path, bad: set[Path]) -> Any:
    """`value` with the defaults of the model, except where the file has something unfit."""
    if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, dict):
        return dict(_filled_fields(kind, value, path, bad))
    if get_origin(kind) is dict and isinstance(value, dict):
        inner = get_args(kind)[1]
        return {key: _filled(inner, item, (*path, key), bad) for key, item in value.items()}
    if get_origin(kind) is tuple and isinstance(value, tuple):
        inner = get_args(kind)[0]
        return tuple(_filled(inner, item, (*path, index), bad) for index, item in enumerate(value))
    return value


def _filled_fields(
    kind: type[BaseModel], value: dict[str, Any], path: Path, bad: set[Path]
) -> Iterator[tuple[str, Any]]:
    for name, info in kind.model_fields.items():
        if name in value:
            yield name, _filled(info.annotation, value[name], (*path, name), bad)
        elif (*path, name) not in bad and not info.is_required():
            default = info.get_default(call_default_factory=True)
            yield name, default.model_dump() if isinstance(default, BaseModel) else default
