"""The images of the cluster's own software on a host: imported from the archive, complete, and kept.

No registry gives them back where hosts reach none. When its disk fills, kubelet removes images that no container uses,
but for those that containerd calls pinned: from containerd 1.7.3 on an image with this label (containerd pull request
8867), and kubelet since 1.29 and the last patches of 1.25 to 1.28 (Kubernetes pull requests 119986, 120053 to 120056).
"""

from __future__ import annotations

import contextlib
import os
import re
import tarfile
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed, Refused, of_system
from gpucluster.node_agent.kubernetes.image_archive import ArchivePart
from gpucluster.node_agent.kubernetes.joining import normal

#: containerd's label for an image that stays, and ours for one that we gave it to.
PINNED, OURS = "io.cri-containerd.pinned", "io.gpucluster.pinned"
#: The checksum of the archive that was imported last. Beside the store: both are lost together.
MARKER = Path("/var/lib/containerd/.gpucluster-images")
_CTR = ("ctr", "--namespace=k8s.io", "images")
#: Seconds for an archive of some gigabytes on a slow disk.
_IMPORT_S = 3600.0
_IMAGE = re.compile(r"""^\s*(?:-\s+)?image:\s*["']?([^\s"'#]+)""", re.MULTILINE)


def keep(request: Mapping[str, Any], marker: Path = MARKER) -> dict[str, Any]:
    """Import the archive where an image is missing or the archive is another one, and pin the images.

    Args:
        request: {archive: its path, checksum: of the archive, images: names, manifests: paths of YAML files that name
            more images, unused: names of images that this host does not run}.

    Returns:
        {imported: whether it was, pinned and unpinned: names}.

    Raises:
        Refused: the request is something else.
        Failed: the archive lacks images, or containerd or the disk refuses something.
    """
    archive, checksum = request.get("archive"), request.get("checksum")
    names, manifests, unused = request.get("images"), request.get("manifests"), request.get("unused", [])
    if not (isinstance(archive, str) and isinstance(checksum, str) and all(map(_texts, (names, manifests, unused)))):
        raise Refused("the request needs an archive, its checksum, names of images and paths of manifests")
    try:
        texts = [Path(path).read_text(encoding="utf-8") for path in manifests or ()]
        desired = {normal(name) for name in (*(names or ()), *(name for text in texts for name in named_in(text)))}
        imported = bool(desired - _stored()) or _read(marker) != checksum
        if imported:
            _import(Path(archive), {normal(name) for name in unused} - desired)
        missing = sorted(desired - _stored())
        if missing:
            message = f"{Path(archive).name} lacks {len(missing)} of {len(desired)} images: {', '.join(missing)}"
            raise Failed(
                message, "Make the archive again (gpucluster kubernetes images), then run the same command again"
            )
        pinned, unpinned = _pin(desired)
        if imported:
            marker.write_text(f"{checksum}\n", encoding="utf-8")
    except OSError as error:
        raise of_system(error) from error
    return {"imported": imported, "pinned": pinned, "unpinned": unpinned}


def named_in(text: str) -> list[str]:
    """The images that a manifest in YAML names."""
    return sorted(set(_IMAGE.findall(text)))


def _import(archive: Path, unused: Collection[str]) -> None:
    """Import the archive; of one that can be divided, without the unused images."""
    try:
        part = ArchivePart(archive, unused) if unused else None
    except ValueError:
        part = None
    if part is None:
        _ctr("import", str(archive), seconds=_IMPORT_S)
        return
    source, sink = os.pipe()
    with open(source, "rb") as stream:
        writer = threading.Thread(target=_write, args=(part, sink))
        writer.start()
        result = programs.call_with_data(*_CTR, "import", "-", stdin=stream, seconds=_IMPORT_S)
    # No program reads the pipe any more: a writer that is not at its end meets an error.
    writer.join()
    _check(result.returncode, "import", programs.last_words(result))


def _write(part: ArchivePart, sink: int) -> None:
    # What containerd reports of an archive that ends too early is the error that is shown.
    with contextlib.suppress(OSError, tarfile.TarError):
        part.write(os.fdopen(sink, "wb"))


def _pin(desired: set[str]) -> tuple[list[str], list[str]]:
    """Pin these images, and unpin what an earlier release had: kubelet removes it when the disk fills."""
    already, ours = _stored(f'labels."{PINNED}"==pinned'), _stored(f'labels."{OURS}"==yes')
    pinned, unpinned = sorted(desired - already), sorted(ours - desired)
    for name in pinned:
        _ctr("label", name, f"{PINNED}=pinned", f"{OURS}=yes")
    for name in unpinned:
        # An empty value removes a label.
        _ctr("label", name, f"{PINNED}=", f"{OURS}=")
    return pinned, unpinned


def _stored(*filters: str) -> set[str]:
    return {normal(name) for name in _ctr("list", "--quiet", *filters).split()}


def _ctr(*words: str, seconds: float = programs.SECONDS) -> str:
    result = programs.call([*_CTR, *words], seconds=seconds)
    _check(result.returncode, words[0], "".join((result.stderr.strip() or result.stdout.strip()).splitlines()[-1:]))
    return result.stdout


def _check(status: int, verb: str, reason: str) -> None:
    if status != 0:
        raise Failed(f"containerd can't {verb} images: {reason}", "See: journalctl --unit containerd")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def summary(result: Mapping[str, Iterable[str]]) -> str:
    """What was done, in a line; empty if nothing was."""
    parts = ["imported the archive"] if result["imported"] else []
    parts += [f"pinned {', '.join(result['pinned'])}"] if result["pinned"] else []
    parts += [f"unpinned {', '.join(result['unpinned'])}"] if result["unpinned"] else []
    return "; ".join(parts)
