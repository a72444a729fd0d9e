"""Archives of container images that `ctr images import` and `docker load` read, made from files of this machine.

write(tmp_path / "images.tar", {"registry.example/tool:1": Image({"/bin/tool": Path("/usr/bin/tool")})})
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Image:
    """One image, of one layer.

    Args:
        files: files by their place in the image. A program brings the libraries that it is linked with.
        links: targets of symbolic links by their place.
        root: a tar file of a whole root directory, which is the layer instead.
        entrypoint: the program of the image, with its first arguments.
    """

    files: Mapping[str, Path] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    root: Path | None = None
    entrypoint: tuple[str, ...] = ()

    def layer(self) -> bytes:
        """The layer's tar file."""
        if self.root is not None:
            return self.root.read_bytes()
        whole = dict(self.files)
        for file in self.files.values():
            whole |= {place: found for place, found in _libraries(file).items() if place not in whole}
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            entry = tarfile.TarInfo("tmp")
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(entry)
            for place, file in sorted(whole.items()):
                entry = tarfile.TarInfo(place.lstrip("/"))
                entry.size, entry.mode = file.stat().st_size, 0o755
                with file.open("rb") as content:
                    tar.addfile(entry, content)
            for place, target in sorted(self.links.items()):
                entry = tarfile.TarInfo(place.lstrip("/"))
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                tar.addfile(entry)
        return packed.getvalue()


def write(archive: Path, images: Mapping[str, Image]) -> None:
    """Write an archive in Docker's format; it appears when it is complete."""
    part = archive.with_name(f"{archive.name}.part")
    manifest = []
    with tarfile.open(part, "w") as out:

        def add(name: str, content: bytes) -> None:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            out.addfile(entry, io.BytesIO(content))

        for name, image in images.items():
            layer = image.layer()
            digest = hashlib.sha256(layer).hexdigest()
            about = {
                "architecture": _ARCHITECTURES[platform.machine()],
                "os": "linux",
                "config": {"Entrypoint": list(image.entrypoint), "Env": [_PATH]},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            }
            config = json.dumps(about).encode()
            described = f"{hashlib.sha256(config).hexdigest()}.json"
            add(f"{digest}.tar", layer)
            add(described, config)
            manifest.append({"Config": described, "RepoTags": [name], "Layers": [f"{digest}.tar"]})
        add("manifest.json", json.dumps(manifest).encode())
    part.rename(archive)


def _libraries(program: Path) -> dict[str, Path]:
    """What a program is linked with, by the places where its loader looks. Nothing for a static one."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return {word: Path(word).resolve() for word in said.split() if word.startswith("/")}
