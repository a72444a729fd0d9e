"""How hosts, groups and pools are called, in HCL, in the inventory and in Slurm."""

from __future__ import annotations

import itertools

from gpucluster.oci import tags
from gpucluster.oci.names import builder_name, elastic_name_count, elastic_prefix
from gpucluster.spec import Pool

__all__ = [
    "BUILDER_GROUP",
    "CLUSTER_TAG",
    "builder_name",
    "elastic_names",
    "elastic_prefix",
    "permanent_names",
    "pool_group",
]

CLUSTER_TAG = tags.CLUSTER
BUILDER_GROUP = "builder"


def pool_group(pool: str) -> str:
    """The Ansible group of a pool; Ansible's group names know no dash."""
    return "pool_" + pool.replace("-", "_")


def elastic_names(pool: Pool) -> int:
    """How many names of elastic nodes Slurm knows of a pool."""
    return elastic_name_count(pool.elastic_count) if pool.elastic else 0


def permanent_names(name: str, pool: Pool) -> tuple[str, ...]:
    """The names of the nodes of the pool `name` that are always there, in the order of their numbers.

    A name that was removed is not given again, or the number of another node would change.
    """
    removed = set(pool.removed_nodes)
    numbered = (f"{name}-{number}" for number in itertools.count(1))
    return tuple(itertools.islice((node for node in numbered if node not in removed), pool.count))
