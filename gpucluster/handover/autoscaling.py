"""The autoscaler's policy: the file that configures the autoscaler on the controller."""

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
    """What the autoscaler needs from the operator's machine.

    Args:
        baked: the pools whose instance configuration uses a baked image.
        wheels: the directory with Python packages for the controller.
    """

    access: ControllerAccess
    baked: frozenset[str] = field(default_factory=frozenset)
    wheels: Path | None = None


def autoscaler_policy(spec: ClusterSpec, outputs: Outputs, autoscaling: Autoscaling) -> dict[str, Any]:
    """The autoscaler's policy, in the form that the autoscaler parses."""
    limits = spec.autoscaler
    return {
        "version": POLICY_VERSION,
        "cluster": spec.name,
        "compartment_id": outputs.elastic_compartment_id,
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


def _pool_policy(name: str, pool: Pool, output: PoolOutput, baked: bool) -> dict[str, Any]:
    return {
        "partition": pool.partition,
        "prefix": elastic_prefix(name),
        "names": elastic_names(pool),
        "max_nodes": pool.elastic_count,
        "shape": pool.shape,
        "availability_domain": output.availability_domain,
        "instance_configuration_id": output.instance_configuration_id,
        "compute_cluster_id": output.compute_cluster_id,
        "baked": baked,
    }
