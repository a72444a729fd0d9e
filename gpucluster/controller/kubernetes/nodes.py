"""Nodes: what the API server has of each, and whether they take pods.

Everything here takes the name of a host, as it is in the inventory. A node of ours has that name, except with Oracle
Kubernetes Engine, which knows a node by its address: there a label has the name of the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.kubernetes import faults
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl, checked_name
from gpucluster.node_agent.rules.labels import HOST
from gpucluster.node_agent.rules.reasons import storable

#: The annotation with the reason why a command of gpucluster has cordoned a node. No other cordon has it.
REASON = "gpucluster.io/drain-reason"
#: Annotations of the autoscaler: why it has cordoned a node; that it was gpucluster that has.
WHY, CORDONED_BY, US = "gpucluster.io/why", "gpucluster.io/cordoned-by", "gpucluster"


def list_nodes(kubectl: Kubectl) -> list[dict[str, Any]]:
    """All nodes, as `described` has them, by the names of their hosts."""
    node_by_host = by_host(kubectl.list("nodes"))
    return [{**described(node), "name": host} for host, node in sorted(node_by_host.items())]


def by_host(nodes: Collection[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Nodes of the API by the name of their host. Pure.

    A kubelet sets the labels of its own node. So where two nodes claim to be one host, neither is it.
    """
    claims = Counter(map(_claimed, nodes))

    def name(node: Mapping[str, Any]) -> str:
        host = _claimed(node)
        return host if claims[host] == 1 else str(node["metadata"]["name"])

    return {name(node): node for node in nodes}


def _claimed(node: Mapping[str, Any]) -> str:
    meta = node["metadata"]
    return str((meta.get("labels") or {}).get(HOST) or meta["name"])


def find(kubectl: Kubectl, host: str) -> dict[str, Any]:
    """The node of a host.

    Raises:
        ApiFailed: its `kind` is `faults.NOT_FOUND` where there is none.
        Refused: several nodes claim to be this host.
    """
    try:
        return kubectl.get("node", host)
    except ApiFailed as error:
        if error.kind != faults.NOT_FOUND:
            raise
        nodes = kubectl.list("nodes", labels=f"{HOST}={host}")
        if not nodes:
            raise
    if len(nodes) > 1:
        names = ", ".join(sorted(str(each["metadata"]["name"]) for each in nodes))
        hint = f"Find out which one is wrong, and remove its label: kubectl label node NAME {HOST}-"
        raise Refused(f"several nodes have the label {HOST}={host}: {names}", hint)
    return nodes[0]


def described(node: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a node: {name, registered, ready, conditions, cordoned, reason, taints, version, runtime,
    labels, address, capacity, allocatable, created}; `name` and `registered` are what the API calls it, `ready` is
    "True", "False", or "Unknown" where its kubelet is silent.
    """
    meta, spec, status = (node.get(key) or {} for key in ("metadata", "spec", "status"))
    conditions = [
        {key: str(each.get(key, "")) for key in ("type", "status", "reason", "message", "lastTransitionTime")}
        for each in status.get("conditions") or []
    ]
    notes = meta.get("annotations") or {}
    info = status.get("nodeInfo") or {}
    addresses = {each.get("type"): each.get("address", "") for each in status.get("addresses") or []}
    return {
        "name": meta.get("name", ""),
        "registered": meta.get("name", ""),
        "ready": next((each["status"] for each in conditions if each["type"] == "Ready"), "Unknown"),
        "conditions": conditions,
        "cordoned": bool(spec.get("unschedulable")),
        "reason": notes.get(REASON) or (notes.get(WHY, "") if notes.get(CORDONED_BY) == US else ""),
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
    """Let no new pod start on a node. One that others have cordoned keeps their cordon: it gets no reason."""
    node = described(find(kubectl, name))
    if node["cordoned"] and not node["reason"]:
        return
    change = {"metadata": {"annotations": {REASON: storable(reason)}}, "spec": {"unschedulable": True}}
    kubectl.patch("node", node["registered"], change)


def uncordon(kubectl: Kubectl, name: str, *, anybody: bool = False) -> bool:
    """Let pods start on a node again; True if that was changed.

    Args:
        anybody: also where others have cordoned it.
    """
    node = described(find(kubectl, name))
    if not node["cordoned"] or not (node["reason"] or anybody):
        return False
    change = {"metadata": {"annotations": {REASON: None}}, "spec": {"unschedulable": None}}
    kubectl.patch("node", node["registered"], change)
    return True


def remove(kubectl: Kubectl, name: str) -> None:
    """Delete a node of the API server; its pods are deleted with it. It is not an error if there is none."""
    try:
        node = find(kubectl, checked_name(name))
    except ApiFailed as error:
        if error.kind != faults.NOT_FOUND:
            raise
        return
    kubectl.delete("node", node["metadata"]["name"])
