"""RuleContext: the data that the rules check, and where they report errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path as FilePath
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from gpucluster.spec.defaults import traits_of, with_defaults
from gpucluster.spec.document import Document, Path
from gpucluster.spec.model import ClusterSpec
from gpucluster.spec.sections.cloud import ProviderTraits


class RuleContext:
    """The data of a file with defaults filled in and invalid values left out.

    Args:
        document: the file; errors are added to it.
        invalid: paths whose values already have an error.
        directory: file names in the file are relative to it.

    `public_keys`, `prices` and `certificates` collect the content of the files that cluster.yml names.
    """

    def __init__(self, document: Document, invalid: set[Path], directory: FilePath) -> None:
        self.document = document
        self.directory = directory
        self.public_keys: dict[str, tuple[str, ...]] = {}
        self.prices: dict[str, float] = {}
        self.certificates: dict[str, tuple[str, ...]] = {}
        written = _pruned(with_defaults(document.data), (), invalid)
        self.data: dict[str, Any] = _filled(ClusterSpec, written, (), invalid)

    def section(self, *path: str) -> dict[str, Any]:
        """The mapping at `path`; empty if there is none."""
        current: Any = self.data
        for part in path:
            current = current.get(part) if isinstance(current, dict) else None
        return current if isinstance(current, dict) else {}

    @property
    def provider(self) -> ProviderTraits | None:
        """The traits of the cloud; None if `cloud.provider` is invalid."""
        return traits_of(self.section("cloud"))

    @property
    def provider_name(self) -> str:
        """The name of the cloud, for messages."""
        return str(self.section("cloud").get("provider"))

    def written(self, path: Path) -> bool:
        """Whether the file itself has the key at `path`."""
        return path in self.document.keys

    def error(self, path: Path, message: str, hint: str = "", *, key: bool = False) -> None:
        """Add an error of the value (or the key) at `path`."""
        self.document.error(path, message, hint, key=key)

    def line(self, path: Path) -> int:
        """The line of the value at `path`."""
        return self.document.place(path).line


def usable(values: Iterable[Any] | None) -> Iterator[tuple[int, Any]]:
    """The entries of a list that the model has accepted, each with its position. Every rule reads a list through this.

    An entry that is invalid is None in `RuleContext.data`, so that the others keep their positions; it is reported
    already.
    """
    return ((index, value) for index, value in enumerate(values or ()) if value is not None)


def _pruned(value: Any, path: Path, invalid: set[Path]) -> Any:
    """`value` without what is invalid: keys are left out, entries of lists become None."""
    if isinstance(value, dict):
        return {key: _pruned(item, (*path, key), invalid) for key, item in value.items() if (*path, key) not in invalid}
    if isinstance(value, tuple):
        items = enumerate(value)
        return tuple(None if (*path, i) in invalid else _pruned(item, (*path, i), invalid) for i, item in items)
    return value


def _filled(kind: Any, value: Any, path: Path, invalid: set[Path]) -> Any:
    """`value` with the defaults of the model, except where the file has something invalid."""
    if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, dict):
        return dict(_filled_fields(kind, value, path, invalid))
    if get_origin(kind) is dict and isinstance(value, dict):
        inner = get_args(kind)[1]
        return {key: _filled(inner, item, (*path, key), invalid) for key, item in value.items()}
    if get_origin(kind) is tuple and isinstance(value, tuple):
        inner = get_args(kind)[0]
        return tuple(_filled(inner, item, (*path, index), invalid) for index, item in enumerate(value))
    return value


def _filled_fields(
    kind: type[BaseModel], value: dict[str, Any], path: Path, invalid: set[Path]
) -> Iterator[tuple[str, Any]]:
    for name, info in kind.model_fields.items():
        if name in value:
            yield name, _filled(info.annotation, value[name], (*path, name), invalid)
        elif (*path, name) not in invalid and not info.is_required():
            default = info.get_default(call_default_factory=True)
            yield name, default.model_dump() if isinstance(default, BaseModel) else default
