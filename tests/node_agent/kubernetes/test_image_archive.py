"""An archive of images without some of them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.kubernetes.image_archive import ArchivePart, divided

ETCD, PROXY = "registry.k8s.io/etcd:3.6.4-0", "registry.k8s.io/kube-proxy:v1.36.4"
IMAGES = [
    {"RepoTags": [ETCD], "Config": "etcd.json", "Layers": ["base.tar", "etcd/layer.tar"]},
    {"RepoTags": [PROXY, "proxy:mine"], "Config": "proxy.json", "Layers": ["base.tar", "proxy.tar"]},
]
FILES = ("base.tar", "etcd.tar", "proxy.tar", "etcd.json", "proxy.json", "repositories")


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", link: str = "") -> None:
    """Add a file with this content, or a link."""
    member = tarfile.TarInfo(name)
    if link:
        member.type, member.linkname = tarfile.SYMTYPE, link
    member.size = 0 if link else len(data)
    tar.addfile(member, None if link else io.BytesIO(data))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "images.tar"
    with tarfile.open(path, "w") as tar:
        for name in FILES:
            add(tar, name, name.encode())
        add(tar, "etcd/layer.tar", link="../etcd.tar")
        add(tar, "proxy/layer.tar", link="../proxy.tar")
        add(tar, "manifest.json", json.dumps(IMAGES).encode())
    return path


def written(part: ArchivePart, folder: Path) -> dict[str, bytes]:
    """By its name, each file of the archive that is written."""
    path = folder / "made.tar"
    part.write(path.open("wb"))
    with tarfile.open(path) as tar:
        return {each.name: tar.extractfile(each).read() if each.isreg() else b"link" for each in tar}  # type: ignore[union-attr]


def test_what_only_an_unused_image_has_is_left_out(archive: Path, tmp_path: Path) -> None:
    made = written(ArchivePart(archive, {ETCD}), tmp_path)
    assert set(made) == {"base.tar", "proxy.tar", "proxy.json", "repositories", "proxy/layer.tar", "manifest.json"}
    assert made["proxy.tar"] == b"proxy.tar"
    assert json.loads(made["manifest.json"]) == IMAGES[1:]


def test_an_image_stays_as_long_as_one_of_its_names_is_used() -> None:
    kept, gone = divided(IMAGES, {PROXY}, {})
    assert (kept[1]["RepoTags"], gone) == (["proxy:mine"], set())
    assert divided([{"RepoTags": None, "Config": "c", "Layers": []}], {PROXY}, {})[1] == set()


@pytest.mark.parametrize("manifest", [None, 7, [7], [{}], [{"RepoTags": 7, "Config": "c", "Layers": []}]])
def test_another_manifest_can_t_be_divided(manifest: Any) -> None:
    with pytest.raises(ValueError, match="not the manifest of a docker-archive"):
        divided(manifest, {ETCD}, {})


@pytest.mark.parametrize("more", ["oci-layout", "index.json"])
def test_an_archive_of_which_containerd_reads_something_else_can_t_be_divided(more: str, archive: Path) -> None:
    with tarfile.open(archive, "a") as tar:
        add(tar, more, b"{}")
    with pytest.raises(ValueError, match="not a plain docker-archive"):
        ArchivePart(archive, {ETCD})


def test_a_file_that_is_not_an_archive_can_t_be_divided(tmp_path: Path) -> None:
    text, spoilt = tmp_path / "text", tmp_path / "spoilt"
    text.write_bytes(b"no tar")
    with tarfile.open(spoilt, "w") as tar:
        add(tar, "manifest.json", b"{")
    for path, said in ((text, "could not be opened"), (spoilt, "Expecting property name")):
        with pytest.raises(ValueError, match=said):
            ArchivePart(path, {ETCD})
    with pytest.raises(FileNotFoundError):
        ArchivePart(tmp_path / "missing", {ETCD})
