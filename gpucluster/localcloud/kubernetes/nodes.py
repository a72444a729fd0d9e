"""Instances as nodes of a cluster: what they see of this machine, their metadata, and their Node objects."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucluster.artifacts import agent_archive
from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.kubernetes import control_plane, releases
from gpucluster.localcloud.state.cloud import CloudState, log
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.paths import make_private

_MIRROR, _AGENT = "/run/localcloud/mirror", "/run/localcloud/agent"
_INIT = '#!/bin/sh\nexec oke bootstrap "$@"\n'
#: The user data of a node whose pool has none: Oracle's documentation of custom cloud-init scripts has these two lines.
_USER_DATA = """\
#!/bin/bash
curl --fail -H "Authorization: Bearer Oracle" -L0 http://169.254.169.254/opc/v2/instance/metadata/oke_init_script | \
base64 --decode >/var/run/oke-init.sh
bash /var/run/oke-init.sh
"""


def folders(home: Path) -> Mapping[str, Path]:
    """The folders of this machine that instances see, by the path there: the mirror, and the program for routes.

    None where the home has no release files of Kubernetes.
    """
    try:
        mirror = releases.mirror(home)
    except GpuClusterError as error:
        log.error("instances can't become nodes: %s", error)
        mirror = None
    if mirror is None:
        return {}
    place = home / "kubernetes" / "agent"
    make_private(place.parent)
    place.mkdir(exist_ok=True)
    file, content = place / "gpucluster-agent", agent_archive.of_node()
    if not file.exists() or file.read_bytes() != content:
        part = place / f".part-{os.urandom(4).hex()}"
        part.write_bytes(content)
        part.chmod(0o755)
        part.replace(file)
    return {_MIRROR: mirror, _AGENT: place}


def metadata(cluster: Resource, pool: Json) -> Json:
    """The metadata of an instance of a node pool."""
    labels = (f"{each['key']}={each.get('value') or ''}" for each in pool.get("initialNodeLabels") or [])
    own = {
        "apiserver_host": cluster.hidden["ip"],
        "cluster_ca_cert": base64.b64encode(cluster.hidden["ca"].encode()).decode(),
        "oke-cluster-id": cluster.id,
        "oke-initial-node-labels": ",".join(labels),
        "oke-k8version": pool["kubernetesVersion"],
        "oke-max-pods": "110",
        "oke-pool-id": pool["id"],
        "oke_init_script": base64.b64encode(_INIT.encode()).decode(),
        "ssh_authorized_keys": pool.get("sshPublicKey") or "",
        "user_data": base64.b64encode(_USER_DATA.encode()).decode(),
    }
    return {**own, **(pool.get("nodeMetadata") or {})}


def is_ready(cloud: CloudState, cluster: Resource, name: str) -> bool:
    """Whether a node has joined and is ready."""
    try:
        node: Any = control_plane.ask(cloud, cluster, f"/api/v1/nodes/{name}")
    except GpuClusterError:
        return False
    conditions = node["status"].get("conditions", []) if node else []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def forget(cloud: CloudState, cluster: Resource, name: str) -> None:
    """Delete a Node. An API server that does not answer is not a reason to keep the instance."""
    try:
        control_plane.ask(cloud, cluster, f"/api/v1/nodes/{name}", "DELETE")
    except GpuClusterError as error:
        log.warning("the node %s of the cluster %s is not deleted: %s", name, cluster.id, error)
