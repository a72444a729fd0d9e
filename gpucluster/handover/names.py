"""Names of hosts and groups, as HCL, the inventory and Slurm use them."""

from __future__ import annotations

import itertools

from gpucluster.oci.names import builder_name, elastic_name_count, elastic_prefix, number_of
from gpucluster.spec import ClusterSpec, PoolSpec

__all__ = [
    "BUILDER_GROUP",
    "LOGIN",
    "UPGRADING_GROUP",
    "builder_name",
    "elastic_names",
    "elastic_prefix",
    "is_elastic_name",
    "is_login_name",
    "login_names",
    "monitoring_host",
    "permanent_names",
    "pool_group",
]

BUILDER_GROUP = "builder"
#: The Ansible group of the hosts that one step of an upgrade of Kubernetes is about.
UPGRADING_GROUP = "upgrading"
#: The Ansible group of the login nodes, and the name under which ssh and every host of the cluster know them together.
LOGIN = "login"


def pool_group(pool: str) -> str:
    """The Ansible group of a pool; names of Ansible groups can't contain a dash."""
    return "pool_" + pool.replace("-", "_")


def elastic_names(pool: PoolSpec) -> int:
    """The number of names for elastic nodes that Slurm has for a pool."""
    return elastic_name_count(pool.elastic_count) if pool.elastic else 0


def login_names(spec: ClusterSpec) -> tuple[str, ...]:
    """The names of the login nodes."""
    return tuple(f"{spec.name}-{LOGIN}-{number}" for number in range(1, spec.login.count + 1))


def monitoring_host(spec: ClusterSpec) -> str | None:
    """The name of the login node on which Prometheus runs; None if that is the controller."""
    number = spec.monitoring.login_number
    return None if number is None else login_names(spec)[number - 1]


def is_login_name(cluster: str, host: str) -> bool:
    """Whether a host is a login node, by its name."""
    prefix, _, number = host.rpartition("-")
    return prefix == f"{cluster}-{LOGIN}" and number.isdecimal()


def is_elastic_name(spec: ClusterSpec, host: str) -> bool:
    """Whether a host is an elastic node of one of the pools, by its name."""
    return any(0 < number_of(elastic_prefix(name), host) <= elastic_names(pool) for name, pool in spec.pools.items())


def permanent_names(name: str, pool: PoolSpec) -> tuple[str, ...]:
    """The names of the permanent nodes of the pool `name`, in the order of their numbers. None for a pool that is
    managed: its nodes are OKE's, which names and replaces them.

    A removed name is not used again, so that no other node changes its number.
    """
    if pool.managed:
        return ()
    removed = set(pool.removed_nodes)
    numbered = (f"{name}-{number}" for number in itertools.count(1))
    return tuple(itertools.islice((node for node in numbered if node not in removed), pool.count))
