"""What becomes of the pods of a node that is drained, by objects as a real API has them."""

from __future__ import annotations

import pytest

from gpucluster.controller.kubernetes import pods
from tests.controller.kubernetes.objects import budget, pod


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
