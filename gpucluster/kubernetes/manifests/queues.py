"""Objects of Kueue for the pools of a cluster: quotas, and scheduling by the place in the RDMA network.

gpucluster does not install Kueue, and does not apply these objects: how users share a cluster is the decision of its
administrators. `gpucluster kubernetes queues` prints what follows from cluster.yml, for them to change and apply.

Facts (Kueue 0.19.2: config/components/crd/bases, site/content/en/docs/concepts/topology_aware_scheduling.md)
  ResourceFlavor  the nodes with its labels; its tolerations are added to the pods that it admits. One with a topology
                  admits pods only to nodes that have all labels of the topology, and knows no nodes that do not exist
                  yet.
  ClusterQueue    admits pods that ask for resources which it covers, and no others.
  Pods            state by an annotation within which level they want or must be. Where an object has two groups of pods
                  (a launcher and workers), each would be placed alone: an annotation makes both one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gpucluster.kubernetes.labels import POOL, gpu_tolerations
from gpucluster.kubernetes.manifests import Manifest, metadata
from gpucluster.kubernetes.operator_apis import api_version
from gpucluster.node_agent.rules.labels import PLACE

#: The topology of RDMA networks on OCI.
TOPOLOGY = "gpucluster-rdma"
_HOST = "kubernetes.io/hostname"
_ISLAND, _NETWORK_BLOCK, _LOCAL_BLOCK, _HOST_ID = PLACE
#: The levels of the topology by their names for users, from far to near.
LEVELS: Mapping[str, str] = {"island": _ISLAND, "network-block": _NETWORK_BLOCK, "local-block": _LOCAL_BLOCK}
_PREFERRED, _REQUIRED = "kueue.x-k8s.io/podset-preferred-topology", "kueue.x-k8s.io/podset-required-topology"
_GROUP = "kueue.x-k8s.io/podset-group-name"


class QueuedPool(NamedTuple):
    """What Kueue is told of a pool.

    Args:
        nodes: the most that it has.
        node: what a node offers: resource -> how much.
        gpus: whether its nodes have GPUs, and so a taint.
        placed: whether its nodes have the labels of their place in the RDMA network.
    """

    name: str
    nodes: int
    node: Mapping[str, int]
    gpus: bool
    placed: bool


def queues(pools: Iterable[QueuedPool], namespaces: Iterable[str] = ()) -> list[Manifest]:
    """The objects of Kueue: a flavor and a queue for each pool that has nodes, with the name of the pool.

    Args:
        namespaces: which get a LocalQueue to the queue of each pool, of the same name.
    """
    with_nodes = [pool for pool in pools if pool.nodes]
    levels = [*LEVELS.values(), _HOST]
    topology = {"levels": [{"nodeLabel": label} for label in levels]}
    made = [_object("Topology", TOPOLOGY, topology)] if any(pool.placed for pool in with_nodes) else []
    for pool in with_nodes:
        made += [_object("ResourceFlavor", pool.name, _flavor(pool)), _object("ClusterQueue", pool.name, _queue(pool))]
    for namespace in namespaces:
        made += [_object("LocalQueue", pool.name, {"clusterQueue": pool.name}, namespace) for pool in with_nodes]
    return made


def topology_annotations(level: str, *, required: bool, two_groups: bool) -> dict[str, str]:
    """The annotations of pods that are near each other.

    Args:
        level: one of LEVELS.
        required: they wait until all fit into one part of this level. Else Kueue goes up level by level.
        two_groups: the object has two groups of pods, of which one has a single pod. Kueue refuses the annotation of
            groups everywhere else (pkg/controller/jobframework/tas_validation.go).
    """
    return {_REQUIRED if required else _PREFERRED: LEVELS[level], **({_GROUP: "nodes"} if two_groups else {})}


def _flavor(pool: QueuedPool) -> dict[str, Any]:
    return {
        "nodeLabels": {POOL: pool.name},
        **({"tolerations": gpu_tolerations()} if pool.gpus else {}),
        **({"topologyName": TOPOLOGY} if pool.placed else {}),
    }


def _queue(pool: QueuedPool) -> dict[str, Any]:
    resources = [{"name": name, "nominalQuota": str(much * pool.nodes)} for name, much in pool.node.items()]
    group = {"coveredResources": list(pool.node), "flavors": [{"name": pool.name, "resources": resources}]}
    # Any namespace that has a LocalQueue; users can't make one.
    return {"namespaceSelector": {}, "resourceGroups": [group]}


def _object(kind: str, name: str, spec: dict[str, Any], namespace: str | None = None) -> Manifest:
    return {"apiVersion": api_version(kind), "kind": kind, "metadata": metadata(name, namespace), "spec": spec}
