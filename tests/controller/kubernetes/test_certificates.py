"""Certificates of the control plane: read from files, judged, and renewed by the real kubeadm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpucluster.controller.kubernetes import certificates
from gpucluster.controller.kubernetes.certificates import Certificate
from gpucluster.node_agent.errors import Failed
from tests.controller.kubernetes.api_server import binaries, kubeadm_api, needs_api_server, release

_DAY = 86400.0


def make(file: Path, days: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", "/dev/null", "-subj", "/CN=test", "-days", str(days), "-out", str(file)]  # fmt: skip
    subprocess.run(argv, check=True, capture_output=True)


def test_certificates_are_read_from_their_files(tmp_path: Path) -> None:
    make(tmp_path / "pki/ca.crt", 3650)
    make(tmp_path / "pki/etcd/server.crt", 30)
    (tmp_path / "admin.conf").write_text(f"    client-certificate-data: {_base64(tmp_path / 'pki/ca.crt')}\n")
    (tmp_path / "kubelet.conf").write_text("client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem\n")
    now = time.time()
    found = {Path(each.file).name: (round(each.days(now)), each.authority) for each in certificates.read(tmp_path)}
    assert found == {"ca.crt": (3650, True), "server.crt": (30, False), "admin.conf": (3650, False)}
    due = certificates.to_renew(certificates.read(tmp_path), now)
    assert [Path(each.file).name for each in due] == ["server.crt"]
    assert due[0].to_dict(now)["days"] in (29, 30)


def _base64(file: Path) -> str:
    done = subprocess.run(["base64", "--wrap=0", str(file)], capture_output=True, text=True, check=True)
    return done.stdout


def test_what_is_due() -> None:
    found = [Certificate("a", 89 * _DAY, False), Certificate("b", 91 * _DAY, False), Certificate("ca", 5 * _DAY, True)]
    assert [each.file for each in certificates.to_renew(found, 0.0)] == ["a"]
    assert [each.file for each in certificates.outlived(found, 0.0)] == ["ca"]
    assert Certificate("x", 0.0, False).to_dict(_DAY / 2)["days"] == -1


def test_a_host_without_a_control_plane_reports_it(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="no control plane yet") as raised:
        certificates.read(tmp_path)
    assert raised.value.hint == "Run: gpucluster apply"


def test_a_file_that_holds_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki/apiserver.crt").write_text("nonsense")
    with pytest.raises(Failed, match=r"pki/apiserver.crt holds no certificate"):
        certificates.read(tmp_path)


@pytest.mark.slow
@needs_api_server
def test_a_kubelet_whose_certificate_expired_gets_one_of_kubeadm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, calls = tmp_path / "kubernetes", tmp_path / "calls"
    (tmp_path / "programs").mkdir()
    systemctl = tmp_path / "programs/systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')  # a double: there is no kubelet here
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:{binaries()}:{os.environ['PATH']}")
    folder.mkdir()
    config = folder / "kubeadm.yaml"
    head = f"apiVersion: {kubeadm_api()}\nkind: "
    config.write_text(
        f"{head}InitConfiguration\nlocalAPIEndpoint: {{advertiseAddress: 10.9.9.9}}\n"
        f"nodeRegistration: {{name: demo-controller}}\n---\n{head}ClusterConfiguration\n"
        f"kubernetesVersion: v{release()}\ncertificatesDir: {folder / 'pki'}\n"
    )
    subprocess.run(["kubeadm", "init", "phase", "certs", "ca", f"--config={config}"], check=True, capture_output=True)
    own = tmp_path / "kubelet-pki/kubelet-client-current.pem"
    make(own, 1)
    now = time.time()
    assert certificates.renew_kubelet(now, folder, own, config) is False
    assert certificates.renew_kubelet(now + 2 * _DAY, folder, own, config) is True
    assert not own.exists()
    assert "client-certificate-data" in (folder / "kubelet.conf").read_text()
    assert calls.read_text().splitlines()[-1] == "restart kubelet"
    assert not certificates.kubelet_expired(now, own)


# Doubles: containerd has no containers here, and the API server is taken to be ready.
_DOUBLES = {"ctr": '#!/bin/sh\necho "$@" >> $CALLS\n', "kubectl": "#!/bin/sh\necho ok\n"}
_PROGRAM = """
import json, sys, time
from gpucluster.controller.kubernetes import certificates
from gpucluster.node_agent.kubernetes.kubectl import Kubectl
before = certificates.read()
first = certificates.renew(Kubectl(), time.sleep)
done = certificates.renew(Kubectl(), time.sleep, within_days=400)
after = certificates.read()
print(json.dumps([first, done, [list(each) for each in before], [list(each) for each in after]]))
"""


@pytest.mark.slow
@needs_api_server
def test_kubeadm_renews_what_expires_soon_and_the_control_plane_is_started_again(tmp_path: Path) -> None:
    place = binaries()
    programs, kubernetes, calls = tmp_path / "programs", tmp_path / "kubernetes", tmp_path / "calls"
    programs.mkdir()
    kubernetes.mkdir()
    shutil.copy(place / "kubeadm", programs / "kubeadm")
    for name, text in _DOUBLES.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "program.py").write_text(_PROGRAM)
    phase = f"--kubernetes-version=v{release()} --apiserver-advertise-address=10.9.9.9 >&2"
    script = (
        f"mkdir -p /etc/kubernetes && mount --bind {kubernetes} /etc/kubernetes && kubeadm init phase certs all {phase}"
        f" && kubeadm init phase kubeconfig all {phase} && {sys.executable} {tmp_path / 'program.py'}"
    )
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "CALLS": str(calls)}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", script], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    not_due, renewed, before, after = json.loads(done.stdout.splitlines()[-1])
    assert not_due == []
    assert "/etc/kubernetes/admin.conf" in renewed
    assert "/etc/kubernetes/pki/apiserver.crt" in renewed
    assert "/etc/kubernetes/pki/ca.crt" not in renewed
    assert [each[0] for each in before] == [each[0] for each in after]
    assert all(new[1] >= old[1] for old, new in zip(before, after, strict=True))
    for part in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        assert f'labels."io.kubernetes.container.name"=={part}' in calls.read_text()
