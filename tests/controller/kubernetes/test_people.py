"""Users against a real API server with its controllers: what it refuses them, and when."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.kubernetes import client_certificates, people
from gpucluster.controller.kubernetes.person_objects import OPERATORS, POLICIES_UNTIL, KubernetesUser, Quota
from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl
from tests.controller.kubernetes.api_server import (
    ApiServer,
    binaries,
    controllers,
    minor,
    needs_api_server,
    pod_security,
    running,
)
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, needs_api_server, pytest.mark.xdist_group("kubernetes-api-server")]

ADA = KubernetesUser("ada", 10001, (10001,), "/home/ada")
BOB = KubernetesUser("bob", 10002, (10002,), "/home/bob")
QUOTA = Quota(gpus=1, gpu_instances={"1g.10gb": 2}, cpus=4, memory_gb=8, pods=3)


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


class People:
    """The server, and kubectl as each user."""

    def __init__(self, server: ApiServer, authority: Path) -> None:
        self.server, self.admin, self.authority = server, server.kubectl, authority
        _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/O=system:masters/CN=admin",
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


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    folder = tmp_path_factory.mktemp("kubernetes-people")
    authority = folder / "pki"
    authority.mkdir()
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kubernetes",
             "-keyout", str(authority / "ca.key"), "-out", str(authority / "ca.crt"))  # fmt: skip
    more = (f"--client-ca-file={authority / 'ca.crt'}", *pod_security())
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running(folder, *more))
        stack.enter_context(controllers(server, "resourcequota"))
        yield People(server, authority)


@pytest.fixture
def start(world: People) -> People:
    world.sync(ADA, BOB)
    # PodSecurityPolicy is in force at once, and lets an administrator do everything.
    if minor() > POLICIES_UNTIL:
        as_root = _pod("root", container={"securityContext": {"runAsUser": 0}})
        wait_for("policies are enforced", lambda: _refused(world.admin, as_root))
    return world


def _pod(name: str, **more: Any) -> dict[str, Any]:
    """A pod of ada. Where the release gives it no uid, it names what the policy asks for."""
    given = more.pop("container", {})
    container = {"name": "main", "image": "nothing", **given}
    if minor() > POLICIES_UNTIL:
        own = {"runAsUser": ADA.uid, "runAsGroup": ADA.uid, "allowPrivilegeEscalation": False}
        container["securityContext"] = {**own, **given.get("securityContext", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **more}}


def _create(kubectl: Kubectl, pod: dict[str, Any], namespace: str = "user-ada") -> None:
    kubectl.post(f"/api/v1/namespaces/{namespace}/pods", pod)


def _refused(kubectl: Kubectl, pod: dict[str, Any]) -> bool:
    """Whether policies are enforced: an API server knows a new one some moments after it has stored it."""
    try:
        kubectl.run("create", "--filename=-", "--namespace=user-ada", "--dry-run=server", text=json.dumps(pod))
    except ApiFailed:
        return True
    return False


def test_a_second_synchronisation_changes_nothing(start: People) -> None:
    assert start.sync(ADA, BOB) == people.Synced(0, 0)
    assert start.sync(ADA, replace(BOB, gids=(10002, 10003))).applied == 1 + (
        minor() <= POLICIES_UNTIL
    )  # the namespace, a policy


def test_a_user_works_in_their_own_namespace_and_only_there(start: People) -> None:
    ada = start.log_in("ada")
    _create(ada, _pod("own"))
    assert [each["metadata"]["name"] for each in ada.list("pods", "user-ada")] == ["own"]
    # What the documentation states for all releases.
    documented = {"runAsUser": 10001, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    _create(ada, _pod("documented", securityContext=documented))
    ada.delete("pod", "documented", "user-ada", "--grace-period=0", "--force")
    # The policy of 1.20 gives the pod the uid of the user; a newer one asks for it.
    assert start.admin.get("pod", "own", "user-ada")["spec"]["containers"][0]["securityContext"]["runAsUser"] == 10001
    ada.list("nodes")
    ada.delete("pod", "own", "user-ada", "--grace-period=0", "--force")
    for words in (
        ("get", "secrets", "--namespace=user-bob"),
        ("get", "secrets", "--namespace=kube-system"),
        ("delete", "networkpolicy", "closed", "--namespace=user-ada"),
        ("delete", "resourcequota", "person", "--namespace=user-ada"),
        ("create", "rolebinding", "more", "--clusterrole=cluster-admin", "--user=ada", "--namespace=user-ada"),
        ("label", "namespace", "user-ada", "pod-security.kubernetes.io/enforce=privileged", "--overwrite"),
        ("get", "persistentvolumes"),
        ("get", "pods", "--namespace=user-ada", "--as=bob"),
    ):
        with pytest.raises(ApiFailed) as raised:
            ada.run(*words)
        assert raised.value.kind == "forbidden", words


def test_pods_of_root_of_another_uid_and_of_the_host_are_refused(start: People) -> None:
    ada = start.log_in("ada")
    for name, more, why in (
        (
            "privileged",
            {"container": {"securityContext": {"privileged": True, "allowPrivilegeEscalation": True}}},
            "[Pp]rivileged",
        ),
        ("root", {"container": {"securityContext": {"runAsUser": 0}}}, "runAsUser"),
        ("other", {"container": {"securityContext": {"runAsUser": 10002}}}, "runAsUser"),
        ("setuid", {"container": {"securityContext": {"allowPrivilegeEscalation": True}}}, "rivilege ?[Ee]scalation"),
        ("group", {"securityContext": {"supplementalGroups": [10002]}}, "upplemental"),
        ("network", {"hostNetwork": True}, "[Hh]ost ?[Nn]etwork"),
        ("host", {"volumes": [{"name": "h", "hostPath": {"path": "/home"}}]}, "hostPath"),
    ):
        with pytest.raises(ApiFailed, match=why):
            _create(ada, _pod(name, **more))


def test_the_quota_refuses_what_is_too_much(start: People) -> None:
    ada = start.log_in("ada")
    gpus = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    with pytest.raises(ApiFailed, match=r"exceeded quota: person.*nvidia.com/gpu"):
        _create(ada, _pod("gpus", container=gpus))
    instances = {"resources": {"limits": {"nvidia.com/mig-1g.10gb": "3"}}}
    with pytest.raises(ApiFailed, match=r"exceeded quota: person.*nvidia.com/mig-1g.10gb"):
        _create(ada, _pod("instances", container=instances))
    with pytest.raises(ApiFailed, match=r"exceeded quota: no-system-priority"):
        _create(ada, _pod("first", priorityClassName="system-node-critical"))
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "open"},
               "spec": {"type": "NodePort", "ports": [{"port": 80}], "selector": {"a": "b"}}}  # fmt: skip
    with pytest.raises(ApiFailed, match=r"services.nodeports"):
        ada.post("/api/v1/namespaces/user-ada/services", service)


def test_a_disabled_user_loses_access_at_once_and_their_pods_end(start: People) -> None:
    ada = start.log_in("ada")
    _create(ada, _pod("runs"))
    ada.run("create", "configmap", "kept", "--namespace=user-ada")
    start.sync(replace(ADA, enabled=False), BOB)
    for kind in ("pods", "nodes"):
        with pytest.raises(ApiFailed, match="forbidden"):
            ada.run("get", kind, "--namespace=user-ada")
    assert start.admin.list("pods", "user-ada") == []
    with pytest.raises(ApiFailed, match="exceeded quota"):
        _create(start.admin, _pod("again"))
    start.sync(ADA, BOB)
    assert ada.get("configmap", "kept", "user-ada")


def test_a_removed_user_leaves_a_closed_namespace_that_no_other_user_gets(start: People) -> None:
    bob = start.log_in("bob")
    bob.run("create", "configmap", "kept", "--namespace=user-bob")
    start.sync(ADA)
    with pytest.raises(ApiFailed, match="forbidden"):
        bob.run("get", "configmaps", "--namespace=user-bob")
    assert start.admin.get("configmap", "kept", "user-bob")
    done = start.sync(ADA, replace(BOB, uid=10009))
    assert "user-bob belongs to the uid 10002" in done.problems[0]
    with pytest.raises(ApiFailed, match="forbidden"):
        bob.run("get", "configmaps", "--namespace=user-bob")
    assert start.sync(ADA, BOB).problems == ()
    bob.run("delete", "configmap", "kept", "--namespace=user-bob")


def test_an_administrator_operates_the_cluster_until_the_directory_changes(start: People) -> None:
    bob = start.log_in("bob")
    start.sync(ADA, replace(BOB, privileged=True))
    bob.list("secrets", "kube-system")
    rights = {"privileged": True, "allowPrivilegeEscalation": True}
    privileged = _pod("tool", hostNetwork=True, container={"securityContext": rights})
    _create(bob, privileged, "gpucluster-operators")
    bob.delete("pod", "tool", "gpucluster-operators", "--grace-period=0", "--force")
    start.sync(ADA, BOB)
    with pytest.raises(ApiFailed, match="forbidden"):
        bob.list("secrets", "kube-system")
    start.log_in("gpucluster:operator", OPERATORS).list("secrets", "kube-system")


def test_a_certificate_that_has_expired_is_refused(start: People) -> None:
    old = start.log_in("ada", now=time.time() - 2 * 3600)
    with pytest.raises(ApiFailed) as raised:
        old.run("get", "pods", "--namespace=user-ada")
    assert raised.value.kind == "expired"


def test_a_request_asks_for_no_rights_by_its_own_names(start: People) -> None:
    # The request of these tests names system:masters.
    with pytest.raises(ApiFailed, match='User "eve" cannot list'):
        start.log_in("eve").list("secrets")


@pytest.mark.parametrize(
    ("request_text", "hours"), [("no", 1), (None, 1), ("-----BEGIN CERTIFICATE REQUEST-----\nx", 1)]
)
def test_what_is_not_a_request_is_refused(world: People, request_text: object, hours: int) -> None:
    with pytest.raises(Refused):
        client_certificates.sign(request_text, "ada", (), hours, world.authority)


@pytest.mark.parametrize("hours", [0, 721, "12", True, None])
def test_hours_out_of_the_range_are_refused(world: People, hours: object) -> None:
    with pytest.raises(Refused, match="1 to 720 hours"):
        client_certificates.sign((world.authority / "own.csr").read_text(), "ada", (), hours, world.authority)
