"""How hosts, groups and pools are called, in HCL, in the inventory and in Slurm."""

from __future__ import annotations

import itertools

from gpucluster.spec import Pool

CLUSTER_TAG = "gpucluster"
BUILDER_GROUP = "builder"


def pool_group(pool: str) -> str:
    """The Ansible group of a pool; Ansible's group names know no dash."""
    return "pool_" + pool.replace("-", "_")


def elastic_prefix(pool: str) -> str:
    """How the names of a pool's elastic nodes begin; a number follows."""
    return f"{pool}-e"


def elastic_names(pool: Pool) -> int:
    """How many names of elastic nodes Slurm knows of a pool: more than there may be nodes, for a name is not free again
    before its instance is gone."""
    return 2 * pool.elastic_count + 2 if pool.elastic else 0


def permanent_names(name: str, pool: Pool) -> tuple[str, ...]:
    """The names of the nodes of the pool `name` that are always there, in the order of their numbers.

    A name that was removed is not given again, or the number of another node would change.
    """
    removed = set(pool.removed_nodes)
    numbered = (f"{name}-{number}" for number in itertools.count(1))
    return tuple(itertools.islice((node for node in numbered if node not in removed), pool.count))


def builder_name(pool: str) -> str:
    """The name of the instance that a pool's image is baked on."""
    return f"{pool}-bake"
