"""Which pods a drain concerns, and what refuses an eviction: pure, from objects of the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MIRROR = "kubernetes.io/config.mirror"
_ENDED = ("Succeeded", "Failed")

#: What becomes of a pod when its node is drained.
STAYS, ENDED, WORK, SERVICE, ALONE = "stays", "ended", "work", "service", "alone"


def name_of(item: Mapping[str, Any]) -> str:
    """`namespace/name` of an object."""
    meta = item.get("metadata") or {}
    return f"{meta.get('namespace', 'default')}/{meta.get('name', '')}"


def leaving(pod: Mapping[str, Any]) -> bool:
    """Whether the pod is being deleted."""
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def kind_of(pod: Mapping[str, Any]) -> str:
    """What becomes of a pod when its node is drained.

    Returns:
        `STAYS`: it belongs to the node (a DaemonSet or kubelet itself starts it). `ENDED`: it has ended. `WORK`: it
        runs to an end, so a drain waits for it. `SERVICE`: its controller starts another one elsewhere. `ALONE`:
        no controller starts another one.
    """
    meta, spec, status = (pod.get(key) or {} for key in ("metadata", "spec", "status"))
    owners = [each for each in meta.get("ownerReferences") or [] if each.get("controller")]
    if _MIRROR in (meta.get("annotations") or {}) or any(each.get("kind") in ("DaemonSet", "Node") for each in owners):
        return STAYS
    if status.get("phase") in _ENDED:
        return ENDED
    if spec.get("restartPolicy", "Always") != "Always" or any(each.get("kind") == "Job" for each in owners):
        return WORK
    return SERVICE if owners else ALONE


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a selector of labels takes these labels; None takes none and an empty one takes all."""
    if selector is None:
        return False
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    return all(_holds(each, labels) for each in selector.get("matchExpressions") or [])


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator, values = expression.get("key", ""), expression.get("operator"), expression.get("values") or []
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    return (key in labels) is (operator == "Exists")


def budgets_of(pod: Mapping[str, Any], budgets: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The disruption budgets that a pod counts for."""
    meta = pod.get("metadata") or {}
    labels = meta.get("labels") or {}
    return [
        each
        for each in budgets
        if (each.get("metadata") or {}).get("namespace") == meta.get("namespace") and selects(_selector(each), labels)
    ]


def _selector(budget: Mapping[str, Any]) -> Mapping[str, Any] | None:
    selector = (budget.get("spec") or {}).get("selector")
    # An empty one takes all pods since policy/v1, and none before.
    return None if selector == {} and str(budget.get("apiVersion", "")).endswith("v1beta1") else selector


def refused(pod: Mapping[str, Any], budgets: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Why a pod could not be evicted, and what to do.

    Args:
        budgets: all of the cluster.
    """
    own = budgets_of(pod, budgets)
    if not own:
        return f"pod {name_of(pod)} can't be evicted now: a disruption budget refuses it", "Try again"
    if len(own) > 1:
        names = ", ".join(name_of(each) for each in own)
        message = f"pod {name_of(pod)} can't be evicted: {len(own)} disruption budgets select it ({names}), not one"
        return message, "Delete all but one of them"
    budget = own[0]
    status, name = budget.get("status") or {}, name_of(budget)
    healthy, needed, expected = (
        int(status.get(key) or 0) for key in ("currentHealthy", "desiredHealthy", "expectedPods")
    )
    namespace, _, short = name.partition("/")
    change = f"change the budget: gpucluster ssh -- sudo kubectl --namespace {namespace} edit pdb {short}"
    message = f"pod {name_of(pod)} can't be evicted: the disruption budget {name} wants {needed} healthy pods"
    if expected <= needed:
        return (
            f"{message} of {expected}, so it never allows one to leave",
            f"Give its workload another replica, or {change}",
        )
    return f"{message}, and {healthy} of {expected} are", f"Wait until its other pods are ready, or {change}"
