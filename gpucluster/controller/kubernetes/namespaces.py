"""A namespace that does not end: what keeps it, in words. Pure, but for `look`."""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping
from typing import Any

from gpucluster.node_agent.kubernetes.kubectl import Kubectl

#: Seconds in which a namespace may end as it should: its pods get the time that they ask for.
PATIENCE_S = 120.0
# What the namespace controller reports of a namespace that it can't empty; it knows them since 1.16.
_TELLING = (
    "NamespaceDeletionDiscoveryFailure",
    "NamespaceDeletionGroupVersionParsingFailure",
    "NamespaceDeletionContentFailure",
    "NamespaceFinalizersRemaining",
    "NamespaceContentRemaining",
)


def stuck(namespace: Mapping[str, Any], now: float) -> tuple[str, str] | None:
    """Why a namespace that was deleted is still there, and what to do; None if it is not being deleted, or just now.

    Args:
        namespace: the object of the API.
        now: seconds since 1970.
    """
    meta, status = namespace.get("metadata") or {}, namespace.get("status") or {}
    if not meta.get("deletionTimestamp") or now - _seconds(str(meta["deletionTimestamp"])) < PATIENCE_S:
        return None
    name = str(meta.get("name", ""))
    true = {str(each.get("type")): each for each in status.get("conditions") or [] if each.get("status") == "True"}
    messages = [str(true[kind].get("message", "")) for kind in _TELLING if kind in true]
    why = "; ".join(filter(None, messages)) or "its controller has not reported why"
    message = f"namespace {name} does not end since {meta['deletionTimestamp']}: {why}"
    if "NamespaceDeletionDiscoveryFailure" in true:
        hint = "An API service that is registered gives no answer: gpucluster ssh -- sudo kubectl get apiservices"
    elif "NamespaceFinalizersRemaining" in true:
        hint = (
            "Start the program again that removes these finalizers; or, if it is gone for ever, remove them from the "
            f"objects: gpucluster ssh -- sudo kubectl --namespace {name} edit KIND NAME"
        )
    else:
        hint = f"See what is left in it: gpucluster ssh -- sudo kubectl --namespace {name} get all"
    return message, hint


def _seconds(timestamp: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(timestamp, "%Y-%m-%dT%H:%M:%SZ")))
    except ValueError:
        return 0.0


def look(kubectl: Kubectl) -> list[dict[str, str]]:
    """The namespaces that were deleted and are still there: [{name, message, hint}]."""
    problems = []
    for each in kubectl.list("namespaces"):
        reason = stuck(each, time.time())
        if reason is not None:
            problems.append({"name": str(each["metadata"]["name"]), "message": reason[0], "hint": reason[1]})
    return problems
