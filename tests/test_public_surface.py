"""The public interface: what public methods take and return is exported, and importing the package stays cheap."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import gpucluster
from gpucluster.cluster import Cluster
from gpucluster.spec import template

#: Public methods that return JSON objects: their keys are in the docs.
_JSON = "to_dict"
_MOST_METHODS = 20


def _namespaces(cluster: Cluster) -> dict[str, object]:
    """The attributes of a cluster that are not of Python itself."""
    return {name: value for name, value in vars(cluster).items() if not name.startswith("_")}


def _parts(annotation: Any) -> Iterator[Any]:
    """An annotation, and everything in it: `X` of `Callable[[X], Y] | None`."""
    if isinstance(annotation, list):
        for each in annotation:
            yield from _parts(each)
        return
    yield annotation
    for each in typing.get_args(annotation):
        yield from _parts(each)


def _public_functions(of: Any) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class of ours; a function itself."""
    if not isinstance(of, type):
        yield of.__name__, of
        return
    for name, member in inspect.getmembers(of):
        function = member.fget if isinstance(member, property) else member
        ours = inspect.isroutine(function) and str(getattr(function, "__module__", "")).startswith("gpucluster")
        if ours and not name.startswith("_"):
            yield f"{of.__name__}.{name}", function


def _annotations() -> Iterator[tuple[str, str, Any]]:
    """Every annotation of every public method of every public class: method, parameter or "return", type."""
    for exported in gpucluster.__all__:
        value = getattr(gpucluster, exported)
        for name, function in _public_functions(value) if callable(value) else ():
            for parameter, annotation in typing.get_type_hints(function).items():
                yield name, parameter, annotation


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yml").write_text(template("demo", "local"))
    return Cluster(gpucluster.load(tmp_path / "cluster.yml"))


def test_every_class_of_ours_in_a_public_annotation_is_exported() -> None:
    public = [getattr(gpucluster, name) for name in gpucluster.__all__]
    missing = {
        f"{part.__module__}.{part.__qualname__}, of {method}"
        for method, _, annotation in _annotations()
        for part in _parts(annotation)
        if isinstance(part, type) and part.__module__.startswith("gpucluster") and part not in public
    }
    assert not missing
    assert len([*_annotations()]) > 200, "annotations are read"


def test_no_public_method_returns_values_of_any_type() -> None:
    untyped = {
        method
        for method, parameter, annotation in _annotations()
        for part in _parts(annotation)
        if parameter == "return" and not method.endswith(_JSON)
        if part is Any or (typing.get_origin(part) in (dict, Mapping) and typing.get_args(part)[-1] is Any)
    }
    assert not untyped


def test_namespaces_are_public_and_the_docstring_lists_them(cluster: Cluster) -> None:
    public = {getattr(gpucluster, name) for name in gpucluster.__all__ if name != "__version__"}
    listed = inspect.getdoc(Cluster) or ""
    for name, value in _namespaces(cluster).items():
        assert type(value) in public, name
        assert f"    {name}: " in listed, name


def test_a_cluster_has_few_methods_of_its_own() -> None:
    own = [name for name, member in vars(Cluster).items() if inspect.isroutine(member) or isinstance(member, property)]
    assert len(own) <= _MOST_METHODS


def test_each_name_is_written_once_and_is_what_it_states() -> None:
    stub = Path(gpucluster.__file__).with_suffix(".pyi").read_text()
    names = [name for name in gpucluster.__all__ if name != "__version__"]
    assert len(names) == len(set(names))
    for name in names:
        assert getattr(gpucluster, name).__name__ == name
        assert stub.count(f" {name} as {name}") == 1
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = gpucluster.Nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize("use", ["import gpucluster", "import gpucluster; hasattr(gpucluster, 'paths')"])
def test_importing_the_package_loads_nothing_heavy(use: str) -> None:
    # `from gpucluster import paths` asks for the attribute first: that must not parse the public names.
    heavy = ("oci", "pydantic", "click", "yaml", "typing", "ast", "gpucluster.cluster")
    code = f"import sys; {use}; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=_root())
    assert answer.stdout == "[]\n"


def _root() -> Path:
    return Path(gpucluster.__file__).parents[1]
