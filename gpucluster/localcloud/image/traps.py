"""The traps: what OCI's images do to a cluster, as layers of files, packages and commands over a base image.

Each is a folder below `trap_files/`: `trap.toml` states what it is and where that is documented, `rootfs/` has its
files, and `setup.sh` runs in the image at the end. Its packages come with the base image, which keeps them without
installing them.
"""

from __future__ import annotations

import functools
import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "trap_files"
#: Lays traps into the image that it runs in.
LAY = FOLDER / "lay.sh"
#: Where a base image keeps the packages of each trap.
PACKAGES = "/var/lib/localcloud/packages"


@dataclass(frozen=True)
class Trap:
    """One trap.

    Args:
        what: what it does, in one sentence.
        sources: public addresses of documents that show that OCI's images do it.
        packages: Debian packages that it needs.
    """

    name: str
    what: str
    sources: tuple[str, ...]
    packages: tuple[str, ...] = ()


@functools.cache
def catalogue() -> Mapping[str, Trap]:
    """All traps by name."""
    traps = {}
    for file in sorted(FOLDER.glob("*/trap.toml")):
        entry = tomllib.loads(file.read_text())
        sources, packages = tuple(entry["sources"]), tuple(entry.get("packages", ()))
        traps[file.parent.name] = Trap(file.parent.name, entry["what"], sources, packages)
    return traps


def digest(names: tuple[str, ...]) -> str:
    """Changes with every file of these traps and with their order."""
    summed = hashlib.sha256(LAY.read_bytes())
    for name in names:
        for file in sorted(path for path in (FOLDER / name).rglob("*") if path.is_file()):
            content = file.read_bytes()
            summed.update(f"{file.relative_to(FOLDER)} {len(content)}\n".encode() + content)
    return summed.hexdigest()
