"""An OCI archive of one layer, made where the layer's files are. Run with: python3 image.py FOLDER NAME TARGET."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import tarfile
from typing import Any

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}


def main(folder: str, name: str, target: str) -> None:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(folder, arcname=".")
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    first = blob(layer.getvalue(), "layer.v1.tar")
    about = {
        "architecture": ARCHITECTURE[platform.machine()],
        "os": "linux",
        "config": {"Env": ["PATH=/bin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [first["digest"]]},
    }
    config = blob(json.dumps(about).encode(), "config.v1+json")
    kind = "application/vnd.oci.image.manifest.v1+json"
    whole = {"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [first]}
    manifest = blob(json.dumps(whole).encode(), "manifest.v1+json")
    manifest["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    blobs["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()
    with tarfile.open(target, "w") as tar:
        for path, content in blobs.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    main(*sys.argv[1:])
