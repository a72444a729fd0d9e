"""GPU clusters on Oracle Cloud Infrastructure, and the same cluster on one Linux machine.

    import gpucluster

    spec = gpucluster.load("inventories/local/cluster.yml")
    result = gpucluster.Cluster(spec).apply()

The names below are the whole promise. They are loaded when first used, so that importing gpucluster costs next to
nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself costs as much as starting Python; type checkers know the name

__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from gpucluster.cluster import Cluster, Result
    from gpucluster.errors import GpuClusterError, InputError
    from gpucluster.events import Event
    from gpucluster.spec import ClusterSpec, load

__all__ = [
    "Cluster",
    "ClusterSpec",
    "Event",
    "GpuClusterError",
    "InputError",
    "Result",
    "__version__",
    "load",
]

_HOMES = {
    "Cluster": "gpucluster.cluster",
    "Result": "gpucluster.cluster",
    "ClusterSpec": "gpucluster.spec",
    "load": "gpucluster.spec",
    "Event": "gpucluster.events",
    "GpuClusterError": "gpucluster.errors",
    "InputError": "gpucluster.errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'gpucluster' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
