"""Digests of what configures the hosts: of the playbooks, roles and programs that are installed there, and of all that
one run works from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gpucluster.node_agent import version
from gpucluster.paths import ansible_dir, import_root

#: Packages from which lookups and filters of Ansible take what they write on hosts, beside those of the agent.
READ_BY_ROLES = ("dashboards", "jobs", "slurm", "systems")


@cache
def digest() -> str:
    """Two installations of gpucluster with the same digest configure hosts in the same way.

    The files are read once: they are those of the installation that runs.
    """
    checksum = hashlib.sha256()
    folders = (*version.packages(), *READ_BY_ROLES)
    for root in (ansible_dir(), *(import_root() / "gpucluster" / each for each in folders)):
        for file in _files(root):
            checksum.update(f"{file.relative_to(root)}\0".encode())
            checksum.update(hashlib.sha256(file.read_bytes()).digest())
    return checksum.hexdigest()


def inputs(inventory: Mapping[str, Any]) -> str:
    """Two runs with the same inputs bring hosts to the same state. Folders of this machine count by what is in them.

    Args:
        inventory: the whole inventory of the run. Its release files have their checksums in it.
    """
    variables = dict(inventory["all"]["vars"])
    variables.pop("software_directory", None)
    wheels = variables.pop("autoscaler_wheels", None)
    checksum = hashlib.sha256(digest().encode())
    # A new password is a change, and it is in no inventory.
    existing = variables.get("users_directory")
    if existing:
        checksum.update(Path(existing["bind_password_file"]).read_bytes())
    compared = {**inventory, "all": {**inventory["all"], "vars": variables}}
    checksum.update(json.dumps(compared, sort_keys=True).encode())
    for wheel in _files(Path(wheels)) if wheels else ():
        checksum.update(f"{wheel.name}\0{hashlib.sha256(wheel.read_bytes()).hexdigest()}".encode())
    return checksum.hexdigest()


def _files(root: Path) -> Iterator[Path]:
    """The files below a folder, without documents and what tools leave there."""
    for file in sorted(root.rglob("*")):
        hidden = any(part.startswith((".", "__pycache__")) for part in file.relative_to(root).parts)
        if file.is_file() and not hidden and file.suffix != ".md":
            yield file
