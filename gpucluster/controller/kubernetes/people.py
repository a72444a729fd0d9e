"""Makes Kubernetes follow the directory: who has a namespace, who may use it, who operates the cluster.

It can be repeated at any time: it reads what is there with one request, and applies only what differs. Namespaces,
volumes and claims are never deleted: they are the data of users, as homes are.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gpucluster.controller.kubernetes import person_objects
from gpucluster.controller.kubernetes.person_objects import Api, KubernetesUser, Manifest, Quota
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.kubernetes import faults
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl

_LABELS = ",".join("=".join(pair) for pair in (person_objects.MANAGED_BY, person_objects.SET))
_KINDS = (
    "namespaces", "resourcequotas", "limitranges", "networkpolicies.networking.k8s.io", "persistentvolumes",
    "persistentvolumeclaims", "rolebindings.rbac.authorization.k8s.io", "clusterroles.rbac.authorization.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io", "serviceaccounts",
)  # fmt: skip
_POLICIES = "podsecuritypolicies.policy"
_ADMISSION = (
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
)
#: What is no longer needed is deleted, except for what holds data or keeps a closed namespace closed.
_DELETED = frozenset({"RoleBinding", "ClusterRoleBinding", "ClusterRole", "PodSecurityPolicy", "ServiceAccount"})
#: Seconds for a change of all objects of a thousand users.
_SECONDS = 900.0

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Synced:
    """What a synchronisation did.

    Args:
        applied: how many objects it has made or changed.
        deleted: how many it has deleted: the access of those who have none any more, and their pods.
        problems: what could not be done, and why.
    """

    applied: int
    deleted: int
    problems: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether anything did change."""
        return bool(self.applied or self.deleted)


def sync(kubectl: Kubectl, people: Sequence[KubernetesUser], quota: Quota, *, engine: bool = False) -> Synced:
    """Bring the cluster to the state of the directory.

    Access ends first, then the rest follows: an error with one user's objects leaves no user with rights that the
    directory has taken away.

    Args:
        engine: see `person_objects.objects`.

    Raises:
        Failed: the API server gives no answer, or refuses an object.
    """
    minor = kubectl.minor()
    present = _present(kubectl, minor)
    here, problems = _with_former(people, present)
    desired = {key_of(each): each for each in person_objects.objects(here, quota, minor, _api(kubectl), engine=engine)}
    deleted = 0
    for key in sorted(present.keys() - desired.keys()):
        if key[0] in _DELETED:
            kubectl.delete(key[0].lower(), key[2], key[1])
            deleted += 1
    # Roles and bindings come first in this order: with a binding's change access ends as well.
    changed = [each for key, each in desired.items() if _digest(present.get(key)) != _digest(each)]
    _apply(kubectl, sorted(changed, key=_order))
    deleted += _end_pods(kubectl, [person.namespace for person in here if not person.enabled])
    return Synced(len(changed), deleted, tuple(problems))


def key_of(manifest: Mapping[str, Any]) -> Key:
    """Kind, namespace ("" for none) and name."""
    meta = manifest["metadata"]
    return str(manifest["kind"]), str(meta.get("namespace", "")), str(meta["name"])


def _present(kubectl: Kubectl, minor: int) -> dict[Key, Manifest]:
    kinds = list(_KINDS)
    kinds += [_POLICIES] if minor <= person_objects.POLICIES_UNTIL else []
    kinds += _ADMISSION if minor >= person_objects.ADMISSION_SINCE else ()
    objects = kubectl.list(",".join(kinds), labels=_LABELS)
    return {key_of(each): each for each in objects}


def _with_former(
    people: Sequence[KubernetesUser], present: Mapping[Key, Manifest]
) -> tuple[list[KubernetesUser], list[str]]:
    """These users, and those who have a namespace and are in the directory no more: closed, it keeps what is in it."""
    notes_of = {key[2]: each["metadata"].get("annotations") or {} for key, each in present.items()
                if key[0] == "Namespace"}  # fmt: skip
    namespaces = {name: notes for name, notes in notes_of.items() if person_objects.UID in notes}
    here: dict[str, KubernetesUser] = {}
    problems = []
    for person in people:
        uid = namespaces.get(person.namespace, {}).get(person_objects.UID, str(person.uid))
        if uid != str(person.uid) or person.namespace in here:
            problems.append(
                f"{person.name} has no namespace in Kubernetes: {person.namespace} belongs to the uid {uid}. Delete it "
                "when its content is no longer needed: gpucluster kubectl -- delete namespace " + person.namespace
            )
        else:
            here[person.namespace] = person
    for name, notes in namespaces.items():
        if name in here:
            continue
        volume = present.get(("PersistentVolume", "", f"home-{name}"), {})
        home = str(volume.get("spec", {}).get("hostPath", {}).get("path", "/nonexistent"))
        gids = tuple(int(gid) for gid in notes.get(person_objects.GIDS, "").split(",") if gid.isdigit())
        former = KubernetesUser(
            notes.get(person_objects.USER_NAME, name), int(notes[person_objects.UID]), gids, home, False
        )
        if former.namespace == name:
            here[name] = former
    return list(here.values()), problems


def _digest(manifest: Mapping[str, Any] | None) -> str:
    return str(((manifest or {}).get("metadata", {}).get("annotations") or {}).get(person_objects.CONTENT, ""))


def _order(manifest: Mapping[str, Any]) -> int:
    order = ("ClusterRoleBinding", "ClusterRole", "Namespace", "PodSecurityPolicy", "ResourceQuota", "LimitRange",
             "NetworkPolicy")  # fmt: skip
    kind = manifest["kind"]
    # Access comes when everything that limits it is there.
    return order.index(kind) if kind in order else len(order) + (kind == "RoleBinding")


def _api(kubectl: Kubectl) -> Api:
    """Where the API server listens: a network policy sees this address, not that of the service."""
    parts = urlsplit(kubectl.server())
    port = parts.port or 443
    try:
        addresses = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Failed(f"{parts.hostname}, the address of the API server, can't be resolved: {error}") from error
    return Api(tuple(sorted({str(each[4][0]) for each in addresses})), port)


def _apply(kubectl: Kubectl, changed: Sequence[Manifest]) -> None:
    if changed:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(changed)})
        kubectl.run("apply", "--filename=-", "--output=name", text=text, seconds=_SECONDS, where="people")


def _end_pods(kubectl: Kubectl, namespaces: Iterable[str]) -> int:
    """End the pods of users who have no access; their quota starts no others."""
    closed = set(namespaces)
    if not closed:
        return 0
    ended = 0
    for pod in kubectl.list("pods"):
        meta = pod["metadata"]
        if meta["namespace"] in closed and not meta.get("deletionTimestamp"):
            try:
                kubectl.delete("pod", meta["name"], meta["namespace"])
                ended += 1
            except ApiFailed as error:
                if error.kind != faults.NOT_FOUND:
                    raise
    return ended
