"""The names of elastic nodes, of builders and of their compartment, as OCI, Slurm and the inventory have them."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[1-9][0-9]{0,5}")


def elastic_prefix(pool: str) -> str:
    """How the names of a pool's elastic nodes begin; a number follows."""
    return f"{pool}-e"


def elastic_name_count(nodes: int) -> int:
    """How many names Slurm has for at most `nodes` elastic nodes of a pool.

    There are more names than nodes, because a name is free again only when its instance is gone.
    """
    return 2 * nodes + 2 if nodes > 0 else 0


def number_of(prefix: str, name: str) -> int:
    """The number of the elastic node `name` of a pool with this prefix; 0 if the name is not one of the pool's."""
    number = name.removeprefix(prefix)
    return int(number) if number != name and _NUMBER.fullmatch(number) else 0


def builder_name(pool: str) -> str:
    """The name of the instance that a pool's image is baked on."""
    return f"{pool}-bake"


def elastic_compartment(cluster: str) -> str:
    """The name of the compartment that is created for a cluster's elastic nodes."""
    return f"gpucluster-{cluster}"


#: The consistent device path of the volume with the controller's state (docs: Connecting to Volumes With Consistent
#: Device Paths): the first one after that of the boot volume.
STATE_DEVICE = "/dev/oracleoci/oraclevdb"


def state_volume(cluster: str) -> str:
    """The display name of the volume with the controller's state, and of its attachment."""
    return f"{cluster}-state"


def service_address(cluster: str) -> str:
    """The display name of the address that moves with the controller's service."""
    return f"{cluster}-service"
