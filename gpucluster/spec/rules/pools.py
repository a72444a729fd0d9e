"""Rules of `pools`: their names, partitions and which one is the default."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpucluster.shapes import MEMORY_FABRIC_HOSTS
from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.reserved import RESERVED_POOL_NAMES
from gpucluster.spec.rules.context import RuleContext
from gpucluster.spec.rules.machines import check_machine
from gpucluster.spec.rules.nodes import check_nodes
from gpucluster.spec.sections import fields

RULES = (
    "The name of a pool has at most 20 lower-case letters, digits and `-`; it begins with a letter and does not end "
    f"with `-`. Reserved are {', '.join(f'`{name}`' for name in sorted(RESERVED_POOL_NAMES))}.",
    "The name of a pool is not that of a node of another pool, `<pool>-<n>`, `<pool>-e<n>` or `<pool>-bake`: "
    "`compute` and `compute-1` can't be pools of one cluster.",
    "`max_count` is at least `count`, and not 0.",
    "The shape, `rdma` and the counts decide which OCI resource contains the nodes of a pool: with RDMA and "
    "`max_count` above `count` a compute cluster, with RDMA otherwise a cluster network, without RDMA neither.",
    f"A pool of GB200 or GB300 is a GPU memory cluster: one rack of {MEMORY_FABRIC_HOSTS} hosts, with "
    "`memory_fabric_id`, without elastic nodes, and not with Kubernetes.",
    "`rdma: true` and `rdma_addressing: cloud-init` are for shapes with RDMA, the latter for those with known names of "
    "the RDMA interfaces; `platform` is for bare metal.",
    "`removed_nodes` lists names of the pool's own permanent nodes, `<pool>-<n>`, each once.",
)


def check(context: RuleContext) -> None:
    """Add every error of `pools`."""
    first_default: Path | None = None
    for name, pool in context.section("pools").items():
        path: Path = ("pools", name)
        if not re.fullmatch(fields.POOL_NAME_PATTERN, name):
            message = (
                "the name of a pool begins with a letter, has at most 20 lower-case letters, digits and -, "
                f"and does not end with -; got {shown(name)}"
            )
            context.error(path, message, "It becomes part of host names", key=True)
        elif other := _pool_with_node(name, context.section("pools")):
            message = f"{name} is also the name of a node of the pool {other}"
            context.error(path, message, "Choose another, such as gpu", key=True)
        elif name in RESERVED_POOL_NAMES:
            context.error(path, f"the name {name} is reserved", "Choose another, such as compute", key=True)
        if not isinstance(pool, dict):
            continue
        check_machine(context, path, pool)
        check_nodes(context, name, pool)
        if pool.get("partition") in RESERVED_POOL_NAMES and context.written((*path, "partition")):
            message = f"the name {pool['partition']} is reserved"
            context.error((*path, "partition"), message, "Choose another, such as gpu")
        if pool.get("default") is True and context.written((*path, "default")):
            if first_default:
                message = f"a second default pool; the first is in line {context.line(first_default)}"
                context.error((*path, "default"), message, "Keep one")
            else:
                first_default = (*path, "default")


def _pool_with_node(name: str, pools: Iterable[str]) -> str | None:
    """The pool that has or could have a node with this name; None if there is none."""
    pool, _, number = name.rpartition("-")
    return pool if re.fullmatch("e?[1-9][0-9]*|bake", number) and pool in pools else None
