"""Backup and restore of a control plane: a real etcd, a real kubeadm, a real API server.

kubelet and containerd are doubles: `stop` and `start` end and start the processes that kubelet would.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.controller.backup.control_plane import AUTHORITIES, ControlPlane
from gpucluster.controller.kubernetes.etcd import Etcd
from gpucluster.node_agent.errors import Failed, Refused
from tests.controller.kubernetes.api_server import binaries, kubeadm_api, needs_api_server, release, running

pytestmark = [pytest.mark.slow, needs_api_server, pytest.mark.xdist_group("kubernetes-api-server")]

_MANIFEST = """\
spec:
  containers:
  - command:
    - etcd
    - --name=default
    - --initial-advertise-peer-urls=http://127.0.0.1:{port}
    - --initial-cluster=default=http://127.0.0.1:{port}
    image: registry.k8s.io/etcd:3.4.13-0
"""
_CONFIG = """\
apiVersion: {api}
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: {address}}}
nodeRegistration: {{name: {name}}}
---
apiVersion: {api}
kind: ClusterConfiguration
kubernetesVersion: v{release}
certificatesDir: {pki}
"""


@pytest.fixture
def with_kubeadm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{binaries()}:{os.environ['PATH']}")


def control_plane(folder: Path, name: str, address: str) -> ControlPlane:
    """What kubeadm makes of a host, but for its containers."""
    kubernetes = folder / "kubernetes"
    (kubernetes / "manifests").mkdir(parents=True)
    (kubernetes / "manifests/etcd.yaml").write_text(_MANIFEST.format(port=1))
    config = kubernetes / "kubeadm.yaml"
    config.write_text(
        _CONFIG.format(api=kubeadm_api(), release=release(), address=address, name=name, pki=kubernetes / "pki")
    )
    for what in (["certs", "all"], ["kubeconfig", "all", f"--kubeconfig-dir={kubernetes}"]):
        argv = ["kubeadm", "init", "phase", *what, f"--config={config}"]
        subprocess.run(argv, check=True, capture_output=True)
    kubelet = folder / "kubelet-pki"
    kubelet.mkdir()
    (kubelet / "kubelet-client-1.pem").write_text(f"of {name}")
    (kubelet / "kubelet-client-current.pem").symlink_to(kubelet / "kubelet-client-1.pem")
    return ControlPlane(kubernetes, config, Etcd("http://127.0.0.1:1", (), folder / "etcd"), kubelet)


def at(plane: ControlPlane, address: str) -> ControlPlane:
    return replace(plane, etcd=Etcd(address, (), plane.etcd.data))


def test_a_new_controller_gets_objects_and_cas_and_certificates_of_its_own(tmp_path: Path, with_kubeadm: None) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    lost = control_plane(old, "lost", "10.0.0.5")
    with running(old) as server:
        server.kubectl.run("create", "configmap", "kept", "--from-literal=a=b", "--namespace=default")
        assert at(lost, server.etcd).dump(tmp_path / "etcd.db", tmp_path / "authorities.tar") > 10
    for file in ("etcd.db", "authorities.tar"):
        assert (tmp_path / file).stat().st_mode & 0o777 == 0o600

    fresh = control_plane(new, "found", "10.0.0.9")
    own = (new / "kubernetes/pki/ca.crt").read_bytes()
    with running(new) as server:
        server.kubectl.run("create", "configmap", "of-the-new", "--from-literal=a=b", "--namespace=default")
    fresh.build(tmp_path / "etcd.db", tmp_path / "authorities.tar")
    assert (new / "kubernetes/pki/ca.crt").read_bytes() == own  # nothing is changed yet
    fresh.exchange()
    assert fresh.interrupted()
    for name in AUTHORITIES:
        assert (new / "kubernetes/pki" / name).read_bytes() == (old / "kubernetes/pki" / name).read_bytes()
    assert (new / "kubernetes/pki/ca.key").stat().st_mode & 0o777 == 0o600
    said = _openssl("x509", "-noout", "-text", "-in", str(new / "kubernetes/pki/apiserver.crt"))
    assert "IP Address:10.0.0.9" in said
    assert "10.0.0.5" not in said
    verified = _openssl(
        "verify", "-CAfile", str(old / "kubernetes/pki/ca.crt"), str(new / "kubernetes/pki/apiserver.crt")
    )
    assert verified.strip().endswith("OK")
    assert list((new / "kubelet-pki").iterdir()) == []  # another CA has signed what was there
    assert "https://10.0.0.9:6443" in (new / "kubernetes/admin.conf").read_text()
    with running(new) as server:
        found = {each["metadata"]["name"] for each in server.kubectl.list("configmaps", "default")}
        assert found == {"kept"} | (found - {"of-the-new"})
    fresh.put_back()
    assert not fresh.interrupted()
    assert (new / "kubelet-pki/kubelet-client-current.pem").read_text() == "of found"
    assert (new / "kubernetes/pki/ca.crt").read_bytes() == own
    with running(new) as server:
        found = {each["metadata"]["name"] for each in server.kubectl.list("configmaps", "default")}
        assert "of-the-new" in found
        assert "kept" not in found
    fresh.discard()
    assert sorted(each.name for each in (new / "etcd").iterdir()) == ["member"]


def _openssl(*words: str) -> str:
    return subprocess.run(["openssl", *words], capture_output=True, text=True, check=True).stdout


def test_what_does_not_belong_in_a_backup_is_refused_and_changes_nothing(tmp_path: Path, with_kubeadm: None) -> None:
    plane = control_plane(tmp_path, "here", "10.0.0.5")
    before = sorted(each.name for each in plane.folder.rglob("*") if each.is_file())
    strange = tmp_path / "strange.tar"
    with tarfile.open(strange, "w") as archive:
        archive.add(plane.config, arcname="../manifests/evil.yaml")
    with pytest.raises(Refused, match="does not belong in a backup"):
        plane.build(tmp_path / "none", strange)
    with tarfile.open(strange, "w") as archive:
        archive.add(plane.folder / "pki/ca.crt", arcname="pki/ca.crt")
    with pytest.raises(Refused, match=r"has no ca\.key of the control plane"):
        plane.build(tmp_path / "none", strange)
    with tarfile.open(strange, "w") as archive:
        for name in AUTHORITIES:
            archive.add(plane.folder / "pki" / name, arcname=f"pki/{name}")
    (tmp_path / "damaged.db").write_bytes(b"x" * 4096)
    with pytest.raises(Failed, match="snapshot restore"):
        plane.build(tmp_path / "damaged.db", strange)
    plane.discard()
    assert sorted(each.name for each in plane.folder.rglob("*") if each.is_file()) == before
