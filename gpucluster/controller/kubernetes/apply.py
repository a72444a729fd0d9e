"""Objects that the cluster must have: applied, and removed when they are no longer needed.

Objects come in sets, each with a name. What a set had in an earlier run and has no more is removed; objects of other
sets, and those of users, are left alone. What holds data or objects of users is never removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.kubernetes.kubectl import Kubectl, checked_name

MANAGED_BY = ("app.kubernetes.io/managed-by", "gpucluster")
#: The label with the name of the set of an object.
SET = "gpucluster.io/set"
#: Before it, kubectl compares on the client. The API servers of 1.16 to 1.21 call the other way a beta.
SERVER_SIDE_SINCE = 22

_FIRST = ("Namespace", "CustomResourceDefinition")
# To remove one of these removes objects of others, or data.
_NEVER_REMOVED = frozenset({"Namespace", "CustomResourceDefinition", "PersistentVolume", "PersistentVolumeClaim"})
# What sets are made of. kubectl asks for each kind on its own, so it is not asked for all that an API server has.
_KINDS = frozenset(
    {
        "ConfigMap", "Secret", "ServiceAccount", "Service", "ResourceQuota", "LimitRange", "DaemonSet", "Deployment",
        "StatefulSet", "Job", "CronJob", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "NetworkPolicy",
        "PodSecurityPolicy", "PodDisruptionBudget", "PriorityClass", "RuntimeClass", *_NEVER_REMOVED,
    }
)  # fmt: skip
_SET_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_ESTABLISHED_WITHIN_S = 60.0
_POLL_S = 0.5
#: Seconds for a request with many objects.
_SECONDS = 120.0

Wait = Callable[[float], None]


class Served(NamedTuple):
    """A kind that the API server has.

    Attributes:
        resource: its name for kubectl, with the group: `daemonsets.apps`.
    """

    resource: str
    api_version: str
    kind: str


def apply(kubectl: Kubectl, wait: Wait, name: object, manifests: object) -> dict[str, list[str]]:
    """Apply a set of objects, and remove what it no longer has.

    Args:
        wait: waits some seconds.
        name: of the set.
        manifests: all objects that the set has now.

    Returns:
        {changed, removed, kept, waiting}: objects as `Kind namespace/name`. `kept` are no longer needed and must be
        removed by the operator; `waiting` are of kinds that the API server does not have: their operator is not
        installed.

    Raises:
        Refused: the request is not a set of objects.
        Failed: the API server does not take one, or does not answer; what came before it is applied.
    """
    if not isinstance(name, str) or not _SET_NAME.fullmatch(name):
        raise Refused(f"not the name of a set of objects: {str(name)[:60]!r}")
    desired = [_labelled(name, each) for each in _checked(manifests)]
    before = {_identity(each): each for each in _of_set(kubectl, served(kubectl), name)}
    first = [each for each in desired if each["kind"] in _FIRST]
    _send(kubectl, name, first)
    _await_definitions(kubectl, wait, [each for each in first if each["kind"] == _FIRST[1]])
    known = served(kubectl)
    pairs = {(each.api_version, each.kind) for each in known}
    waiting = [each for each in desired if (each["apiVersion"], each["kind"]) not in pairs]
    _send(kubectl, name, [each for each in desired if each not in first and each not in waiting])
    after = {_identity(each): each for each in _of_set(kubectl, known, name)}
    names = {_identity(each) for each in desired}
    left = {identity: each for identity, each in after.items() if identity not in names}
    removed = [each for each in left.values() if each["kind"] not in _NEVER_REMOVED]
    resources = {(each.api_version.partition("/")[0], each.kind): each.resource for each in known}
    for each in removed:
        resource = resources[(str(each["apiVersion"]).partition("/")[0], each["kind"])]
        kubectl.delete(resource, each["metadata"]["name"], each["metadata"].get("namespace", ""))
    return {
        "changed": sorted(
            _named(each)
            for identity, each in after.items()
            if identity in names and _content(each) != _content(before.get(identity))
        ),
        "removed": sorted(map(_named, removed)),
        "kept": sorted(_named(each) for each in left.values() if each["kind"] in _NEVER_REMOVED),
        "waiting": sorted(map(_named, waiting)),
    }


def served(kubectl: Kubectl) -> list[Served]:
    """The kinds that the API server has, of which objects can be listed and deleted."""
    lines = kubectl.run("api-resources", "--no-headers", "--verbs=list,delete,patch", where="kinds").splitlines()
    kinds = []
    for line in filter(str.strip, lines):
        # The second column, short names, may be empty.
        name, *_short_names, api_version, _namespaced, kind = line.split()
        group = api_version.rpartition("/")[0]
        kinds.append(Served(f"{name}.{group}" if group else name, api_version, kind))
    return kinds


def _checked(manifests: object) -> Sequence[dict[str, Any]]:
    if not isinstance(manifests, list):
        raise Refused("the objects are not a list")
    seen = set()
    for each in manifests:
        meta = each.get("metadata") if isinstance(each, dict) else None
        if not isinstance(meta, dict) or not all(isinstance(each.get(key), str) for key in ("apiVersion", "kind")):
            raise Refused(f"not an object of Kubernetes: {str(each)[:80]!r}")
        checked_name(meta.get("name"), each["kind"])
        if _identity(each) in seen:
            raise Refused(f"{_named(each)} is there twice")
        seen.add(_identity(each))
    return manifests


def _labelled(name: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    meta = manifest["metadata"]
    labels = {**(meta.get("labels") or {}), MANAGED_BY[0]: MANAGED_BY[1], SET: name}
    return {**manifest, "metadata": {**meta, "labels": labels}}


def _send(kubectl: Kubectl, name: str, manifests: Collection[Mapping[str, Any]]) -> None:
    if not manifests:
        return
    ours = ["--server-side", "--force-conflicts", "--field-manager=gpucluster"]
    words = ours if kubectl.minor() >= SERVER_SIDE_SINCE else []
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
    kubectl.run("apply", "--filename=-", *words, text=text, seconds=_SECONDS, where=f"objects of {name}")


def _await_definitions(kubectl: Kubectl, wait: Wait, definitions: Collection[Mapping[str, Any]]) -> None:
    """Wait until the API server serves new kinds; an object of a kind before that is refused."""
    waited = 0.0
    left = {each["metadata"]["name"] for each in definitions}
    while left:
        by_name = {each["metadata"]["name"]: each for each in kubectl.list("customresourcedefinitions")}
        left = {name for name in left if not _established(by_name.get(name, {}))}
        if left and waited >= _ESTABLISHED_WITHIN_S:
            names = ", ".join(sorted(left))
            raise Failed(
                f"the API server does not serve these kinds within {_ESTABLISHED_WITHIN_S:.0f} s: {names}",
                f"See: kubectl describe customresourcedefinition {min(left)}",
            )
        if left:
            wait(_POLL_S)
            waited += _POLL_S


def _established(definition: Mapping[str, Any]) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or []
    return any(each.get("type") == "Established" and each.get("status") == "True" for each in conditions)


def _of_set(kubectl: Kubectl, known: Collection[Served], name: str) -> list[dict[str, Any]]:
    """The objects that have the label of a set. Kinds of operators count, too: their groups are not those of
    Kubernetes.
    """
    resources = {
        each.kind if _builtin(each) else each.resource: each.resource
        for each in known
        if not _builtin(each) or each.kind in _KINDS
    }
    return kubectl.list(",".join(sorted(resources.values())), labels=f"{SET}={name}")


def _builtin(kind: Served) -> bool:
    group = kind.api_version.rpartition("/")[0]
    return "." not in group or group.endswith(".k8s.io")


def _identity(manifest: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """What identifies an object, in whatever version of its group."""
    meta = manifest["metadata"]
    group = str(manifest["apiVersion"]).rpartition("/")[0]
    return group, str(manifest["kind"]), str(meta.get("namespace") or ""), str(meta["name"])


def _named(manifest: Mapping[str, Any]) -> str:
    _group, kind, namespace, name = _identity(manifest)
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def _content(manifest: Mapping[str, Any] | None) -> str:
    """What of an object is not counted, stamped or reported by the API server and its controllers."""
    if manifest is None:
        return ""
    meta = {key: value for key, value in manifest["metadata"].items() if key in ("labels", "uid")}
    rest = {key: value for key, value in manifest.items() if key not in ("metadata", "status")}
    return json.dumps([meta, rest], sort_keys=True)
