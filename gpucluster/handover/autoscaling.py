"""What the autoscaler on the controller is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucluster.cloud.providers import ControllerAccess
from gpucluster.handover.names import elastic_names, elastic_prefix
from gpucluster.handover.outputs import Outputs, PoolOutput
from gpucluster.spec import ClusterSpec, Pool

POLICY_VERSION = 1


@dataclass(frozen=True)
class Autoscaling:
    """What the autoscaler needs from this machine.

    Args:
        baked: the pools whose instance configuration launches from a baked image.
        wheels: the directory of Python packages for the controller.
    """

    access: ControllerAccess
    baked: frozenset[str] = field(default_factory=frozenset)
    wheels: Path | None = None


def autoscaler_policy(spec: ClusterSpec, outputs: Outputs, autoscaling: Autoscaling) -> dict[str, Any]:
    """What the autoscaler is told, as `gpucluster.autoscaler.policy` reads it."""
    limits = spec.autoscaler
    return {
        "version": POLICY_VERSION,
        "cluster": spec.name,
        "compartment_id": outputs.compartment_id,
        "region": outputs.region,
        "authentication": dict(autoscaling.access.authentication),
        "pools": {
            name: _pool_policy(name, pool, outputs.pools[name], name in autoscaling.baked)
            for name, pool in spec.elastic_pools.items()
        },
        "limits": {
            "max_nodes": limits.max_nodes,
            "max_launches_per_hour": limits.max_launches_per_hour,
            "max_cost_per_hour": limits.max_cost_per_hour,
        },
        "prices": dict(limits.prices),
        "times": dict(limits.times),
    }


def _pool_policy(name: str, pool: Pool, made: PoolOutput, baked: bool) -> dict[str, Any]:
    return {
        "partition": pool.partition,
        "prefix": elastic_prefix(name),
        "names": elastic_names(pool),
        "max_nodes": pool.elastic_count,
        "shape": pool.shape,
        "availability_domain": made.availability_domain,
        "instance_configuration_id": made.instance_configuration_id,
        "compute_cluster_id": made.compute_cluster_id,
        "baked": baked,
    }
