"""An archive of images, without those that a host does not run: they would cost time and space.

A docker-archive is a tar of layers and configurations, and manifest.json, which lists the parts of each image. An
archive that also has the layout of OCI is left whole: containerd reads that one, and not manifest.json.
"""

from __future__ import annotations

import io
import json
import posixpath
import tarfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any

from gpucluster.node_agent.kubernetes.joining import normal

_MANIFEST = "manifest.json"
_OF_OCI = {"oci-layout", "index.json"}


class ArchivePart:
    """What stays of an archive.

    Args:
        archive: a docker-archive. `unused`: names of images, as `normal` gives them.

    Raises:
        ValueError: it is not an archive that can be divided.
        OSError: it can't be read.
    """

    def __init__(self, archive: Path, unused: Collection[str]) -> None:
        self._archive = archive
        try:
            with tarfile.open(archive) as tar:
                members = tar.getmembers()
                names = {member.name for member in members}
                if _MANIFEST not in names or names & _OF_OCI:
                    raise ValueError(f"{archive.name} is not a plain docker-archive")
                file = tar.extractfile(_MANIFEST)
                manifest = json.load(file) if file else None
        except tarfile.TarError as error:
            raise ValueError(f"{archive.name}: {error}") from None
        links = {
            member.name: posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.linkname))
            for member in members
            if member.issym()
        }
        self._images, self._left_out = divided(manifest, unused, links)

    def write(self, into: IO[bytes]) -> None:
        """Write it as a tar, and close the file."""
        with into, tarfile.open(self._archive) as tar, tarfile.open(fileobj=into, mode="w|") as made:
            for member in tar:
                if member.name not in {_MANIFEST, *self._left_out}:
                    made.addfile(member, tar.extractfile(member) if member.isreg() else None)
            text = json.dumps(self._images).encode()
            described = tarfile.TarInfo(_MANIFEST)
            described.size = len(text)
            made.addfile(described, io.BytesIO(text))


def divided(manifest: Any, unused: Collection[str], links: Mapping[str, str]) -> tuple[list[Any], set[str]]:
    """A manifest without some images, and what only these had.

    Args:
        manifest: [{RepoTags: names, Config: a file, Layers: files}].
        links: by the name of each link of the archive, what it refers to.

    Raises:
        ValueError: it is not a manifest.
    """
    kept: list[Any] = []
    used: set[str] = set()
    others: set[str] = set()
    try:
        for image in manifest:
            tags = [tag for tag in image["RepoTags"] or () if normal(tag) not in unused]
            stays = bool(tags) or not image["RepoTags"]
            if stays:
                kept.append({**image, "RepoTags": tags})
            files = {image["Config"], *image["Layers"]}
            (used if stays else others).update(links.get(file, file) for file in files)
    except (TypeError, KeyError, AttributeError):
        raise ValueError("this is not the manifest of a docker-archive") from None
    gone = others - used
    return kept, gone | {link for link, file in links.items() if file in gone}
