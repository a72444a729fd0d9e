"""Release files of Kubernetes for the control planes of the local cloud.

`<home>/kubernetes.json` names a folder in the form of `software.mirror`: {"mirror": "/srv/mirror"}. A release is
offered where that folder has kubelet, kubectl and the archive of images for this machine. The programs of a control
plane are taken out of the images, into `<home>/kubernetes/programs/RELEASE`, once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.paths import make_private

CONFIG = "kubernetes.json"
#: Of a control plane, by the name of the image that has the program.
PARTS = {
    "kube-apiserver": "kube-apiserver",
    "kube-controller-manager": "kube-controller-manager",
    "kube-scheduler": "kube-scheduler",
    "etcd": "etcd",
}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_SUMS = "SHA256SUMS"


@dataclass(frozen=True)
class MirroredRelease:
    """The files of one release in the mirror.

    Args:
        number: without a "v", such as "1.33.1".
        archive: of the images.
    """

    number: str
    archive: Path
    kubelet: Path
    kubectl: Path

    @property
    def version(self) -> str:
        """As OKE writes it, such as "v1.33.1"."""
        return f"v{self.number}"


def mirror(home: Path) -> Path | None:
    """The folder that `<home>/kubernetes.json` names; None where there is no such file.

    Raises:
        InputError: the file is not what it should be, or the folder is not there.
    """
    file = home / CONFIG
    if not file.exists():
        return None
    remedy = 'Write {"mirror": "/a/folder"} into it: a folder in the form of `software.mirror`'
    try:
        read = json.loads(file.read_text())
        named = read["mirror"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"it does not name a mirror: {error}", where=str(file), hint=remedy) from error
    if not isinstance(named, str) or not Path(named).is_absolute():
        raise InputError(f"mirror {named!r} is not an absolute path", where=str(file), hint=remedy)
    if not Path(named).is_dir():
        raise InputError(f"the folder {named} is not there", where=str(file), hint=remedy)
    return Path(named)


def offered(folder: Path) -> list[MirroredRelease]:
    """The releases of a mirror that have all files, the oldest first."""
    machine = platform.machine()
    pattern = re.compile(rf"kubernetes-images-(\d+\.\d+\.\d+)-{machine}\.tar")
    releases = []
    for archive in (*folder.glob("kubernetes-images-*"), *folder.glob("kubernetes-images/kubernetes-images-*")):
        matched = pattern.fullmatch(archive.name)
        if matched is None:
            continue
        kubelet, kubectl = (_program(folder, name, matched[1]) for name in ("kubelet", "kubectl"))
        if kubelet and kubectl:
            releases.append(MirroredRelease(matched[1], archive, kubelet, kubectl))
    return sorted(releases, key=lambda release: numbers(release.number))


def numbers(version: str) -> tuple[int, int, int]:
    """(1, 33, 1) of "v1.33.1" or "1.33.1"."""
    major, minor, patch = version.removeprefix("v").split(".")
    return int(major), int(minor), int(patch)


def find(home: Path, version: str) -> MirroredRelease:
    """The files of a release.

    Args:
        version: with or without a "v".

    Raises:
        EnvironmentFault: there is no mirror, or it lacks them.
    """
    folder = mirror(home)
    lacks = f"the local cloud has no release files of Kubernetes {version}"
    if folder is None:
        raise EnvironmentFault(lacks, where=str(home / CONFIG), hint='Write {"mirror": "/a/folder"} into this file')
    for release in offered(folder):
        if release.number == version.removeprefix("v"):
            return release
    raise EnvironmentFault(
        lacks,
        where=str(folder),
        hint="It needs kubelet, kubectl and the archive of images of this release: docs/how-to/mirror.md",
    )


def programs(home: Path, release: MirroredRelease) -> Path:
    """The folder with the programs of a release's control plane, and kubectl. The first call takes some seconds.

    Raises:
        EnvironmentFault: the archive has another checksum than the mirror's list, or lacks a program.
    """
    parent = home / "kubernetes" / "programs"
    make_private(home / "kubernetes")
    make_private(parent)
    folder = parent / release.number
    with (parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = parent / f".{release.number}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            for file in (release.archive, release.kubectl):
                _check(file)
            shutil.copy(release.kubectl, part / "kubectl")
            _unpack(release.archive, part)
            for program in part.iterdir():
                program.chmod(0o755)
            part.rename(folder)
    return folder


def images(archive: Path) -> list[str]:
    """The names of the images in an archive."""
    with tarfile.open(archive) as tar:
        return [name for entry in _manifest(tar, archive) for name in entry.get("RepoTags") or []]


def _program(folder: Path, name: str, number: str) -> Path | None:
    machine = _ARCHITECTURES.get(platform.machine(), platform.machine())
    file = f"{name}-{number}-linux-{machine}"
    places = (folder / file, folder / "kubernetes" / file, folder / f"release/v{number}/bin/linux/{machine}" / name)
    return next((place for place in places if place.is_file()), None)


def _check(file: Path) -> None:
    """Compare a file with the list of checksums beside it or above it, where there is one."""
    for folder in (file.parent, file.parent.parent):
        if not (folder / _SUMS).is_file():
            continue
        for line in (folder / _SUMS).read_text().splitlines():
            expected, _, name = line.strip().partition(" ")
            if name.lstrip(" *") == os.path.relpath(file, folder):
                with file.open("rb") as content:
                    actual = hashlib.file_digest(content, "sha256").hexdigest()
                if actual != expected.lower():
                    raise EnvironmentFault(
                        f"{file.name} has another checksum than in {folder / _SUMS}",
                        where=str(file),
                        hint="Bring the file into the mirror again",
                    )
                return


def _manifest(tar: tarfile.TarFile, archive: Path) -> list[dict[str, list[str]]]:
    try:
        file = tar.extractfile("manifest.json")
        assert file is not None
        read: list[dict[str, list[str]]] = json.load(file)
    except (KeyError, ValueError, tarfile.TarError) as error:
        raise EnvironmentFault(
            f"not an archive of images in Docker's format: {error}",
            where=str(archive),
            hint="Make it as docs/how-to/kubernetes.md describes",
        ) from error
    return read


def _unpack(archive: Path, into: Path) -> None:
    """Take the programs of a control plane out of their images."""
    with tarfile.open(archive) as tar:
        for entry in _manifest(tar, archive):
            names = {name.rsplit("/", 1)[-1].rsplit(":", 1)[0] for name in entry.get("RepoTags") or []}
            for program in (PARTS[name] for name in names & set(PARTS)):
                for layer in entry["Layers"]:
                    packed = tar.extractfile(layer)
                    if packed is not None:
                        _take(packed, program, into)
    lacking = sorted(program for program in PARTS.values() if not (into / program).exists())
    if lacking:
        raise EnvironmentFault(
            f"the archive lacks {', '.join(lacking)}",
            where=str(archive),
            hint="Make it as docs/how-to/kubernetes.md describes",
        )


def _take(layer: IO[bytes], program: str, into: Path) -> None:
    with tarfile.open(fileobj=layer) as tar:
        for member in tar:
            if member.isfile() and member.name.rsplit("/", 1)[-1] == program and "bin/" in member.name:
                content = tar.extractfile(member)
                assert content is not None
                with (into / program).open("wb") as file:
                    shutil.copyfileobj(content, file)
