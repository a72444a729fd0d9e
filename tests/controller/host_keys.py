"""Keys of hosts and of a CA, made by ssh-keygen."""

from __future__ import annotations

import subprocess
from pathlib import Path


def pair(file: Path, kind: str = "ed25519") -> str:
    short = ["-b", "1024"] if kind == "rsa" else []  # a long one may take seconds
    subprocess.run(["ssh-keygen", "-q", "-t", kind, *short, "-N", "", "-C", "x", "-f", str(file)], check=True)
    return " ".join(file.with_name(f"{file.name}.pub").read_text().split()[:2])
