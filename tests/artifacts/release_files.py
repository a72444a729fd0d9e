"""Release files that tests ask for, and what a cluster needs of them."""

from __future__ import annotations

from typing import Any

from gpucluster.artifacts import catalogue
from gpucluster.artifacts.catalogue import Artifact

DEBS = ("enroot_4.1.2-1_amd64.deb", "enroot+caps_4.1.2-1_amd64.deb")


RPMS = ("enroot-4.1.2-1.el8.x86_64.rpm", "enroot+caps-4.1.2-1.el8.x86_64.rpm")


# Not the pinned version: no list has its checksum.
UNPINNED = {"pyxis": "0.25.0"}


PYXIS = "pyxis-0.25.0.tar.gz"


def wanted(*runtimes: str, **differs: Any) -> tuple[Artifact, ...]:
    asked: dict[str, Any] = {"gpus_present": False, "versions": UNPINNED, "checksums": {}, "architectures": {"x86_64"}}
    asked |= differs
    return catalogue.needed(runtimes, asked.pop("architectures"), **asked)
