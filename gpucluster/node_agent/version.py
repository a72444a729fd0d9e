"""Which agent this is: the package's version, and the checksum of the files that run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import resources
from typing import Any

import gpucluster

PACKAGE = "gpucluster/agent"


def package_version() -> str:
    """The version of the package that the files come from."""
    return gpucluster.__version__


def files() -> list[tuple[str, bytes]]:
    """Path (`gpucluster/agent/...`) and content of every Python file of the agent, sorted by path.

    The result is the same whether the agent runs from a folder or from the zipapp.
    """
    return sorted(_below(resources.files("gpucluster.node_agent"), PACKAGE))


def _below(folder: Any, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.name.endswith(".py"):
            yield f"{path}/{entry.name}", entry.read_bytes()
        elif entry.is_dir() and entry.name != "__pycache__":
            yield from _below(entry, f"{path}/{entry.name}")


def checksum() -> str:
    """SHA-256 over version, paths and contents, in hexadecimal digits. It does not depend on how they are packed."""
    found = hashlib.sha256(package_version().encode())
    for path, content in files():
        found.update(f"\n{path} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()
