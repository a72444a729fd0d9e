"""Images of the objects, and the archive of them for a mirror."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from gpucluster.kubernetes import images
from gpucluster.kubernetes.system import needed_images
from tests.kubernetes.test_system import _system


def test_the_archive_has_every_image_of_the_objects() -> None:
    made = _system("BM.GPU4.8", access="device")
    needed = needed_images(made, ["nvidia"], software="device-plugin", exporter=False)
    assert needed == sorted(
        images.reference(name) for name in ("multus", "nvidia-device-plugin", "rdma-cni", "whereabouts")
    )
    operator = needed_images(_system("BM.GPU4.8", software="operator"), ["nvidia"], software="operator", exporter=True)
    assert images.reference("dcgm-exporter") in operator
    script = images.archive_script(needed, "1.36.4", "x86_64", calico=True)
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    assert all(f"echo {image} >> images" in script for image in needed)
    assert "--output=kubernetes-images-1.36.4-x86_64.tar" in script
    assert "calico" not in images.archive_script(needed, "1.36.4", "aarch64", calico=False)


_KUBEADM = """#!/bin/sh
[ "$*" = "config images list --kubernetes-version 1.36.4" ] || exit 64
printf 'registry.example/%s:1\\n' kube-apiserver kube-proxy etcd/etcd pause
"""


_PODMAN = """#!/bin/sh
echo "$*" >> "$0.log"
case $1 in save) for word; do case $word in --output=*) echo archive > "${word#*=}" ;; esac; done ;; esac
"""


def _mirror(folder: Path, *, kubeadm: str) -> dict[str, str]:
    """Programs that stand in for those that need a network, and for the real kubeadm."""
    (folder / "bin").mkdir(parents=True)
    for path, text in ((folder / "bin" / "podman", _PODMAN), (folder / kubeadm, _KUBEADM)):
        path.write_text(text)
    (folder / "bin" / "podman").chmod(0o755)
    return {"PATH": f"{folder / 'bin'}:/usr/bin:/bin"}


@pytest.mark.parametrize("control_plane", [True, False])
def test_the_archive_is_made_with_the_kubeadm_of_the_mirror(tmp_path: Path, control_plane: bool) -> None:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    environment = _mirror(tmp_path, kubeadm=f"kubeadm-1.36.4-linux-{machine}")
    script = images.archive_script(["quay.io/a/b:2"], "1.36.4", "x86_64", calico=False, control_plane=control_plane)
    subprocess.run(["sh", "-c", script], cwd=tmp_path, env=environment, check=True)
    saved = (tmp_path / "bin" / "podman.log").read_text().splitlines()[-1].split()
    parts = ["etcd/etcd", "kube-apiserver"] if control_plane else []
    expected = sorted(f"registry.example/{name}:1" for name in (*parts, "kube-proxy", "pause"))
    assert sorted(word for word in saved if ":" in word) == ["quay.io/a/b:2", *expected]
    assert (tmp_path / "SHA256SUMS").read_text().endswith("kubernetes-images-1.36.4-x86_64.tar\n")


def test_no_archive_is_made_where_there_is_no_kubeadm(tmp_path: Path) -> None:
    environment = _mirror(tmp_path, kubeadm="kubeadm-of-another-release")
    script = images.archive_script(["quay.io/a/b:2"], "1.36.4", "x86_64", calico=False)
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert "kubeadm" in done.stderr
    assert not list(tmp_path.glob("*.tar"))


def test_every_image_has_a_version_and_a_source_and_is_used_once() -> None:
    entries = images.software().values()
    assert len({entry.image for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.tag not in ("latest", "snapshot")
        assert entry.source
        assert entry.image.count("/") >= 2, "the whole name: an archive keeps no short ones"
