"""Who a token of Kubernetes Engine belongs to: the API server of a cluster asks, as OKE's asks its service.

A token is the URL of a request that its owner has signed: GET https://containerengine.REGION.../cluster_request/CLUSTER,
with the headers `authorization` and `date` as its query, in base64 (oracle/oci-cli: `oci ce cluster generate-token`).
The request is never sent: its signature proves the caller, for five minutes. A node knows the address of its cluster
and not the OCID, so its token has the address in this place.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpucluster.localcloud.auth.authorization import grants
from gpucluster.localcloud.auth.signing import SignatureRefused, verify
from gpucluster.localcloud.state.cloud import CloudState, log
from gpucluster.localcloud.state.region import REGION
from gpucluster.localcloud.state.store import Resource

_OPERATION = "AuthenticateToCluster"
_MASTERS = "system:masters"
_MANAGE, _JOIN, _USE = "CLUSTER_MANAGE", "CLUSTER_JOIN", "CLUSTER_USE"


def node_name(instance: Resource) -> str:
    """The name of the node that an instance becomes: its address, as on OKE."""
    return str(instance.hidden["ip"])


def review(cloud: CloudState, cluster: Resource, token: str) -> Mapping[str, Any]:
    """The status of a TokenReview.

    The operator, and an instance with CLUSTER_MANAGE, is an administrator of Kubernetes. An instance with CLUSTER_JOIN
    is the node that it becomes; one of a node pool of this cluster needs no policy. One with CLUSTER_USE is known by
    its OCID, and may what roles of Kubernetes permit.
    """
    try:
        key_id = _signer(cloud, cluster, token)
    except SignatureRefused as error:
        return _refused(cluster, f"the token is not valid for this cluster: {error}")
    owner = cloud.identity.instance(key_id)
    if owner is None:
        return _known(key_id.split("/")[1], _MASTERS)
    instance = cloud.store.get("instance", owner)
    if instance is None or instance.gone_at is not None:
        return _refused(cluster, f"the instance {owner} is terminated")
    pool = cloud.store.get("nodepool", str(instance.hidden["pool"]))
    if pool is not None and pool.body["clusterId"] == cluster.id:
        return _known(f"system:node:{node_name(instance)}", "system:nodes", uid=owner)
    permitted = grants(cloud, instance, _OPERATION, cluster, (_MANAGE, _JOIN, _USE))
    status_by_permission = {
        _MANAGE: _known(owner, _MASTERS),
        _JOIN: _known(f"system:node:{node_name(instance)}", "system:nodes", uid=owner),
        _USE: _known(owner),
    }
    named = next((status for permission, status in status_by_permission.items() if permission in permitted), None)
    return named or _refused(cluster, f"no policy permits {owner} {_USE} or {_JOIN}")


def _refused(cluster: Resource, reason: str) -> Mapping[str, Any]:
    log.warning("the cluster %s refuses a token: %s", cluster.id, reason)
    return {"authenticated": False, "error": reason}


def _known(name: str, *groups: str, uid: str = "") -> Mapping[str, Any]:
    return {"authenticated": True, "user": {"username": name, "uid": uid or name, "groups": list(groups)}}


def _signer(cloud: CloudState, cluster: Resource, token: str) -> str:
    """The keyId that has signed the request of a token."""
    try:
        url = urlsplit(base64.urlsafe_b64decode(token.encode()).decode())
        parameters = {name: values[0] for name, values in parse_qs(url.query).items()}
    except (ValueError, binascii.Error) as error:
        raise SignatureRefused("it is not a URL in base64") from error
    if not url.netloc.startswith(f"containerengine.{REGION}."):
        raise SignatureRefused(f"its request is to {url.netloc!r}")
    if url.path not in (f"/cluster_request/{cluster.id}", f"/cluster_request/{cluster.hidden['ip']}"):
        raise SignatureRefused(f"its request is for {url.path!r}")
    return verify(
        method="GET",
        target=url.path,
        headers={**parameters, "host": url.netloc},
        body=b"",
        key_of=cloud.identity.key,
        now=time.time(),
    )
