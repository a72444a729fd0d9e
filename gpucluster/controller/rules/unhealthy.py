"""The taint with which the health service keeps new pods away from a node of Kubernetes whose checks failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster.node_agent.rules import reasons

TAINT, EFFECT = "gpucluster.io/unhealthy", "NoSchedule"
#: Annotation with the reason of our taint. A taint with our key and without it was set by others.
REASON = "gpucluster.io/unhealthy-reason"


def taints(node: Mapping[str, Any]) -> list[dict[str, str]]:
    """The taints of a node of the API."""
    return list((node.get("spec") or {}).get("taints") or [])


def reason_of(node: Mapping[str, Any]) -> str:
    """Why the health service keeps new pods away from a node of the API; empty if it does not.

    Its taint is the one of the check that the annotation names.
    """
    reason = str((node["metadata"].get("annotations") or {}).get(REASON, ""))
    expected = (TAINT, reasons.first_check(reason), EFFECT)
    ours = reasons.drained_by_checks(reason) and any(
        (each.get("key"), each.get("value", ""), each.get("effect")) == expected for each in taints(node)
    )
    return reason if ours else ""
