"""Nodes: what the API server says of each, and whether they take pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster.agent.kubernetes.kubectl import Kubectl, checked_name
from gpucluster.agent.rules.reasons import storable

#: The annotation with the reason why gpucluster has cordoned a node. Nobody else's cordon has it.
REASON = "gpucluster.io/drain-reason"


def list_nodes(kubectl: Kubectl) -> list[dict[str, Any]]:
    """All nodes, as `described` has them."""
    return sorted((described(each) for each in kubectl.list("nodes")), key=lambda each: str(each["name"]))


def described(node: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a node: {name, ready, conditions, cordoned, reason, taints, version, runtime, labels, address,
    capacity, allocatable, created}; `ready` is "True", "False", or "Unknown" where its kubelet is silent.
    """
    meta, spec, status = (node.get(key) or {} for key in ("metadata", "spec", "status"))
    conditions = [
        {key: str(each.get(key, "")) for key in ("type", "status", "reason", "message", "lastTransitionTime")}
        for each in status.get("conditions") or []
    ]
    info = status.get("nodeInfo") or {}
    addresses = {each.get("type"): each.get("address", "") for each in status.get("addresses") or []}
    return {
        "name": meta.get("name", ""),
        "ready": next((each["status"] for each in conditions if each["type"] == "Ready"), "Unknown"),
        "conditions": conditions,
        "cordoned": bool(spec.get("unschedulable")),
        "reason": (meta.get("annotations") or {}).get(REASON, ""),
        "taints": [
            {key: str(each.get(key, "")) for key in ("key", "value", "effect")} for each in spec.get("taints") or []
        ],
        "version": str(info.get("kubeletVersion", "")),
        "runtime": str(info.get("containerRuntimeVersion", "")),
        "labels": dict(meta.get("labels") or {}),
        "address": addresses.get("InternalIP", ""),
        "capacity": dict(status.get("capacity") or {}),
        "allocatable": dict(status.get("allocatable") or {}),
        "created": str(meta.get("creationTimestamp", "")),
    }


def cordon(kubectl: Kubectl, name: str, reason: str) -> None:
    """Let no new pod start on a node. One that somebody else has cordoned keeps their cordon: it gets no reason."""
    node = described(kubectl.get("node", name))
    if node["cordoned"] and not node["reason"]:
        return
    change = {"metadata": {"annotations": {REASON: storable(reason)}}, "spec": {"unschedulable": True}}
    kubectl.patch("node", name, change)


def uncordon(kubectl: Kubectl, name: str, *, anybody: bool = False) -> bool:
    """Let pods start on a node again; True if that was changed.

    Args:
        anybody: also where somebody else has cordoned it.
    """
    node = described(kubectl.get("node", name))
    if not node["cordoned"] or not (node["reason"] or anybody):
        return False
    kubectl.patch("node", name, {"metadata": {"annotations": {REASON: None}}, "spec": {"unschedulable": None}})
    return True


def remove(kubectl: Kubectl, name: str) -> None:
    """Delete a node of the API server; its pods are deleted with it. It is no error if there is none."""
    kubectl.delete("node", checked_name(name))
