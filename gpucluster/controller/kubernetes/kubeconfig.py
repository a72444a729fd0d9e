"""What a kubeconfig has: the access of one user to one cluster."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

#: A name in the certificate of every API server that kubeadm makes.
_SERVER_NAME = "kubernetes"


def encoded(pem: str) -> str:
    """The value of a `...-data` field."""
    return base64.b64encode(pem.encode()).decode()


def of_certificate(certificate: str, key: str) -> dict[str, str]:
    """What a user has who logs in with a certificate; both as PEM."""
    return {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}


def content(
    cluster: str, where: Mapping[str, Any], access: Mapping[str, Any], user: str = "", namespace: str = ""
) -> dict[str, Any]:
    """The content of a kubeconfig.

    Args:
        cluster: the name of the cluster there, and of the context.
        where: its address, and the CA of its certificate.
        access: what the user logs in with.
        user: the name of the user there; by default that of the cluster.
        namespace: for requests that name none.
    """
    context = {"cluster": cluster, "user": user or cluster, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": dict(where)}],
        "users": [{"name": user or cluster, "user": dict(access)}],
        "contexts": [{"name": cluster, "context": context}],
        "current-context": cluster,
    }


def of_person(cluster: str, granted: Mapping[str, str], key: str, local_port: int | None = None) -> dict[str, Any]:
    """The content of the kubeconfig of a user or an operator.

    Args:
        granted: the controller's answer: {server, authority, user, namespace, certificate or token}.
        key: of the certificate, as PEM.
        local_port: the file names this port of its own machine, which ssh forwards to the API server.
    """
    token = granted.get("token")
    where = {"server": granted["server"], "certificate-authority-data": encoded(granted["authority"])}
    if local_port is not None:
        # The certificate of OKE's API server has the address of its endpoint.
        name = urlsplit(granted["server"]).hostname or "" if token else _SERVER_NAME
        where.update({"server": f"https://127.0.0.1:{local_port}", "tls-server-name": name})
    access = {"token": token} if token else of_certificate(granted["certificate"], key)
    return content(cluster, where, access, granted["user"], granted["namespace"])


def holds_only(config: Any, cluster: str) -> bool:
    """Whether a kubeconfig has nothing but a cluster. Only such a file is replaced: others hold other access.

    Args:
        config: as it was read; it may be anything.
    """
    try:
        return [each["name"] for each in config["clusters"]] == [cluster]
    except (KeyError, TypeError):
        return False
