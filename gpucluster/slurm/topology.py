"""Slurm's topology of the cluster, from what each host reports of its place in the RDMA network.

A job runs on the nearest nodes that are free: Slurm looks for the lowest switch below which it fits (its Topology
Guide). The leaf switch is OCI's local block, above it the network block, and above that the RDMA network of the pool: a
cluster network or a compute cluster, which lies in one HPC island (SDK: ClusterNetwork.hpc_island_id). No switch is
above two pools, so no job spans two. The nodes of a partition that have no RDMA share one switch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpucluster.node_agent.rules.rdma_place import (
    Place,
    island_switch,
    leaf_switch,
    network_switch,
    root_switch,
    unplaced_switch,
)
from gpucluster.slurm.releases import release_of

#: From this release on a node that joins can be put under another switch while slurmctld runs, which keeps that when it
#: restarts, and takes it back when the node is powered down ("Preserve dynamic topology for cloud nodes" and
#: `reset_node_topology` of src/slurmctld/node_mgr.c). Earlier ones read topology.conf alone, or forget.
MOVES_NODES = "25.11"
# Versions that take an elastic node out of the topology when it is powered down, and do not put it back (CHANGELOG of
# 25.11.3; aws-parallelcluster-cookbook #3123, whose way around it is SchedMD's).
_LOSES_NODES = ("25.11.0", "25.11.1", "25.11.2")


@dataclass(frozen=True)
class SlurmPool:
    """A pool of nodes.

    Args:
        nodes: the names of permanent nodes. `elastic`: the names of elastic ones as a hostlist; empty for none.
        places: of permanent nodes, where they are known.
    """

    name: str
    rdma: bool
    partition: str
    nodes: tuple[str, ...]
    elastic: str = ""
    places: Mapping[str, Place] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All nodes, elastic ones as a hostlist."""
        return (*self.nodes, *([self.elastic] if self.elastic else []))


@dataclass(frozen=True)
class Switch:
    """A switch of the tree, either with nodes or with other switches."""

    name: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


def moves_nodes(version: str) -> bool:
    """Whether elastic nodes of this version of Slurm are put under the switch of their place when they join."""
    return _numbers(release_of(version)) >= _numbers(MOVES_NODES)


def loses_nodes(version: str) -> bool:
    """Whether this version takes nodes out of the topology when it powers them down."""
    return version in _LOSES_NODES


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def tree(pools: Sequence[SlurmPool], version: str) -> list[Switch]:
    """The switches; none where Slurm has nothing to choose or to keep apart.

    Slurm needs a topology where a partition has an RDMA pool beside another pool, where a node has a place, or where a
    node that joins may have one.
    """
    if not any(_needs_tree(pool, pools, version) for pool in pools if pool.rdma):
        return []
    switches = [switch for pool in pools if pool.rdma and pool.names for switch in _of_pool(pool, version)]
    for partition in dict.fromkeys(pool.partition for pool in pools):
        plain = [pool for pool in pools if pool.partition == partition and not pool.rdma]
        if nodes := tuple(name for pool in plain for name in pool.names):
            switches.append(Switch(_plain(partition), nodes))
    return switches


def _needs_tree(pool: SlurmPool, pools: Sequence[SlurmPool], version: str) -> bool:
    shares = sum(other.partition == pool.partition for other in pools) > 1
    return shares or bool(agreeing(pool)) or _grows(pool, version)


def _grows(pool: SlurmPool, version: str) -> bool:
    """Whether elastic nodes will add switches below that of the pool."""
    return bool(pool.elastic) and moves_nodes(version)


def _plain(partition: str) -> str:
    return f"plain-{partition}"


def agreeing(pool: SlurmPool) -> dict[str, Place]:
    """The places of a pool that do not contradict each other, by node.

    A block lies in one larger block. Where hosts report two, Slurm would get a switch with two parents, and the nodes
    stay where those without a place are.
    """
    networks, islands = dict[str, set[str]](), dict[str, set[str]]()
    for each in pool.places.values():
        networks.setdefault(leaf_switch(pool.name, each), set()).add(network_switch(pool.name, each))
        islands.setdefault(network_switch(pool.name, each), set()).add(each.island)
    return {
        node: pool.places[node]
        for node in pool.nodes
        if (where := pool.places.get(node))
        and len(networks[leaf_switch(pool.name, where)]) == 1
        and len(islands[network_switch(pool.name, where)]) == 1
    }


def _of_pool(pool: SlurmPool, version: str) -> Iterator[Switch]:
    """The switches of an RDMA pool, from the root to the leaves.

    Hosts in two islands are in two RDMA networks, whatever the pool is: each island has a root of its own then.
    """
    root, places = root_switch(pool.name), agreeing(pool)
    islands = sorted({where.island for where in places.values()})
    networks = {root: places}
    if len(islands) > 1:
        networks = {
            island_switch(pool.name, Place(island, "", "")): {
                node: where for node, where in places.items() if where.island == island
            }
            for island in islands
            if island
        }
    placed = {node for inside in networks.values() for node in inside}
    unplaced = tuple(name for name in pool.names if name not in placed)
    for name, inside in networks.items():
        if inside:
            yield from _below(pool.name, inside, name, unplaced if name == root else ())
    if unplaced and not networks.get(root):
        yield from _below(pool.name, {}, root, unplaced) if _grows(pool, version) else [Switch(root, unplaced)]


def _below(pool: str, places: Mapping[str, Place], root: str, unplaced: tuple[str, ...]) -> Iterator[Switch]:
    """A root, with its network blocks, their local blocks, and the leaf of nodes without a place."""
    blocks: dict[str, dict[str, list[str]]] = {}
    for node, where in places.items():
        blocks.setdefault(network_switch(pool, where), {}).setdefault(leaf_switch(pool, where), []).append(node)
    leaf = [Switch(unplaced_switch(pool), unplaced)] if unplaced else []
    yield Switch(root, switches=(*sorted(blocks), *(switch.name for switch in leaf)))
    for block, leaves in sorted(blocks.items()):
        yield Switch(block, switches=tuple(sorted(leaves)))
        yield from (Switch(name, tuple(nodes)) for name, nodes in sorted(leaves.items()))
    yield from leaf


def lines(switches: Iterable[Switch]) -> list[str]:
    """The lines of topology.conf (its manual: a line has Nodes or Switches)."""
    return [
        f"SwitchName={switch.name} "
        + (f"Nodes={','.join(switch.nodes)}" if switch.nodes else f"Switches={','.join(switch.switches)}")
        for switch in switches
    ]


def elastic_switches(pools: Sequence[SlurmPool], version: str) -> dict[str, str]:
    """By pool, the leaf switch of its elastic nodes while they are powered down, for `Topology` of their NodeName line.

    Only for versions that lose them otherwise.
    """
    switches = tree(pools, version) if loses_nodes(version) else []
    return {
        pool.name: switch.name for pool in pools if pool.elastic for switch in switches if pool.elastic in switch.nodes
    }
