"""What an operator's machine asks about people: that Kubernetes follows the directory, and certificates of clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster.agent.kubernetes import client_certificates, person_objects
from gpucluster.agent.kubernetes.kubectl import Kubectl
from gpucluster.agent.users import kubernetes, lock, nss
from gpucluster.agent.users.config import Config
from gpucluster.agent.users.controller import Controller
from gpucluster.agent.users.state import State

OPERATOR = "gpucluster:operator"


def follow(kubectl: Kubectl, _given: Mapping[str, Any]) -> dict[str, Any]:
    """Make Kubernetes follow the directory."""
    config = Config.load()
    with lock.held():
        return {"changed": kubernetes.follow(config, _directory(config), kubectl)}


def certificate(kubectl: Kubectl, given: Mapping[str, Any]) -> dict[str, Any]:
    """A certificate for an operator, or for the person that `user` names; with it, what a kubeconfig needs.

    Raises:
        Refused: the person may not use the cluster, or the request is not usable.
        Failed: the directory gives no answer, or there is no authority.
    """
    user, groups, namespace = OPERATOR, [person_objects.OPERATORS], "default"
    if given.get("user") is not None:
        config = Config.load()
        person = kubernetes.checked_person(config, _directory(config), given["user"])
        user, groups, namespace = person.name, [], person.namespace
    return {
        "certificate": client_certificates.sign(given.get("request"), user, groups, given.get("hours")),
        "authority": (client_certificates.AUTHORITY / "ca.crt").read_text(encoding="utf-8"),
        "server": kubectl.server(),
        "user": user,
        "namespace": namespace,
    }


def _directory(config: Config) -> State:
    return Controller(config, nss.local_accounts(config)).state()
