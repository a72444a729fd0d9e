"""A service's own way to the API server: an account with the rights that it needs, and a kubeconfig with its token.

A token is there with every control plane: customers do not have the key of the CA of Oracle Kubernetes Engine, so no
certificate can be signed there. Kubernetes makes no such token by itself since 1.24, and still writes one into a Secret
that asks for it (documentation: "Manually create a long-lived API token for a ServiceAccount"). It has no end, so
nothing has to renew it. To take it back delete the service account: the next `keep` makes another one. To delete the
Secret is not enough, since the token has no date: another Secret of the same name brings the same token back.
"""

from __future__ import annotations

import base64
import binascii
import grp
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from gpucluster.controller.kubernetes import apply, kubeconfig
from gpucluster.node_agent.errors import Failed, Refused, of_system
from gpucluster.node_agent.kubernetes import faults
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl, checked_name

#: Accounts are here: their tokens are read by administrators of the cluster only.
NAMESPACE = "kube-system"
_RBAC = "rbac.authorization.k8s.io"
#: Seconds until the controller manager has written a token. On a control plane that was just made it starts later.
_TOKEN_WITHIN_S, _POLL_S = 60.0, 0.5


def account(name: str, rules: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The objects of an account: itself, the Secret of its token, its rights for the whole cluster.

    Args:
        name: of each of these objects.
        rules: of its ClusterRole.
    """
    here = {"name": name, "namespace": NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": here, "automountServiceAccountToken": False},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**here, "annotations": {"kubernetes.io/service-account.name": name}},
            "type": "kubernetes.io/service-account-token",
        },
        {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": list(rules)},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", **here}],
        },
    ]


def keep(kubectl: Kubectl, wait: Callable[[float], None], request: Mapping[str, Any]) -> bool:
    """Create the account and the kubeconfig of a service; returns whether anything was changed.

    Args:
        kubectl: with the rights of the administrator.
        wait: waits some seconds.
        request: {set: the name of the account's set of objects, account: its name, rules: its rights, file: the path of
            the kubeconfig, group: who else may read it, none by default}. With no rules the service needs no access:
            the account and the file are removed.

    Raises:
        Refused: the request is something else.
        Failed: the API server gives no answer, or makes no token; or the file can't be written.
    """
    name, rules = checked_name(request.get("account"), "service account"), request.get("rules", [])
    file, group = Path(str(request.get("file", ""))), str(request.get("group", ""))
    if not isinstance(rules, list) or not file.is_absolute():
        raise Refused("the rights of a service account are not a list, or its file has no absolute path")
    result = apply.apply(kubectl, wait, request.get("set"), account(name, rules) if rules else [])
    changed = bool(result["changed"] or result["removed"])
    try:
        if rules:
            return _write(file, _kubeconfig(kubectl, _secret(kubectl, wait, name)), group) or changed
        if file.exists():
            file.unlink()
            return True
    except KeyError:
        raise Failed(f"there is no group {group} on this host", "Run: gpucluster apply") from None
    except OSError as error:
        raise of_system(error) from None
    return changed


def requested_token(kubectl: Kubectl, name: str, namespace: str, seconds: int) -> dict[str, str]:
    """A token of a service account that ends by itself, or with the account: {token, expires (ISO 8601)}.

    Args:
        seconds: it shall be valid for; the API server may make it less.

    Raises:
        Failed: there is no such account, or the API server gives no answer.
    """
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": seconds},
    }
    # kubectl has `create token` from 1.24 on only.
    path = f"--raw=/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    where = f"service account {namespace}/{name}"
    status = kubectl.object("create", path, "--filename=-", text=json.dumps(body), where=where).get("status") or {}
    return {"token": str(status.get("token", "")), "expires": str(status.get("expirationTimestamp", ""))}


def _secret(kubectl: Kubectl, wait: Callable[[float], None], name: str) -> dict[str, str]:
    """The data of the Secret when its token is there."""
    waited = 0.0
    while True:
        try:
            data = kubectl.get("secret", name, NAMESPACE).get("data") or {}
        except ApiFailed as error:
            # The controller manager deletes a Secret whose account it does not know yet.
            if error.kind != faults.NOT_FOUND:
                raise
            data = {}
        if data.get("token") and data.get("ca.crt"):
            return {key: str(value) for key, value in data.items()}
        if waited >= _TOKEN_WITHIN_S:
            raise Failed(
                f"Kubernetes makes no token for {NAMESPACE}/{name} within {_TOKEN_WITHIN_S:.0f} s",
                "See whether kube-controller-manager runs: gpucluster kubernetes status; then run: gpucluster apply",
            )
        wait(_POLL_S)
        waited += _POLL_S


def _kubeconfig(kubectl: Kubectl, secret: Mapping[str, str]) -> str:
    try:
        token = base64.b64decode(secret["token"]).decode()
    except (binascii.Error, UnicodeDecodeError):
        hint = "Delete the service account, and run: gpucluster apply"
        raise Failed("the token of a service account can't be read", hint) from None
    where = {"server": kubectl.server(), "certificate-authority-data": secret["ca.crt"]}
    return json.dumps(kubeconfig.content("cluster", where, {"token": token}, "service"), indent=1) + "\n"


def _write(file: Path, text: str, group: str) -> bool:
    """Write the file if it is another one, or others may read it."""
    mode, gid = (0o640, grp.getgrnam(group).gr_gid) if group else (0o600, os.getegid())
    try:
        now = file.stat()
        if (now.st_mode & 0o777, now.st_uid, now.st_gid) == (mode, os.geteuid(), gid) and file.read_text() == text:
            return False
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    # mkstemp: the owner alone may read it, from the first byte on.
    handle, fresh = tempfile.mkstemp(dir=str(file.parent), prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            os.fchown(stream.fileno(), -1, gid)
            os.fchmod(stream.fileno(), mode)
        Path(fresh).replace(file)
    except BaseException:
        Path(fresh).unlink()
        raise
    return True
