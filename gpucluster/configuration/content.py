"""A digest of what configures the hosts: the playbooks and roles, and the programs that are installed there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from gpucluster.node_agent import version
from gpucluster.paths import ansible_dir, import_root


def digest() -> str:
    """Two installations of gpucluster with the same digest configure hosts in the same way."""
    found = hashlib.sha256()
    for root in (ansible_dir(), *(import_root() / "gpucluster" / each for each in version.packages())):
        for file in _files(root):
            found.update(f"{file.relative_to(root)}\0".encode())
            found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()


def _files(root: Path) -> Iterator[Path]:
    """The files below a folder, without documents and what tools leave there."""
    for file in sorted(root.rglob("*")):
        hidden = any(part.startswith((".", "__pycache__")) for part in file.relative_to(root).parts)
        if file.is_file() and not hidden and file.suffix != ".md":
            yield file
