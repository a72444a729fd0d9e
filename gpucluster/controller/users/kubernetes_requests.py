"""What an operator's machine asks about users: that Kubernetes follows the directory, and what a kubeconfig needs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gpucluster.controller.kubernetes import apply, client_certificates, person_objects, service_access
from gpucluster.controller.kubernetes.person_objects import KubernetesUser
from gpucluster.controller.users import kubernetes, lock, nss
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.controller import DirectoryController
from gpucluster.controller.users.state import DirectoryState
from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.kubernetes.kubectl import Kubectl

OPERATOR = "gpucluster:operator"
_OPERATOR_ACCOUNT = "gpucluster-operator"
_HOUR_S = 3600


def follow(kubectl: Kubectl, _given: Mapping[str, Any]) -> dict[str, Any]:
    """Make Kubernetes follow the directory."""
    config = Config.load()
    with lock.held():
        return {"changed": kubernetes.follow(config, _directory(config), kubectl)}


def certificate(kubectl: Kubectl, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A certificate for an operator, or for the user that `user` names; with it, what a kubeconfig needs.

    Raises:
        Refused: the user may not use the cluster, or the request is not usable.
        Failed: the directory gives no answer, or there is no CA.
    """
    return _certificate(kubectl, _person(arguments), arguments.get("request"), arguments.get("hours"))


def token(kubectl: Kubectl, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A token for an operator, or for the user that `user` names; with it, what a kubeconfig needs. Where Oracle runs
    the control plane this takes the place of a certificate.

    Raises:
        Refused: the user may not use the cluster, or the hours are not usable.
        Failed: the directory or the API server gives no answer.
    """
    return _token(kubectl, _person(arguments), arguments.get("hours"))


def for_uid(kubectl: Kubectl, uid: int, request: str) -> dict[str, Any]:
    """A certificate or a token for the user with this uid, and what else their kubeconfig needs.

    Args:
        request: a certificate request as PEM; it counts for nothing where Oracle runs the control plane.

    Raises:
        Refused: no user who may use the cluster has this uid, the request is not usable, or there is no Kubernetes
            here.
        Failed: the directory or the API server gives no answer, or there is no CA.
    """
    config = Config.load()
    if config.kubernetes is None:
        raise Refused("this host is not the controller of a cluster with Kubernetes", "Run: gpucluster apply")
    person, hours = kubernetes.person_of_uid(config, _directory(config), uid), config.kubeconfig_hours
    engine = config.kubernetes_engine
    granted = _token(kubectl, person, hours) if engine else _certificate(kubectl, person, request, hours)
    return {**granted, "cluster": config.name}


def _certificate(kubectl: Kubectl, person: KubernetesUser | None, request: object, hours: object) -> dict[str, Any]:
    valid, now = client_certificates.checked_hours(hours, "a certificate"), time.time()
    user, groups = (person.name, []) if person else (OPERATOR, [person_objects.OPERATORS])
    return {
        "certificate": client_certificates.sign(request, user, groups, valid, now=now),
        "expires": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + valid * _HOUR_S)),
        "authority": (client_certificates.AUTHORITY / "ca.crt").read_text(encoding="utf-8"),
        "server": kubectl.server(),
        "user": user,
        "namespace": person.namespace if person else "default",
    }


def _token(kubectl: Kubectl, person: KubernetesUser | None, hours: object) -> dict[str, Any]:
    valid = client_certificates.checked_hours(hours, "a token")
    account, place = _OPERATOR_ACCOUNT, service_access.NAMESPACE
    if person:
        account, place = person.namespace, person_objects.ACCOUNTS_NAMESPACE
    else:
        apply.apply(kubectl, time.sleep, "operator", _operator())
    return {
        **service_access.requested_token(kubectl, account, place, valid * _HOUR_S),
        "authority": kubectl.authority(),
        "server": kubectl.server(),
        "user": person.name if person else OPERATOR,
        "namespace": person.namespace if person else "default",
    }


def _person(arguments: Mapping[str, Any]) -> KubernetesUser | None:
    """The user that `user` names; None for an operator."""
    if arguments.get("user") is None:
        return None
    config = Config.load()
    return kubernetes.person_named(config, _directory(config), arguments["user"])


def _operator() -> list[dict[str, Any]]:
    """The account of operators. It has no token of its own: each one is requested, and ends."""
    here = {"name": _OPERATOR_ACCOUNT, "namespace": service_access.NAMESPACE}
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": here, "automountServiceAccountToken": False},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": _OPERATOR_ACCOUNT},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", **here}],
        },
    ]


def _directory(config: Config) -> DirectoryState:
    return DirectoryController(config, nss.local_accounts(config)).state()
