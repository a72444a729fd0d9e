"""Names of hosts and groups, as HCL, the inventory and Slurm use them."""

from __future__ import annotations

import itertools

from gpucluster.oci.names import builder_name, elastic_name_count, elastic_prefix
from gpucluster.spec import Pool

__all__ = [
    "BUILDER_GROUP",
    "builder_name",
    "elastic_names",
    "elastic_prefix",
    "permanent_names",
    "pool_group",
]

BUILDER_GROUP = "builder"


def pool_group(pool: str) -> str:
    """The Ansible group of a pool; names of Ansible groups can't contain a dash."""
    return "pool_" + pool.replace("-", "_")


def elastic_names(pool: Pool) -> int:
    """The number of names for elastic nodes that Slurm has for a pool."""
    return elastic_name_count(pool.elastic_count) if pool.elastic else 0


def permanent_names(name: str, pool: Pool) -> tuple[str, ...]:
    """The names of the permanent nodes of the pool `name`, in the order of their numbers.

    A removed name is not used again, so that no other node changes its number.
    """
    removed = set(pool.removed_nodes)
    numbered = (f"{name}-{number}" for number in itertools.count(1))
    return tuple(itertools.islice((node for node in numbered if node not in removed), pool.count))
