"""What the hosts of a cluster are asked for a verdict: one request for each host, and one for the controller.

`gpucluster.node_agent.facts` and `gpucluster.controller.facts` read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucluster.handover.inventory import Members, directory_groups
from gpucluster.handover.names import elastic_names, elastic_prefix, monitoring_host
from gpucluster.handover.outputs import Outputs
from gpucluster.spec import ClusterSpec

#: Hosts that are asked at the same time: many nodes are behind one controller.
HOSTS_AT_ONCE = 20
# Of Slurm's REST API: the role slurm has the same one.
_REST_PORT = 6820
# The folder of the token on the share: `gpucluster.controller.facts`.
_FOLDER = ".gpucluster-verify"
# Pools that are tried at the same time. Where a user may have only so many jobs or nodes, each waits for the one
# before it.
_POOLS_AT_ONCE = 16
# Seconds: how long all that has no limit of its own may take on a host, and a job with its container steps in a pool.
_HOST_SECONDS, _POOL_SECONDS, _PODS_SECONDS = 120.0, 240.0, 360.0
_CLUSTER_SECONDS = 180.0
# What apply has just restarted is scraped within an interval. Longer ones than a minute are Slurm's alone.
_SCRAPED_SECONDS, _SCRAPE_MARGIN = 60, 15


@dataclass(frozen=True)
class Collection:
    """What is asked.

    Args:
        controller: its name. `cluster`: what it is asked of the cluster.
        hosts: by host, what it is asked of itself.
        monitoring: the host that is asked what Prometheus scrapes; empty without monitoring.
        host_seconds, cluster_seconds: after which a host, and the controller, is not waited for any more.
    """

    controller: str
    cluster: Mapping[str, Any]
    hosts: Mapping[str, Mapping[str, Any]]
    monitoring: str
    host_seconds: float
    cluster_seconds: float


def rdma_nodes(spec: ClusterSpec, members: Members) -> list[str]:
    """The permanent nodes of pools with RDMA."""
    return [node.name for name, pool in spec.pools.items() if pool.uses_rdma for node in members.get(name, ())]


def collection(
    spec: ClusterSpec, outputs: Outputs, members: Members, request: Mapping[str, Any], token: str
) -> Collection:
    """What the hosts of a cluster are asked.

    Args:
        request: which checks, pools and nodes a verdict is about (`verdict.reports.request`).
        token: a text that no other run has: the controller writes it to the share, and each host looks for it.
    """
    home = spec.storage.home
    path = home.mount_path if home.enabled else None
    controller, login = outputs.controller.name, [node.name for node in outputs.login]
    permanent = [node.name for nodes in members.values() for node in nodes]
    placed = frozenset(rdma_nodes(spec, members) if spec.slurm.enabled else ())
    users = [person.name for person in spec.users.people]
    groups = list(directory_groups(spec))
    wait = max(spec.monitoring.slurm_interval, _SCRAPED_SECONDS) + _SCRAPE_MARGIN
    scrapes = (monitoring_host(spec) or controller) if spec.monitoring.enabled else ""
    scrapes = scrapes if scrapes in login else controller if scrapes else ""

    def asked(host: str) -> dict[str, Any]:
        chosen = request["profile"] and (request["nodes"] is None or host in request["nodes"])
        meshed = spec.scheduler == "none" and host in permanent and users
        return {
            "users": users,
            "groups": groups,
            "share": path and {"path": path, "file": f"{path}/{_FOLDER}/{token}", "token": token},
            "mesh": {"user": users[0], "next": _next(permanent, host)} if meshed else None,
            "access": bool(login) and host == controller,
            "slurm": spec.slurm.enabled and host in login,
            "rdma": host in placed,
            "checks": {
                "profile": request["profile"],
                "seconds": request["seconds"],
                "alone": request["profile"] == "full",
            }
            if chosen
            else None,
            "monitoring": {"wait": wait} if host == scrapes else None,
        }

    slurm = _slurm(spec, members, request) if spec.slurm.enabled else None
    hosts = {host: asked(host) for host in (controller, *login, *permanent)}
    host_seconds = _HOST_SECONDS + float(request["seconds"]) + (2.0 * wait if scrapes else 0.0)
    pools = len(slurm["pools"]) / slurm["at_once"] if slurm else 0
    on_kubernetes = spec.scheduler == "kubernetes"
    pods = _PODS_SECONDS if on_kubernetes else 0.0
    return Collection(
        controller=controller,
        cluster={
            "token": token,
            "host": hosts[controller],
            "share": path,
            "slurm": slurm and {**slurm, "job": f"gpucluster-verify-{token[:8]}"},
            # The port of Slurm's REST API.
            "rest": _REST_PORT if spec.slurm.enabled and spec.slurm.rest else None,
            "autoscaler": bool(spec.elastic_pools),
            "kubernetes": {"control_plane": spec.kubernetes.control_plane, "pods": request.get("pods") or []}
            if on_kubernetes
            else None,
            # Checks that need the nodes for themselves come before jobs and pods.
            "apart": request["profile"] == "full",
            # For so long it waits for the other hosts.
            "seconds": host_seconds * math.ceil(len(hosts) / HOSTS_AT_ONCE) + _HOST_SECONDS,
        },
        hosts=hosts,
        monitoring=scrapes,
        host_seconds=host_seconds,
        cluster_seconds=host_seconds + _CLUSTER_SECONDS + _POOL_SECONDS * pools + pods,
    )


def _next(nodes: Sequence[str], host: str) -> str:
    """The node after this one in the ring."""
    return nodes[(nodes.index(host) + 1) % len(nodes)]


def _slurm(spec: ClusterSpec, members: Members, request: Mapping[str, Any]) -> dict[str, Any]:
    """The pools that jobs and container steps try, and how."""
    names = {name: [node.name for node in members.get(name, ())] for name in spec.pools}
    ranges = {
        name: f"{elastic_prefix(name)}[1-{elastic_names(pool)}]" for name, pool in spec.pools.items() if pool.elastic
    }

    def tried(name: str) -> dict[str, Any]:
        partition = spec.pools[name].partition
        nodes = [node for node in names[name] if request["nodes"] is None or node in request["nodes"]]
        neighbours = [other for other, pool in spec.pools.items() if pool.partition == partition]
        # Neither nodes of another pool nor elastic nodes, which would have to be launched, nor nodes that were not
        # asked for.
        others = [node for other in neighbours for node in names[other] if node not in nodes]
        elastic = [ranges[other] for other in neighbours if other in ranges]
        return {
            "name": name,
            "partition": partition,
            "nodes": nodes,
            "exclude": [*others, *elastic],
            "elastic": elastic_prefix(name) if name in ranges and request["with_elastic"] else "",
        }

    people = spec.users.people
    limited = any(value is not None for value in spec.slurm.user_limits.model_dump().values())
    steps = "enroot" in spec.containers.runtimes and spec.storage.home.enabled
    return {
        "pools": [tried(name) for name in spec.pools if request["pools"] is None or name in request["pools"]],
        "user": people[0].name if people else "",
        "accounting": spec.slurm.accounting,
        "at_once": 1 if limited else _POOLS_AT_ONCE,
        "switches": bool(rdma_nodes(spec, members)),
        "share": spec.storage.home.mount_path if steps else None,
    }
