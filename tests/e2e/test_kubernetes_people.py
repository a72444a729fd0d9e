"""Users of the directory on Kubernetes: a kubeconfig of their own, their home in pods, and what is refused.

Release 1.20 has PodSecurityPolicy. What newer releases do instead (Pod Security, ValidatingAdmissionPolicy) is tested
by its manifests alone: there is no newer API server here.
"""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.addresses import free_port
from tests.e2e.kubernetes_site import KubernetesSite, pod
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S
from tests.kubernetes_sources import TOOLS, programs
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(PATIENCE_TO_BUILD_S)]

SPACE = "user-alice"
SLEEP = ("sleep", "infinity")
HOME = {
    "volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "home"}}],
    "container": {"volumeMounts": [{"name": "home", "mountPath": "/home"}]},
}


@dataclass(frozen=True)
class Person:
    """kubectl on this machine, with a user's kubeconfig."""

    file: Path

    def try_kubectl(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        argv = [str(programs() / "kubectl"), f"--kubeconfig={self.file}", *words]
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        done = self.try_kubectl(*words, stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def create(self, made: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        return self.try_kubectl("create", "--filename=-", stdin=json.dumps(made))

    @contextmanager
    def having(self, made: dict[str, Any]) -> Iterator[str]:
        """An object to the end of the block: its kind and name."""
        created = self.create(made)
        assert created.returncode == 0, created.stderr
        name = f"{made['kind'].lower()}/{made['metadata']['name']}"
        try:
            yield name
        finally:
            self.try_kubectl("delete", name, "--ignore-not-found")


@pytest.fixture(scope="module")
def alice(kubernetes: KubernetesSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """Alice on this machine, by the forwarding that `gpucluster kubeconfig` prints."""
    file, port = tmp_path_factory.mktemp("people") / "alice.yaml", free_port()
    made = kubernetes.good("kubeconfig", "--user", "alice", "--local-port", str(port), str(file))
    assert file.stat().st_mode & 0o077 == 0
    assert (made["namespace"], made["user"]) == (SPACE, "alice")
    with subprocess.Popen(shlex.split(made["forward"]), stdin=subprocess.DEVNULL) as forward:
        try:
            kubernetes.until(
                "the forwarding listens, or has ended", lambda: forward.poll() is not None or _listens(port)
            )
            assert forward.poll() is None, f"{made['forward']} has ended"
            yield Person(file)
        finally:
            forward.terminate()


def test_a_pod_reads_and_writes_the_home_with_the_uid_of_its_user(kubernetes: KubernetesSite, alice: Person) -> None:
    uid = kubernetes.as_alice("id -u")
    kubernetes.as_alice("echo 'from a host' > for-pods")
    with alice.having(_pod("home", *SLEEP, **HOME)):
        alice.kubectl("wait", "--for=condition=Ready", "pod/home", f"--timeout={PATIENCE_S:.0f}s")
        assert alice.kubectl("exec", "home", "--", "id", "-u") == uid
        assert alice.kubectl("exec", "home", "--", "cat", "/home/for-pods") == "from a host"
        alice.kubectl("exec", "home", "--", "sh", "-c", "echo 'from a pod' > /home/for-hosts")
    assert kubernetes.as_alice("cat for-hosts; stat -c %u for-hosts; rm for-hosts for-pods") == f"from a pod\n{uid}"


def test_pods_of_a_job_have_the_uid_too(kubernetes: KubernetesSite, alice: Person) -> None:
    with alice.having(_job("uid", _pod("", "id", "-u"))):
        alice.kubectl("wait", "--for=condition=Complete", "job/uid", f"--timeout={PATIENCE_S:.0f}s")
        assert alice.kubectl("logs", "job/uid") == kubernetes.as_alice("id -u")


def test_a_job_gets_no_pod_that_its_user_may_not_have(kubernetes: KubernetesSite, alice: Person) -> None:
    more = {"container": {"securityContext": {"privileged": True}}}
    job = _job("bad", _pod("", *SLEEP, **more))
    with alice.having(job):
        of_job = "--field-selector=involvedObject.kind=Job,involvedObject.name=bad,reason=FailedCreate"
        kubernetes.until(
            "the job shows why it has no pod",
            lambda: "privileged" in alice.kubectl("get", "events", of_job, "--output=yaml"),
        )
        assert alice.kubectl("get", "pods", "--selector=job-name=bad") == ""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param({"container": {"securityContext": {"privileged": True}}}, "privileged", id="privileged"),
        pytest.param({"securityContext": {"runAsUser": 0}}, "runAsUser", id="root"),
        pytest.param({"securityContext": {"runAsUser": 4242}}, "runAsUser", id="another-uid"),
        pytest.param({"securityContext": {"supplementalGroups": [0]}}, "supplementalGroups", id="another-group"),
        pytest.param({"hostNetwork": True}, "hostNetwork", id="network-of-the-host"),
        pytest.param({"hostPID": True}, "hostPID", id="processes-of-the-host"),
        pytest.param({"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}, "hostPath", id="files-of-the-host"),
    ],
)
def test_a_pod_with_the_rights_of_a_host_is_refused(alice: Person, more: dict[str, Any], said: str) -> None:
    refused = alice.create(_pod("bad", *SLEEP, **more))
    assert refused.returncode != 0
    assert said in refused.stderr


def test_a_user_reaches_nothing_of_others(alice: Person) -> None:
    for words in (
        ("get", "secrets", "--namespace=kube-system"),
        ("get", "pods", "--all-namespaces"),
        ("create", "namespace", "mine"),
        ("delete", "networkpolicy", "closed"),
        ("delete", "resourcequota", "--all"),
        ("create", "rolebinding", "more", "--clusterrole=cluster-admin", "--user=alice"),
        ("run", "bad", f"--image={TOOLS}", "--namespace=gpucluster-operators"),
        ("label", "node", "work-1", "a=b"),
    ):
        refused = alice.try_kubectl(*words)
        assert refused.returncode != 0, words
        assert "forbidden" in refused.stderr.lower(), words


def test_on_a_host_of_the_cluster_the_file_needs_no_forwarding(kubernetes: KubernetesSite, tmp_path: Path) -> None:
    file = tmp_path / "alice.yaml"
    assert kubernetes.good("kubeconfig", "--user", "alice", str(file))["forward"] is None
    command = 'umask 077; f=$(mktemp); cat > "$f"; kubectl --kubeconfig "$f" get pods --output=name; rm "$f"'
    with_file = kubernetes.as_alice(f"{command} && echo good", stdin=file.read_text())
    assert with_file.splitlines()[-1] == "good"


def test_a_user_on_the_controller_makes_a_kubeconfig_themselves(kubernetes: KubernetesSite) -> None:
    made = kubernetes.as_alice("umask 022; gpucluster-kubeconfig && gpucluster-kubeconfig && stat -c %a ~/.kube/config")
    try:
        first, second, mode = made.splitlines()
        assert first == second or first.split(" until ")[0] == second.split(" until ")[0]
        assert f"alice, namespace {SPACE}, until " in first
        assert mode == "600"
        assert kubernetes.as_alice("kubectl auth can-i create pods") == "yes"
        assert kubernetes.as_alice("kubectl auth can-i create pods --namespace=default || true") == "no"
        # For her own machine: the name of the server is checked there, too.
        local = json.loads(kubernetes.as_alice("gpucluster-kubeconfig --local-port 16443 -"))
        assert local["clusters"][0]["cluster"]["tls-server-name"] == "kubernetes"
        # No other account is a user of the directory: not root, not a service.
        for nobody in ("root", "nobody"):
            command = f"runuser -u {nobody} -- gpucluster-kubeconfig - 2>&1 || echo refused"
            said = kubernetes.on(kubernetes.controller, "sh", "-c", command)
            assert said.endswith("refused\n"), said
            assert "no user of the cluster's directory" in said
        kubernetes.confirmed("user", "disable", "alice")
        again = kubernetes.on(
            kubernetes.controller, "sh", "-c", "runuser -u alice -- gpucluster-kubeconfig - 2>&1 || true"
        )
        assert "alice is disabled" in again
    finally:
        kubernetes.good("user", "enable", "alice")
        kubernetes.as_alice("rm -rf ~/.kube")


def test_who_is_disabled_has_no_access_and_no_pods(kubernetes: KubernetesSite, alice: Person) -> None:
    with alice.having(_pod("left", *SLEEP)):
        alice.kubectl("wait", "--for=condition=Ready", "pod/left", f"--timeout={PATIENCE_S:.0f}s")
        kubernetes.confirmed("user", "disable", "alice")
        try:
            # The API server learns of it a moment after what grants her rights is gone.
            kubernetes.until(
                "she has no access", lambda: "forbidden" in alice.try_kubectl("get", "pods").stderr.lower()
            )
            kubernetes.until("her pods are gone", lambda: not kubernetes.get("pods", f"--namespace={SPACE}")["items"])
        finally:
            kubernetes.good("user", "enable", "alice")
        kubernetes.until("she has access again", lambda: alice.try_kubectl("get", "pods").returncode == 0)
        assert alice.kubectl("get", "pods") == ""


def test_an_operator_has_every_right_by_kubectl_on_the_controller(kubernetes: KubernetesSite) -> None:
    listed = kubernetes.plain("kubectl", "--", "get", "secrets", "--namespace=kube-system", "--output=name")
    assert listed.returncode == 0
    assert "secret/" in listed.stdout


def _pod(name: str, *command: str, **more: Any) -> dict[str, Any]:
    """A pod that the scheduler gives a node, in the user's own namespace."""
    made = pod(name, "", "", *command, **more)
    del made["metadata"]["namespace"], made["spec"]["nodeName"]
    return made


def _job(name: str, of: dict[str, Any]) -> dict[str, Any]:
    """A Job that makes a pod as this one."""
    spec = {"template": {"spec": of["spec"]}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
