"""The client of the scheduler that the policy names, and what Kubernetes needs to know of nodes that do not exist."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpucluster.autoscaler.daemon.interfaces import Slurm
from gpucluster.autoscaler.daemon.kubernetes import KubernetesClient
from gpucluster.autoscaler.daemon.slurm import SlurmClient
from gpucluster.autoscaler.decide.pods import NodeTemplate, Taint
from gpucluster.autoscaler.policy import Policy, PoolPolicy

# kubelet sets them for its own node, whatever it is told.
_OS, _ARCHITECTURE = "kubernetes.io/os", "kubernetes.io/arch"


def client(
    policy: Policy, *, state: Path, may_write: Callable[[], bool], clock: Callable[[], float]
) -> KubernetesClient | Slurm:
    """The client for the scheduler of the policy.

    Args:
        state: the daemon's folder.
        may_write: whether an observation of Kubernetes may change and store something now. Slurm's changes nothing.
        clock: seconds of the epoch.
    """
    if policy.kubernetes is None:
        return SlurmClient(pool_of=policy.pool_of, clock=clock)
    kubectl = (policy.kubernetes.kubectl, f"--kubeconfig={policy.kubernetes.kubeconfig}")
    return KubernetesClient(kubectl, templates(policy), state=state, may_write=may_write, clock=clock)


def templates(policy: Policy) -> tuple[NodeTemplate, ...]:
    """What a new node of each pool will be."""
    return tuple(_template(pool) for pool in policy.pools.values())


def _template(pool: PoolPolicy) -> NodeTemplate:
    node = pool.node
    assert node is not None, "Policy.parse reads it for each pool"
    return NodeTemplate(
        pool=pool.name,
        names=tuple(f"{pool.prefix}{number}" for number in range(1, pool.names + 1)),
        max_nodes=pool.max_nodes,
        capacity=node.capacity,
        idle_seconds=node.idle_seconds,
        labels={_OS: "linux", _ARCHITECTURE: node.architecture, **node.labels},
        taints=tuple(Taint(taint["key"], taint["value"], taint["effect"]) for taint in node.taints),
    )
