"""A real API server of Kubernetes with a real etcd, as two processes on the loopback interface.

There is no kubelet and no controller: tests write what those would write, such as the status of a pod. These tests are
part of `make test-kubernetes`, which has built the binaries and sets GPUCLUSTER_TEST_KUBERNETES=1, or of a run with
GPUCLUSTER_KUBERNETES_BINARIES, which names another folder with them. There a missing program is a failure. Otherwise
the tests are skipped, also where the cache has binaries: `make test` is the same on every machine.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.kubernetes.person_objects import POLICIES_UNTIL
from gpucluster.node_agent.errors import AgentError
from gpucluster.node_agent.kubernetes.kubectl import Kubectl
from tests.addresses import free_port
from tests.waiting import wait_for

_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kubeadm", "kubectl")
_TOKEN = "a-token-of-the-tests"


def asked_for() -> bool:
    """Whether tests with a real API server are to run. Then what they need is there, or they fail."""
    return os.environ.get("GPUCLUSTER_TEST_KUBERNETES") == "1" or "GPUCLUSTER_KUBERNETES_BINARIES" in os.environ


def binaries() -> Path:
    """The folder with kube-apiserver and the other programs. Where one is missing, or etcd is, the test fails."""
    place = Path(given) if (given := os.environ.get("GPUCLUSTER_KUBERNETES_BINARIES")) else _built()
    missing = [str(place / name) for name in _PROGRAMS if not (place / name).is_file()]
    missing += [] if shutil.which("etcd") else ["etcd (Debian's package etcd-server)"]
    if missing:
        pytest.fail(f"missing: {', '.join(missing)}. Run: make test-kubernetes", pytrace=False)
    return place


def _built() -> Path:
    # The oldest Python, which collects this file, can't import what makes them.
    from tests.kubernetes_sources import programs_folder

    return programs_folder()


@functools.cache
def release() -> str:
    """The release of these binaries: "1.20.2". The tests are for that one, and run with newer ones by hand."""
    said = subprocess.run([f"{binaries()}/kube-apiserver", "--version"], check=True, capture_output=True, text=True)
    return said.stdout.split()[-1].removeprefix("v")


def minor() -> int:
    """20 of 1.20.2."""
    return int(release().split(".")[1])


def kubeadm_api() -> str:
    """The apiVersion of kubeadm's configuration."""
    return f"kubeadm.k8s.io/{'v1beta2' if minor() < 22 else 'v1beta3' if minor() < 31 else 'v1beta4'}"


def pod_security() -> Sequence[str]:
    """The options of kube-apiserver for the policies of users' pods."""
    return ("--allow-privileged=true", *["--enable-admission-plugins=PodSecurityPolicy"] * (minor() <= POLICIES_UNTIL))


needs_api_server = pytest.mark.skipif(not asked_for(), reason="it runs a real Kubernetes: make test-kubernetes")


@dataclass(frozen=True)
class ApiServer:
    """What tests need of the server.

    Args:
        kubeconfig: of an administrator.
        etcd: the address of etcd.
    """

    kubectl: Kubectl
    kubeconfig: Path
    etcd: str
    folder: Path

    def create(self, *objects: Mapping[str, Any]) -> None:
        """Create objects, each with its status."""
        for each in objects:
            kind, meta = str(each["kind"]), each["metadata"]
            path = _path(kind, str(meta.get("namespace", "")))
            self.kubectl.post(path, {**each, "apiVersion": _budgets()} if kind == "PodDisruptionBudget" else each)
            if "status" in each:
                place = ["--namespace", meta["namespace"]] if "namespace" in meta else []
                now = self.kubectl.object("get", kind.lower(), meta["name"], *place, "--output=json")
                status = dict(each["status"])
                if kind == "PodDisruptionBudget":
                    status["observedGeneration"] = now["metadata"]["generation"]
                whole = {**now, "status": status}
                self.kubectl.run(
                    "replace", f"--raw={path}/{meta['name']}/status", "--filename=-", text=json.dumps(whole)
                )

    def end_leaving_pods(self, _seconds: float = 0) -> None:
        """What the kubelets of live nodes do: pods that are being deleted end."""
        for pod in self.kubectl.list("pods"):
            if pod["metadata"].get("deletionTimestamp"):
                meta = pod["metadata"]
                self.kubectl.delete("pod", meta["name"], meta["namespace"], "--grace-period=0", "--force")


def _path(kind: str, namespace: str) -> str:
    if kind == "PodDisruptionBudget":
        return f"/apis/{_budgets()}/namespaces/{namespace}/poddisruptionbudgets"
    return f"/api/v1/namespaces/{namespace}/{kind.lower()}s" if namespace else f"/api/v1/{kind.lower()}s"


def _budgets() -> str:
    return "policy/v1" if minor() >= 21 else "policy/v1beta1"


@contextlib.contextmanager
def controllers(server: ApiServer, *names: str) -> Iterator[None]:
    """kube-controller-manager with these controllers, until the end of the block."""
    place = binaries()
    with (server.folder / "controllers.log").open("wb") as log:
        process = subprocess.Popen(
            [str(place / "kube-controller-manager"), f"--kubeconfig={server.kubeconfig}", "--leader-elect=false",
             f"--controllers={','.join(names)}", "--secure-port=0", *["--port=0"] * (minor() < 24),
             f"--service-account-private-key-file={server.folder / 'sa.key'}",
             *([f"--root-ca-file={authority}"] if (authority := server.folder / "ca.crt").exists() else [])],
            stdout=log, stderr=log, cwd=server.folder,
        )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def running(folder: Path, *more: str, quota: int = 0) -> Iterator[ApiServer]:
    """Both processes until the end of the block.

    Args:
        more: options of kube-apiserver.
        quota: bytes that etcd may store; 0 is its default.
    """
    place = binaries()
    client, peer, secure = (free_port() for _ in range(3))
    etcd = f"http://127.0.0.1:{client}"
    subprocess.run(["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"], check=True, capture_output=True)
    tokens = folder / "tokens.csv"
    tokens.write_text(f'{_TOKEN},admin,1,"system:masters"\n')
    kubeconfig = folder / "admin.conf"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1", "kind": "Config", "current-context": "a",
                "clusters": [{"name": "a", "cluster": {"server": f"https://127.0.0.1:{secure}",
                                                       "insecure-skip-tls-verify": True}}],
                "users": [{"name": "a", "user": {"token": _TOKEN}}],
                "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            }
        )
    )  # fmt: skip
    argvs = [
        ["etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
         f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
         f"--initial-cluster=default=http://127.0.0.1:{peer}",
         *([f"--quota-backend-bytes={quota}"] if quota else [])],
        [str(place / "kube-apiserver"), f"--etcd-servers={etcd}", f"--secure-port={secure}",
         "--bind-address=127.0.0.1", f"--cert-dir={folder / 'certs'}", f"--token-auth-file={tokens}",
         "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16",
         "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={folder / 'sa.key'}",
         f"--service-account-signing-key-file={folder / 'sa.key'}",
         "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
         "--advertise-address=127.0.0.1", *more],
    ]  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []
    kubectl = Kubectl(str(kubeconfig), str(place / "kubectl"))
    try:
        for argv in argvs:
            with (folder / f"{Path(argv[0]).name}.log").open("wb") as log:
                started.append(subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder))
        _await(kubectl, started, folder)
        yield ApiServer(kubectl, kubeconfig, etcd, folder)
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def openssl(folder: Path, *words: str) -> None:
    """Run openssl in a folder."""
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@contextlib.contextmanager
def running_with_kubelet(folder: Path, node: str) -> Iterator[tuple[ApiServer, Kubectl]]:
    """The API server as kubeadm configures it, with a CA in this folder (ca.crt, ca.key), and kubectl with the
    certificate of the kubelet of a node."""

    def signed(name: str, subject: str, *more: str) -> None:
        key = ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(folder, "req", *key, "-subj", subject)
        by = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", *by, *more, "-out", f"{name}.crt")

    key = ("-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt")
    openssl(folder, "req", "-x509", *key, "-subj", "/CN=ca")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    signed("server", "/CN=server", "-extfile", "san")
    signed("kubelet", f"/O=system:nodes/CN=system:node:{node}")
    more = (
        f"--tls-cert-file={folder}/server.crt", f"--tls-private-key-file={folder}/server.key",
        f"--client-ca-file={folder}/ca.crt", "--authorization-mode=Node", "--enable-admission-plugins=NodeRestriction",
    )  # fmt: skip
    with running(folder, *more) as started:
        config = json.loads(started.kubeconfig.read_text())
        user = {"client-certificate": f"{folder}/kubelet.crt", "client-key": f"{folder}/kubelet.key"}
        config["users"][0]["user"] = user
        (folder / "kubelet.conf").write_text(json.dumps(config))
        yield started, Kubectl(str(folder / "kubelet.conf"), started.kubectl._argv[0])


def _await(kubectl: Kubectl, started: list[subprocess.Popen[bytes]], folder: Path) -> None:
    log = folder / "kube-apiserver.log"

    def answers() -> bool:
        assert all(process.poll() is None for process in started), log.read_text(errors="replace")[-1500:]
        kubectl.run("get", "--raw=/readyz")
        return bool(kubectl.get("namespace", "default"))

    what = "the API server answers"
    wait_for(what, answers, interval=0.2, ignore=AgentError, state=lambda: log.read_text(errors="replace"))
