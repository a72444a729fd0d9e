"""Users, their keys and their requests against a real API server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from gpucluster.controller.kubernetes import client_certificates, people
from gpucluster.controller.kubernetes.person_objects import POLICIES_UNTIL, KubernetesUser, Quota
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl
from tests.controller.kubernetes.api_server import (
    ApiServer,
    binaries,
    minor,
)
from tests.waiting import wait_for

ADA = KubernetesUser("ada", 10001, (10001,), "/home/ada")
BOB = KubernetesUser("bob", 10002, (10002,), "/home/bob")
QUOTA = Quota(gpus=1, gpu_instances={"1g.10gb": 2}, cpus=4, memory_gb=8, pods=3)


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


class People:
    """The server, and kubectl as each user."""

    def __init__(self, server: ApiServer, authority: Path) -> None:
        self.server, self.admin, self.authority = server, server.kubectl, authority
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/O=system:masters/CN=admin",
                 "-keyout", str(authority / "own.key"), "-out", str(authority / "own.csr"))  # fmt: skip

    def log_in(self, name: str, *groups: str, now: float | None = None) -> Kubectl:
        """kubectl with a new certificate. Its request asks for rights that no user gets."""
        signed = client_certificates.sign(
            (self.authority / "own.csr").read_text(), name, groups, 1, self.authority, now
        )
        (self.authority / f"{name}.crt").write_text(signed)
        return self._kubectl(name)

    def _kubectl(self, name: str) -> Kubectl:
        file = self.authority / f"{name}.conf"
        program = f"{binaries()}/kubectl"
        config = [program, "config", f"--kubeconfig={file}"]
        for words in (
            ("set-cluster", "c", f"--server={self.admin.server()}", "--insecure-skip-tls-verify"),
            ("set-credentials", "u", f"--client-certificate={self.authority / name}.crt",
             f"--client-key={self.authority / 'own.key'}"),
            ("set-context", "x", "--cluster=c", "--user=u"),
            ("use-context", "x"),
        ):  # fmt: skip
            subprocess.run([*config, *words], check=True, capture_output=True)
        return Kubectl(str(file), program)

    def sync(self, *persons: KubernetesUser) -> people.Synced:
        """Follow the directory, and wait until the quotas of it are known."""
        done = people.sync(self.admin, persons, QUOTA)
        wait_for("the quotas are known", lambda: all(each["spec"]["hard"] == each.get("status", {}).get("hard")
                           for each in self.admin.list("resourcequotas")))  # fmt: skip
        return done


def pod(name: str, **more: Any) -> dict[str, Any]:
    """A pod of ada. Where the release gives it no uid, it names what the policy asks for."""
    given = more.pop("container", {})
    container = {"name": "main", "image": "nothing", **given}
    if minor() > POLICIES_UNTIL:
        own = {"runAsUser": ADA.uid, "runAsGroup": ADA.uid, "allowPrivilegeEscalation": False}
        container["securityContext"] = {**own, **given.get("securityContext", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **more}}


def refused(kubectl: Kubectl, pod: dict[str, Any]) -> bool:
    """Whether policies are enforced: an API server knows a new one some moments after it has stored it."""
    try:
        kubectl.run("create", "--filename=-", "--namespace=user-ada", "--dry-run=server", text=json.dumps(pod))
    except ApiFailed:
        return True
    return False
