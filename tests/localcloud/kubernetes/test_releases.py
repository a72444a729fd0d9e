"""The release files of control planes: which the mirror has, and how the programs are taken out of the images."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.localcloud.kubernetes import releases
from tests import image_archive
from tests.image_archive import Image

MACHINE = platform.machine()
WORD = {"x86_64": "amd64", "aarch64": "arm64"}[MACHINE]


def fill(folder: Path, number: str, *parts: str) -> Path:
    """A mirror with a release whose programs are texts. Returns the archive."""
    folder.mkdir(exist_ok=True)
    for name in ("kubelet", "kubectl"):
        (folder / f"{name}-{number}-linux-{WORD}").write_text(name)
    made = {}
    for part in parts:
        (folder / f"{part}.txt").write_text(f"{part} {number}")
        made[f"k8s.example/{part}:v{number}"] = Image({f"/usr/local/bin/{part}": folder / f"{part}.txt"})
    archive = folder / f"kubernetes-images-{number}-{MACHINE}.tar"
    image_archive.write(archive, made)
    return archive


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / releases.CONFIG).write_text(json.dumps({"mirror": str(tmp_path / "mirror")}))
    (tmp_path / "mirror").mkdir()
    return home


def test_the_programs_come_out_of_the_images_once(home: Path, tmp_path: Path) -> None:
    archive = fill(tmp_path / "mirror", "1.33.1", *releases.PARTS)
    folder = releases.programs(home, releases.find(home, "v1.33.1"))
    assert {file.name for file in folder.iterdir()} == {*releases.PARTS, "kubectl"}
    assert (folder / "kube-apiserver").read_text() == "kube-apiserver 1.33.1"
    assert (folder / "etcd").stat().st_mode & 0o777 == 0o755
    archive.unlink()
    assert (folder / "etcd").exists()


def test_the_oldest_release_is_first_and_one_without_all_files_is_not_offered(tmp_path: Path) -> None:
    for number in ("1.33.1", "1.9.0", "1.34.1"):
        fill(tmp_path, number)
    (tmp_path / f"kubelet-1.34.1-linux-{WORD}").unlink()
    assert [release.version for release in releases.offered(tmp_path)] == ["v1.9.0", "v1.33.1"]


def test_what_is_missing_or_changed_is_reported(home: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"no release files of Kubernetes v1\.33\.1"):
        releases.find(home, "v1.33.1")
    archive = fill(tmp_path / "mirror", "1.33.1", "kube-apiserver", "etcd")
    with pytest.raises(EnvironmentFault, match="lacks kube-controller-manager, kube-scheduler"):
        releases.programs(home, releases.find(home, "v1.33.1"))
    digest = hashlib.sha256(b"another").hexdigest()
    (tmp_path / "mirror" / "SHA256SUMS").write_text(f"{digest}  {archive.name}\n")
    with pytest.raises(EnvironmentFault, match="another checksum"):
        releases.programs(home, releases.find(home, "v1.33.1"))
    assert not (home / "kubernetes" / "programs" / "1.33.1").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mirror": 1}', '{"mirror": "here"}', '{"mirror": "/not/there"}'])
def test_a_file_that_names_no_mirror_is_refused(home: Path, text: str) -> None:
    (home / releases.CONFIG).write_text(text)
    with pytest.raises(InputError):
        releases.mirror(home)
