"""Objects of the API as tests need them."""

from __future__ import annotations

from typing import Any

#: Of a pod, a node and a budget; every other key of an object is the API server's.
CONTAINER = {"name": "main", "image": "nothing"}


def node(name: str, ready: str = "True") -> dict[str, Any]:
    """A node whose kubelet has reported."""
    conditions = [{"type": "Ready", "status": ready, "reason": "KubeletReady", "message": "it said so"}]
    info = dict.fromkeys(
        ("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion",
         "kubeProxyVersion", "operatingSystem", "architecture"), "x",
    )  # fmt: skip
    info["kubeletVersion"] = "v1.20.2"
    status = {"conditions": conditions, "capacity": {"nvidia.com/gpu": "8"}, "nodeInfo": info,
              "addresses": [{"type": "InternalIP", "address": "10.0.1.2"}]}  # fmt: skip
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def pod(
    name: str, on: str, owner: str = "ReplicaSet", *, phase: str = "Running", restart: str = "Always", **labels: str
) -> dict[str, Any]:
    """A pod on a node; `owner` is the kind of its controller, "" for none."""
    meta: dict[str, Any] = {"name": name, "namespace": "default", "labels": labels}
    if owner:
        meta["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": owner, "name": "its-owner", "uid": "u1", "controller": True}
        ]
    spec = {"nodeName": on, "restartPolicy": restart, "containers": [CONTAINER]}
    status = {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def budget(name: str, healthy: int, needed: int, expected: int, **labels: str) -> dict[str, Any]:
    """A disruption budget as its controller has judged it."""
    return {
        "apiVersion": "policy/v1beta1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minAvailable": needed, "selector": {"matchLabels": labels}},
        "status": {
            "currentHealthy": healthy, "desiredHealthy": needed, "expectedPods": expected,
            "disruptionsAllowed": max(0, healthy - needed), "observedGeneration": 1,
        },
    }  # fmt: skip
