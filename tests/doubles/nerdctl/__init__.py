"""A double of the nerdctl-full bundle, for a mirror.

Real in it, by links to Debian's programs: containerd, its shim, runc, rootlesskit, slirp4netns. Doubles: nerdctl
itself (a few verbs, done with containerd's own client `ctr`), containerd-rootless.sh (the same switches of rootlesskit,
fewer of the cases), the set-up tool, bypass4netnsd (it only runs).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.mirror import Mirror

_BIN = Path(__file__).parent / "bin"
#: A program that packs a folder as an image: python3 - FOLDER NAME TARGET.
OCI = (Path(__file__).parent / "image.py").read_text()
_REAL = {
    "containerd": "/usr/bin/containerd",
    "containerd-shim-runc-v2": "/usr/bin/containerd-shim-runc-v2",
    "rootlesskit": "/usr/bin/rootlesskit",
    # As the instance finds it: with its own part of the control groups.
    "runc": "/usr/local/sbin/runc",
}


def bundle(mirror: Mirror, version: str) -> dict[str, Any]:
    """Put a bundle into the mirror; its entry in the inventory."""
    tree: dict[str, str | bytes] = {f"bin/{file.name}": file.read_text() for file in sorted(_BIN.iterdir())}
    tree |= {f"bin/{name}": f'#!/bin/sh\nexec {path} "$@"\n' for name, path in _REAL.items()}
    tree |= {"libexec/cni/README": "no plugins here\n", "VERSION": f"{version}\n"}
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    name = f"nerdctl-full-{version}-linux-{machine}.tar.gz"
    mirror.tar(name, tree)
    return {
        "component": "nerdctl",
        "version": version,
        "file": name,
        "sha256": mirror.sha256(name),
        "format": "any",
        "architecture": os.uname().machine,
    }
