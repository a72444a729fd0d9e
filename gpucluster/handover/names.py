"""Names of hosts and groups, as HCL, the inventory and Slurm use them."""

from __future__ import annotations

import itertools

from gpucluster.spec import Pool

CLUSTER_TAG = "gpucluster"
BUILDER_GROUP = "builder"


def pool_group(pool: str) -> str:
    """The Ansible group of a pool; names of Ansible groups can't contain a dash."""
    return "pool_" + pool.replace("-", "_")


def elastic_prefix(pool: str) -> str:
    """The prefix of the names of a pool's elastic nodes; a number follows."""
    return f"{pool}-e"


def elastic_names(pool: Pool) -> int:
    """The number of names for elastic nodes that Slurm has for a pool. It is larger than the highest number of nodes,
    because a name is free again only after its instance is gone."""
    return 2 * pool.elastic_count + 2 if pool.elastic else 0


def permanent_names(name: str, pool: Pool) -> tuple[str, ...]:
    """The names of the permanent nodes of the pool `name`, in the order of their numbers.

    A removed name is not used again, so that no other node changes its number.
    """
    removed = set(pool.removed_nodes)
    numbered = (f"{name}-{number}" for number in itertools.count(1))
    return tuple(itertools.islice((node for node in numbered if node not in removed), pool.count))


def builder_name(pool: str) -> str:
    """The name of the instance on which a pool's image is baked."""
    return f"{pool}-bake"
