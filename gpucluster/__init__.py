"""Create and operate GPU clusters on Oracle Cloud Infrastructure, or the same cluster on one Linux machine.

    import gpucluster

    spec = gpucluster.load("inventories/local/cluster.yml")
    result = gpucluster.Cluster(spec).apply()

The names in `__all__` are the whole public interface: `load` and `Cluster`, the types that their methods take and
return, events, errors, `Cancellation`, `as_json` and `event_schema`. Every module below `gpucluster` is private and
may change in any version, whatever its name (docs/adr/0092-public-surface.md).

Public names are written in `__init__.pyi`, with the modules that define them. They are imported when first used, so
that importing gpucluster costs next to nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"
_FUNCTIONS = ("as_json", "event_schema", "load")


def _public() -> dict[str, str]:
    """The public names -> the modules that define them."""
    import ast

    # The loader also reads from a zip archive.
    stub = __spec__.loader.get_data(__file__.rpartition(".")[0] + ".pyi")  # type: ignore[union-attr, attr-defined]
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> object:
    if name == "__all__":
        value: object = [*__dir__()]
    # `from gpucluster import paths` asks here first. Modules are in lower case, as the public functions.
    elif not (name[:1].isupper() or name in _FUNCTIONS) or name not in (modules := _public()):
        raise AttributeError(f"module 'gpucluster' has no attribute {name!r}")
    else:
        import importlib

        value = getattr(importlib.import_module(modules[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_public(), "__version__"])
