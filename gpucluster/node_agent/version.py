"""Which agent this is: the package's version, and the checksum of the files that run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from importlib import resources, util
from typing import Any

import gpucluster

#: The packages of the agent: nodes have the first one, the controller and Prometheus' host have both.
NODE_AGENT, CONTROLLER = "node_agent", "controller"


def package_version() -> str:
    """The version of the package that the files come from."""
    return gpucluster.__version__


def packages() -> tuple[str, ...]:
    """The packages of the agent that are here."""
    return tuple(each for each in (NODE_AGENT, CONTROLLER) if util.find_spec(f"gpucluster.{each}") is not None)


def files(names: Sequence[str] = ()) -> list[tuple[str, bytes]]:
    """Path (`gpucluster/node_agent/...`) and content of every Python file of the agent, sorted by path.

    The result is the same whether the agent runs from a folder or from the zipapp.

    Args:
        names: of the packages; without any, those that are here.
    """
    return sorted(
        file
        for each in names or packages()
        for file in _below(resources.files(f"gpucluster.{each}"), f"gpucluster/{each}")
    )


def _below(folder: Any, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.name.endswith(".py"):
            yield f"{path}/{entry.name}", entry.read_bytes()
        elif entry.is_dir() and entry.name != "__pycache__":
            yield from _below(entry, f"{path}/{entry.name}")


def checksum(names: Sequence[str] = ()) -> str:
    """SHA-256 over version, paths and contents, in hexadecimal digits. It does not depend on how they are packed.

    Args:
        names: see `files`.
    """
    digest = hashlib.sha256(package_version().encode())
    for path, content in files(names):
        digest.update(f"\n{path} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
