"""Users against a real API server with its controllers: what it refuses them, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucluster.controller.kubernetes import people
from gpucluster.controller.kubernetes.person_objects import OPERATORS, POLICIES_UNTIL
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl
from tests.controller.kubernetes.api_server import (
    minor,
    needs_api_server,
)
from tests.controller.kubernetes.people_world import ADA, BOB, People, pod

pytestmark = [pytest.mark.slow, needs_api_server, pytest.mark.xdist_group("kubernetes-api-server")]


def _create(kubectl: Kubectl, pod: dict[str, Any], namespace: str = "user-ada") -> None:
    kubectl.post(f"/api/v1/namespaces/{namespace}/pods", pod)


def test_a_second_synchronisation_changes_nothing(start: People) -> None:
    assert start.sync(ADA, BOB) == people.Synced(0, 0)
    assert start.sync(ADA, replace(BOB, gids=(10002, 10003))).applied == 1 + (
        minor() <= POLICIES_UNTIL
    )  # the namespace, a policy


def test_a_user_works_in_their_own_namespace_and_only_there(start: People) -> None:
    ada = start.log_in("ada")
    _create(ada, pod("own"))
    assert [each["metadata"]["name"] for each in ada.list("pods", "user-ada")] == ["own"]
    # What the documentation states for all releases.
    documented = {"runAsUser": 10001, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    _create(ada, pod("documented", securityContext=documented))
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
            _create(ada, pod(name, **more))


def test_the_quota_refuses_what_is_too_much(start: People) -> None:
    ada = start.log_in("ada")
    gpus = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    with pytest.raises(ApiFailed, match=r"exceeded quota: person.*nvidia.com/gpu"):
        _create(ada, pod("gpus", container=gpus))
    instances = {"resources": {"limits": {"nvidia.com/mig-1g.10gb": "3"}}}
    with pytest.raises(ApiFailed, match=r"exceeded quota: person.*nvidia.com/mig-1g.10gb"):
        _create(ada, pod("instances", container=instances))
    with pytest.raises(ApiFailed, match=r"exceeded quota: no-system-priority"):
        _create(ada, pod("first", priorityClassName="system-node-critical"))
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "open"},
               "spec": {"type": "NodePort", "ports": [{"port": 80}], "selector": {"a": "b"}}}  # fmt: skip
    with pytest.raises(ApiFailed, match=r"services.nodeports"):
        ada.post("/api/v1/namespaces/user-ada/services", service)


def test_a_disabled_user_loses_access_at_once_and_their_pods_end(start: People) -> None:
    ada = start.log_in("ada")
    _create(ada, pod("runs"))
    ada.run("create", "configmap", "kept", "--namespace=user-ada")
    start.sync(replace(ADA, enabled=False), BOB)
    for kind in ("pods", "nodes"):
        with pytest.raises(ApiFailed, match="forbidden"):
            ada.run("get", kind, "--namespace=user-ada")
    assert start.admin.list("pods", "user-ada") == []
    with pytest.raises(ApiFailed, match="exceeded quota"):
        _create(start.admin, pod("again"))
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
    privileged = pod("tool", hostNetwork=True, container={"securityContext": rights})
    _create(bob, privileged, "gpucluster-operators")
    bob.delete("pod", "tool", "gpucluster-operators", "--grace-period=0", "--force")
    start.sync(ADA, BOB)
    with pytest.raises(ApiFailed, match="forbidden"):
        bob.list("secrets", "kube-system")
    start.log_in("gpucluster:operator", OPERATORS).list("secrets", "kube-system")
