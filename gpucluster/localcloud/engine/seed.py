"""What an instance finds at its first boot: a NoCloud seed.

These are the files that cloud-init reads instead of asking a metadata service.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Seed:
    """The first boot of one instance.

    Args:
        instance_id: a new one makes cloud-init treat the disk as a new instance.
        hostname: short name, without a domain.
        address: IPv4 address, for /etc/hosts.
        user_data: as the user gave it: cloud-config, a script, MIME parts or gzip; None for none.
        public_keys: for the default user.
        login_user: name of the default user; empty for the one that the image knows.
        metadata: what `cloud-init query ds.meta_data.metadata` shows.
    """

    instance_id: str
    hostname: str
    address: str
    user_data: bytes | None
    public_keys: tuple[str, ...]
    metadata: Mapping[str, Any]
    login_user: str = ""

    def write(self, folder: Path) -> None:
        """Write the files, readable by us alone: user data often holds secrets. What was there before goes."""
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
        hosts = f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{self.address} {self.hostname}\n"
        _write(folder / "hosts", hosts.encode())

    def _vendor_data(self) -> bytes:
        """What OCI's images have in their own configuration: the name of the default user."""
        if not self.login_user:
            return b""
        # Of the `user` here and the image's default_user cloud-init makes one: this name, the groups and rights there.
        return f"#cloud-config\n{json.dumps({'user': {'name': self.login_user}})}\n".encode()


def _write(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
