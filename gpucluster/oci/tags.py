"""The free-form tags by which gpucluster finds its own resources, and the rules that read them.

Terraform puts CLUSTER and IDENTITY on every resource: the cluster's name, which others may choose as well, and its
random identity. The controller, the network and the file system carry ORIGIN: who made them, and where. Instances that
Terraform did not create carry more: an elastic node NODE, POOL and GENERATION; the instance that an image is baked on
BUILDER and POOL. A baked image carries ROLE, POOL and FINGERPRINT. The file system of the home share carries FILES:
what is known of users' files in it. The network carries LOCK while a run changes the cluster (in an existing network
the controller): see `run_lock`. The controller's dynamic group and policies carry COMPARTMENT: they are in the tenancy,
where another compartment may have a cluster of the same name.
OCI does not distinguish upper and lower case in the keys of tags.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

CLUSTER = "gpucluster"
IDENTITY = "gpucluster-id"
ORIGIN = "gpucluster-from"
NODE = "node"
POOL = "pool"
GENERATION = "generation"
BUILDER = "builder"
ROLE = "role"
FINGERPRINT = "fingerprint"
FILES = "gpucluster-files"
COMPARTMENT = "gpucluster-compartment"
LOCK = "gpucluster-lock"
#: On images of the local cloud: the system that an image really contains, and the traps of the real one that it has.
CONTAINS = "gpucluster-contains"
TRAPS = "gpucluster-traps"

#: The values of ROLE of a baked image, of the controller, of a login node, of a pool's nodes and what they need, and of
#: a node pool of Kubernetes Engine with its nodes.
IMAGE = "image"
CONTROLLER = "controller"
LOGIN = "login"
COMPUTE = "compute"
NODE_POOL = "node-pool"

#: Keys that cluster.yml may not use for tags of its own.
RESERVED = (CLUSTER, IDENTITY, ORIGIN, ROLE, POOL, NODE, GENERATION, BUILDER, FILES, COMPARTMENT, LOCK)

#: Free-form tags that a resource can have (OCI's documentation, "Tagging limits").
MOST = 10

#: The defined tag by which Oracle is told that the host of an instance is bad, before the instance is terminated:
#: namespace, key and value. Source: Oracle's oci-hpc (`tag_unhealthy`, README) and oci-hpc-oke ("Removing and Replacing
#: Worker Nodes"). An administrator of the tenancy has to make the namespace.
HOST_ACTIONS, HOST_STATUS, UNHEALTHY = "ComputeInstanceHostActions", "CustomerReportedHostStatus", "unhealthy"
#: The same as policies and the console write it.
HOST_TAG = f"{HOST_ACTIONS}.{HOST_STATUS}={UNHEALTHY}"

Tags = Mapping[str, str]


class UsersFiles(StrEnum):
    """The value of FILES.

    Attributes:
        UNUSED: Terraform has created the file system, and no host was ever configured to use it.
        IN_USE: users could reach it.
        EMPTY: a destroy has found no files of users, after no user could write any more.
    """

    UNUSED = "unused"
    IN_USE = "in-use"
    EMPTY = "empty"


def users_files(tags: Tags | None) -> UsersFiles | None:
    """What is known of users' files in a file system; None if its tags do not state it."""
    value = (tags or {}).get(FILES)
    return UsersFiles(value) if value in tuple(UsersFiles) else None


def cluster(tags: Tags | None) -> str:
    """The name of the cluster that a resource belongs to; empty if it belongs to none."""
    return (tags or {}).get(CLUSTER, "")


def identity(tags: Tags | None) -> str:
    """The identity of the cluster that a resource belongs to; empty if its tags do not state it."""
    return (tags or {}).get(IDENTITY, "")


def origin(tags: Tags | None) -> str:
    """Who made a cluster, and where, as far as a resource states it."""
    return (tags or {}).get(ORIGIN, "")


def of_cluster(tags: Tags | None, cluster: str, own: str = "") -> bool:
    """Whether a resource belongs to a cluster.

    Args:
        own: the identity of the cluster; empty if it is not known. A resource with another identity belongs to another
            cluster of the same name. One without an identity had no room for the tag: its name counts.
    """
    return (tags or {}).get(CLUSTER) == cluster and not (own and identity(tags) not in ("", own))


def of_compartment(tags: Tags | None, compartment_id: str) -> bool:
    """Whether a cluster's resource in the tenancy is not known to belong to another compartment."""
    return (tags or {}).get(COMPARTMENT, compartment_id) == compartment_id


def elastic_node(tags: Tags | None, cluster: str, own: str = "") -> str:
    """The name of the elastic node that an instance is; empty if it is not an elastic node of this cluster. `own` is
    that of `of_cluster`.
    """
    return (tags or {}).get(NODE, "") if of_cluster(tags, cluster, own) else ""


def elastic_or_builder(tags: Tags | None, cluster: str, own: str = "") -> bool:
    """Whether an instance is an elastic node or a builder: only those may be terminated without Terraform. `own` is
    that of `of_cluster`.
    """
    return of_cluster(tags, cluster, own) and bool({NODE, BUILDER} & (tags or {}).keys())


def controller(tags: Tags | None, cluster: str) -> bool:
    """Whether an instance is the controller of a cluster."""
    return of_cluster(tags, cluster) and (tags or {}).get(ROLE) == CONTROLLER


def login_node(tags: Tags | None) -> bool:
    """Whether a resource of a cluster is a login node."""
    return (tags or {}).get(ROLE) == LOGIN


def permanent_node_pool(tags: Tags | None, cluster: str) -> str:
    """The pool of the permanent node that an instance is; empty if it is not a permanent node of this cluster."""
    permanent = of_cluster(tags, cluster) and not elastic_or_builder(tags, cluster)
    return (tags or {}).get(POOL, "") if permanent and (tags or {}).get(ROLE) == COMPUTE else ""


def managed_node(tags: Tags | None) -> bool:
    """Whether an instance is a node of a node pool: Kubernetes Engine made it, and removes it."""
    return (tags or {}).get(ROLE) == NODE_POOL


def generation(tags: Tags | None) -> int:
    """How often a node of this name was launched, this one included; 0 if the tag is missing or not a number."""
    number = str((tags or {}).get(GENERATION, ""))
    return int(number) if number.isdecimal() else 0


def fitting(tags: Tags) -> dict[str, str]:
    """These tags without the identity, where that is one more than a resource can have: an elastic node of a cluster
    with five tags of the operator. It is found by the other tags.
    """
    return {key: value for key, value in tags.items() if len(tags) <= MOST or key != IDENTITY}


def for_elastic_node(cluster: str, pool: str, node: str, number: int) -> dict[str, str]:
    """The tags of an elastic node. `number` is its generation."""
    return {CLUSTER: cluster, POOL: pool, NODE: node, GENERATION: str(number)}
