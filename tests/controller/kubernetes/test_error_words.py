"""What errors of kubectl and objects of the API mean, by the words of real ones."""

from __future__ import annotations

import calendar
import time

import pytest

from gpucluster.controller.kubernetes import namespaces, pods
from gpucluster.controller.kubernetes.drain import Left, unfinished
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.kubernetes import faults
from gpucluster.node_agent.kubernetes.kubectl import Kubectl, checked_name
from tests.controller.kubernetes.objects import budget, pod


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("The connection to the server 10.0.0.2:6443 was refused - did you specify the right host or port?",
         faults.DEAD, "gives no answer: The connection to the server 10.0.0.2:6443 was refused"),
        ("Unable to connect to the server: net/http: TLS handshake timeout", faults.DEAD, "gives no answer"),
        ("Error from server: etcdserver: request timed out", faults.DEAD, "etcd on the controller gives no answer"),
        ("Error from server: etcdserver: mvcc: database space exceeded", faults.SPACE, "etcd is full"),
        ("Unable to connect to the server: x509: certificate has expired or is not yet valid: current time "
         "2027-01-01T00:00:00Z is after 2026-12-01T00:00:00Z", faults.EXPIRED, "not valid now"),
        ("error: You must be logged in to the server (Unauthorized)", faults.EXPIRED, "token in x.kubeconfig"),
        ('Error from server (NotFound): nodes "x" not found', faults.NOT_FOUND, 'nodes "x" not found'),
        ("Error from server (TooManyRequests): Cannot evict pod as it would violate the pod's disruption budget.",
         faults.BUDGET, "Cannot evict pod"),
        ('Error from server (Conflict): Operation cannot be fulfilled on nodes "a": the object has been modified',
         faults.CONFLICT, "Operation cannot be fulfilled"),
        ("error: stat /etc/kubernetes/admin.conf: no such file or directory", faults.DEAD, "no control plane"),
        ("", faults.OTHER, "kubectl ended with status 7"),
    ],
)  # fmt: skip
def test_the_last_words_of_kubectl(said: str, kind: str, words: str) -> None:
    found = faults.explained(said, 7, "x.kubeconfig")
    assert found.kind == kind
    assert words in found.message
    assert "\n" not in found.message
    if kind in faults.OF_THE_SERVER:
        assert "gpucluster" in found.hint


def test_a_kubectl_that_is_not_installed_reports_what_installs_it() -> None:
    with pytest.raises(Failed, match="not installed") as raised:
        Kubectl(program="/nonexistent/kubectl").list("nodes")
    assert raised.value.hint == "Run: gpucluster apply"


@pytest.mark.parametrize("name", ["--all", "-x", "a b", "", None, "a/b", "A"])
def test_only_names_reach_the_command_line(name: object) -> None:
    with pytest.raises(Refused):
        checked_name(name)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (pod("a", "n"), pods.SERVICE),
        (pod("a", "n", "StatefulSet"), pods.SERVICE),
        (pod("a", "n", "DaemonSet"), pods.STAYS),
        (pod("a", "n", "Job", restart="Never"), pods.WORK),
        (pod("a", "n", "PyTorchJob", restart="Never"), pods.WORK),
        (pod("a", "n", "", restart="Never"), pods.WORK),
        (pod("a", "n", "", phase="Failed", restart="Never"), pods.ENDED),
        (pod("a", "n", ""), pods.ALONE),
    ],
)
def test_what_becomes_of_a_pod(found: dict[str, object], kind: str) -> None:
    assert pods.kind_of(found) == kind


def test_a_pod_that_kubelet_itself_starts_stays() -> None:
    mirror = pod("etcd", "n", "Node")
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "1"}
    assert pods.kind_of(mirror) == pods.STAYS


@pytest.mark.parametrize(
    ("selector", "taken"),
    [
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "db"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
        ({}, True),
        (None, False),
    ],
)
def test_selectors(selector: dict[str, object] | None, taken: bool) -> None:
    assert pods.selects(selector, {"app": "web"}) is taken


def test_an_empty_selector_took_no_pod_before_policy_v1() -> None:
    old, new = budget("all", 1, 1, 1), {**budget("all", 1, 1, 1), "apiVersion": "policy/v1"}
    for each in (old, new):
        each["spec"]["selector"] = {}
    assert [each["apiVersion"] for each in pods.budgets_of(pod("a", "n", app="x"), [old, new])] == ["policy/v1"]


def test_a_refusal_reports_what_would_help() -> None:
    web = pod("web-1", "n", app="web")
    message, hint = pods.refused(web, [budget("web", 2, 2, 3, app="web"), budget("db", 1, 1, 1, app="db")])
    assert "budget default/web wants 2 healthy pods, and 2 of 3 are" in message
    assert "Wait until its other pods are ready" in hint
    message, hint = pods.refused(web, [budget("web", 1, 1, 1, app="web")])
    assert "of 1, so it never allows one to leave" in message
    assert "another replica" in hint
    message, _ = pods.refused(web, [budget("one", 1, 1, 1, app="web"), budget("two", 1, 1, 1, app="web")])
    assert "default/one, default/two" in message


def test_an_unfinished_drain_names_what_is_left_and_how_to_go_on() -> None:
    left = Left([f"user-a/train-{number}" for number in range(7)], {"default/web": ("web can't go", "Edit it")})
    error = unfinished(["n1"], left, 60)
    assert "n1 can't be drained: after 60 s" in error.message
    assert "user-a/train-4 and 2 more" in error.message
    assert error.hint.startswith("Edit it. ")
    assert "--drain-timeout 0" in error.hint


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("NamespaceDeletionDiscoveryFailure", "get apiservices"),
        ("NamespaceFinalizersRemaining", "edit KIND NAME"),
        ("NamespaceContentRemaining", "get all"),
    ],
)
def test_a_namespace_that_does_not_end(kind: str, hint: str) -> None:
    meta = {"name": "user-a", "deletionTimestamp": "2026-11-23T00:00:00Z"}
    condition = {"type": kind, "status": "True", "message": "2 pods, example.com/x in 1 resource"}
    deleted = {"metadata": meta, "status": {"conditions": [condition]}}
    began = calendar.timegm(time.strptime(meta["deletionTimestamp"], "%Y-%m-%dT%H:%M:%SZ"))
    assert namespaces.stuck(deleted, began + 119) is None, "its pods may be ending"
    found = namespaces.stuck(deleted, began + 120)
    assert found is not None
    assert "user-a does not end since 2026-11-23T00:00:00Z: 2 pods" in found[0]
    assert hint in found[1]
    assert namespaces.stuck({"metadata": {"name": "user-a"}}, 0) is None
