"""Labels and taints of nodes, and devices that are emulated."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gpucluster.controller.kubernetes import nodes
from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.kubernetes import faults
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl, checked_name
from gpucluster.node_agent.rules.devices import GPU_RESOURCES
from gpucluster.node_agent.rules.labels import HOST

#: A node with it offers devices that it does not have.
EMULATED = "gpucluster.io/emulated"
_OUR_LABELS = "gpucluster.io/"
#: Our taints of nodes with GPUs. An administrator's taint with the same key has another value.
_OUR_TAINTS = tuple((name, "present") for name in GPU_RESOURCES.values())
_RESOURCE = re.compile(r"[a-z0-9.-]+\.[a-z]+/[a-z0-9.-]+")
_TRIES = 5


def arrange(kubectl: Kubectl, pools: object) -> dict[str, list[str]]:
    """Set the labels and taints of nodes, and let them offer emulated devices.

    kubelet sets labels and taints only when it registers a node, and forgets emulated devices when it starts.

    Args:
        pools: pools, each as {nodes, labels, taints, emulated}; `nodes` are names of hosts, `emulated` has a number for
            the name of each resource.

    Returns:
        {changed, absent}: the nodes that were changed, and those that Kubernetes does not know.

    Raises:
        Refused: the pools are something else.
        Failed: the API server does not take it, or does not answer.
    """
    if not isinstance(pools, list) or not all(isinstance(pool, dict) for pool in pools):
        raise Refused("the pools are not a list of objects")
    pool_by_node = {}
    for pool in pools:
        names = pool.get("nodes")
        if not isinstance(names, list):
            raise Refused("the nodes of a pool are not a list")
        for name in names:
            pool_by_node[checked_name(name)] = pool
        _check(pool)
    if not pool_by_node:
        return {"changed": [], "absent": []}
    there = {each["name"]: each["registered"] for each in nodes.list_nodes(kubectl)}
    changed = [
        name for name in sorted(pool_by_node) if name in there and _arranged(kubectl, there[name], pool_by_node[name])
    ]
    return {"changed": changed, "absent": sorted(set(pool_by_node) - set(there))}


def _check(pool: Mapping[str, Any]) -> None:
    labels, taints, emulated = pool.get("labels", {}), pool.get("taints", []), pool.get("emulated", {})
    if not isinstance(labels, dict) or not isinstance(taints, list) or not isinstance(emulated, dict):
        raise Refused("labels, taints and emulated devices of nodes can't be read")
    for taint in taints:
        if not isinstance(taint, dict) or not {"key", "effect"} <= set(taint):
            raise Refused(f"not a taint: {str(taint)[:60]!r}")
    for resource, amount in emulated.items():
        if not _RESOURCE.fullmatch(str(resource)) or not str(amount).isdigit():
            raise Refused(f"not a number of devices: {str(resource)[:60]!r}")


def _arranged(kubectl: Kubectl, name: str, pool: Mapping[str, Any]) -> bool:
    """Change one node; whether there was something to change. Others change nodes at the same time, so try again."""
    for attempt in range(1, _TRIES + 1):
        try:
            node = kubectl.get("node", name)
            changed = _described(kubectl, name, node, pool)
            return _offering(kubectl, name, pool.get("emulated", {})) or changed
        except ApiFailed as error:
            if error.kind != faults.CONFLICT or attempt == _TRIES:
                raise
    raise AssertionError("unreachable")


def _described(kubectl: Kubectl, name: str, node: Mapping[str, Any], pool: Mapping[str, Any]) -> bool:
    labels = {str(key): str(value) for key, value in pool.get("labels", {}).items()}
    if pool.get("emulated"):
        labels[EMULATED] = "true"
    has = (node.get("metadata") or {}).get("labels") or {}
    # A label with the value null is removed.
    changes: dict[str, str | None] = {key: value for key, value in labels.items() if has.get(key) != value}
    ours = {key for key in has if key.startswith(_OUR_LABELS)} - {HOST}
    changes.update({key: None for key in has if key in ours and key not in labels})
    taints = (node.get("spec") or {}).get("taints") or []
    keys = {(each["key"], each["effect"]) for each in pool.get("taints", [])}
    others = [
        each
        for each in taints
        if (each["key"], each.get("value")) not in _OUR_TAINTS and (each["key"], each["effect"]) not in keys
    ]
    target = [*others, *pool.get("taints", [])]
    change: dict[str, Any] = {"metadata": {"labels": changes}} if changes else {}
    if sorted(map(_comparable, target)) != sorted(map(_comparable, taints)):
        # With the version, so that a taint that another program sets at the same time is not lost.
        change["spec"] = {"taints": target}
        change.setdefault("metadata", {})["resourceVersion"] = node["metadata"]["resourceVersion"]
    if change:
        kubectl.patch("node", name, change)
    return bool(change)


def _comparable(taint: Mapping[str, Any]) -> str:
    return json.dumps([taint.get("key"), taint.get("value", ""), taint.get("effect")])


def _offering(kubectl: Kubectl, name: str, emulated: Mapping[str, Any]) -> bool:
    """Write devices into the status of a node (in Kubernetes' documentation: "Advertise Extended Resources")."""
    node = kubectl.get("node", name)
    status = node.get("status") or {}
    devices = {str(resource): str(amount) for resource, amount in emulated.items()}
    parts = {key: {**(status.get(key) or {}), **devices} for key in ("capacity", "allocatable")}
    if all(parts[key] == (status.get(key) or {}) for key in parts):
        return False
    whole = {**node, "status": {**status, **parts}}
    # kubectl has --subresource from 1.24 on only.
    words = ["replace", f"--raw=/api/v1/nodes/{name}/status", "--filename=-"]
    kubectl.run(*words, text=json.dumps(whole), where=f"node {name}")
    return True
