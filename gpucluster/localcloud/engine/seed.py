"""The NoCloud seed of an instance: files that cloud-init reads at the first boot instead of a metadata service."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Seed:
    """The input of one instance's first boot.

    Args:
        instance_id: with a new id cloud-init treats the disk as a new instance.
        hostname: short name, without a domain.
        address: IPv4 address, for /etc/hosts.
        user_data: unchanged: cloud-config, a script, MIME parts or gzip; None for none.
        public_keys: for the default user.
        login_user: name of the default user; empty for the image's own.
        metadata: what `cloud-init query ds.meta_data.metadata` shows.
        hosts: further names for /etc/hosts, by address.
    """

    instance_id: str
    hostname: str
    address: str
    user_data: bytes | None
    public_keys: tuple[str, ...]
    metadata: Mapping[str, Any]
    login_user: str = ""
    hosts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the files, readable by root only: user data often holds secrets. Replaces the folder."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        meta_data = {
            "instance-id": self.instance_id,
            "local-hostname": self.hostname,
            "public-keys": [key.strip() for key in self.public_keys if key.strip()],
            "metadata": dict(self.metadata),
        }
        _write(folder / "meta-data", json.dumps(meta_data, indent=1).encode())
        _write(folder / "user-data", self.user_data or b"")
        _write(folder / "vendor-data", self._vendor_data())
        hosts = [
            "127.0.0.1 localhost",
            "::1 localhost ip6-localhost ip6-loopback",
            f"{self.address} {self.hostname}",
            *(f"{address} {' '.join(names)}" for address, names in self.hosts.items()),
        ]
        _write(folder / "hosts", "".join(f"{line}\n" for line in hosts).encode())

    def _vendor_data(self) -> bytes:
        """The name of the default user, which OCI's images have in their own configuration."""
        if not self.login_user:
            return b""
        # cloud-init merges this `user` with the image's default_user: the name from here, the groups and rights there.
        return f"#cloud-config\n{json.dumps({'user': {'name': self.login_user}})}\n".encode()


def _write(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
