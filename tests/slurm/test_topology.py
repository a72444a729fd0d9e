"""Slurm's switches from the places of hosts, and the same input in the words of NVIDIA's Topograph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.node_agent.rules.rdma_place import Place, path
from gpucluster.slurm.topology import SlurmPool, Switch, elastic_switches, lines, moves_nodes, tree

OLD, NEW = "24.11.5", "26.05.5"


def rdma(name: str, places: Mapping[str, Place | None], elastic: str = "", partition: str = "") -> SlurmPool:
    known = {node: where for node, where in places.items() if where}
    return SlurmPool(name, True, partition or name, tuple(places), elastic, known)


def at(local: str, network: str = "n", island: str = "i") -> Place:
    return Place(island, network, local)


PLAIN = SlurmPool("cpu", False, "cpu", ("cpu-1", "cpu-2"))


def shape(switches: Sequence[Switch]) -> frozenset[Any]:
    """The trees without the names of their switches: a switch is the set of what is below it."""
    by_name = {switch.name: switch for switch in switches}

    def below(switch: Switch) -> frozenset[Any]:
        return frozenset(switch.nodes) | {below(by_name[child]) for child in switch.switches}

    children = {child for switch in switches for child in switch.switches}
    return frozenset(below(switch) for switch in switches if switch.name not in children)


def test_hosts_of_a_local_block_share_a_leaf() -> None:
    pool = rdma("gpu", {"gpu-1": at("b"), "gpu-2": at("a"), "gpu-3": at("b"), "gpu-4": at("c", "m")})
    assert lines(tree([pool, PLAIN], OLD)) == [
        "SwitchName=rdma-gpu Switches=rdma-gpu_nb-m,rdma-gpu_nb-n",
        "SwitchName=rdma-gpu_nb-m Switches=rdma-gpu_lb-c",
        "SwitchName=rdma-gpu_lb-c Nodes=gpu-4",
        "SwitchName=rdma-gpu_nb-n Switches=rdma-gpu_lb-a,rdma-gpu_lb-b",
        "SwitchName=rdma-gpu_lb-a Nodes=gpu-2",
        "SwitchName=rdma-gpu_lb-b Nodes=gpu-1,gpu-3",
        "SwitchName=plain-cpu Nodes=cpu-1,cpu-2",
    ]


def test_hosts_without_a_place_stay_below_the_switch_of_their_pool() -> None:
    pool = rdma("gpu", {"gpu-1": at("a"), "gpu-2": None}, elastic="gpu-e[1-4]")
    assert lines(tree([pool], OLD)) == [
        "SwitchName=rdma-gpu Switches=rdma-gpu_nb-n,rdma-gpu_unplaced",
        "SwitchName=rdma-gpu_nb-n Switches=rdma-gpu_lb-a",
        "SwitchName=rdma-gpu_lb-a Nodes=gpu-1",
        "SwitchName=rdma-gpu_unplaced Nodes=gpu-2,gpu-e[1-4]",
    ]


def test_a_cluster_without_places_is_as_before() -> None:
    alone = rdma("gpu", {"gpu-1": None, "gpu-2": None})
    assert tree([alone, PLAIN], NEW) == []
    beside = [rdma("gpu", {"gpu-1": None}, partition="all"), rdma("b", {"b-1": None}, partition="all"), PLAIN]
    assert lines(tree(beside, NEW)) == [
        "SwitchName=rdma-gpu Nodes=gpu-1",
        "SwitchName=rdma-b Nodes=b-1",
        "SwitchName=plain-cpu Nodes=cpu-1,cpu-2",
    ]


def test_a_pool_that_grows_has_a_switch_that_others_can_be_put_below() -> None:
    pool = rdma("gpu", {}, elastic="gpu-e[1-4]")
    assert tree([pool], OLD) == [], "older releases can't move a node while slurmctld runs"
    assert lines(tree([pool], NEW)) == [
        "SwitchName=rdma-gpu Switches=rdma-gpu_unplaced",
        "SwitchName=rdma-gpu_unplaced Nodes=gpu-e[1-4]",
    ]
    roots = {f"default:{switch.name}" for switch in tree([pool], NEW)}
    for where in (at("a"), None):
        assert path("gpu", where).rpartition(":rdma-gpu_")[0].startswith(tuple(roots))


def test_no_switch_is_above_two_islands_or_two_pools() -> None:
    both = rdma("gpu", {"gpu-1": at("a", "n", "i"), "gpu-2": at("b", "m", "j"), "gpu-3": Place("", "x", "y")})
    other = rdma("more", {"more-1": at("a", "n", "i")})
    found = tree([both, other], OLD)
    assert shape(found) == {
        frozenset({frozenset({frozenset({"gpu-1"})})}),
        frozenset({frozenset({frozenset({"gpu-2"})})}),
        frozenset({"gpu-3"}),
        frozenset({frozenset({frozenset({"more-1"})})}),
    }
    assert [switch.name for switch in found if "gpu-3" in switch.nodes] == ["rdma-gpu"]


def test_a_block_that_hosts_report_in_two_places_is_not_believed() -> None:
    pool = rdma("gpu", {"gpu-1": at("a", "n"), "gpu-2": at("a", "m"), "gpu-3": at("b", "m")})
    assert shape(tree([pool], OLD)) == {frozenset({frozenset({frozenset({"gpu-3"})}), frozenset({"gpu-1", "gpu-2"})})}
    islands = rdma("gpu", {"gpu-1": at("a", "n", "i"), "gpu-2": at("b", "n", "j")})
    assert tree([islands], OLD) == []


@pytest.mark.parametrize(
    ("version", "moves", "switches"),
    [
        ("22.05.8", False, {}),
        ("24.11.5", False, {}),
        ("25.05.8", False, {}),
        ("25.11.0", True, {"gpu": "rdma-gpu_unplaced", "slow": "plain-slow"}),
        ("25.11.2", True, {"gpu": "rdma-gpu_unplaced", "slow": "plain-slow"}),
        ("25.11.3", True, {}),
        ("26.05.5", True, {}),
        ("", False, {}),
    ],
)
def test_what_a_version_can_do(version: str, moves: bool, switches: dict[str, str]) -> None:
    pools = [rdma("gpu", {"gpu-1": None}, elastic="gpu-e[1-4]"), SlurmPool("slow", False, "slow", (), "slow-e[1-2]")]
    assert moves_nodes(version) is moves
    assert elastic_switches(pools, version) == switches


_PLACES = st.none() | st.builds(Place, st.sampled_from(("", "i", "j")), st.sampled_from("mn"), st.sampled_from("abcd"))


@given(st.lists(st.tuples(st.sampled_from(("p", "q")), _PLACES), max_size=12), st.sampled_from((OLD, NEW)))
def test_each_node_is_in_one_leaf_and_each_switch_has_one_parent(
    hosts: list[tuple[str, Place | None]], version: str
) -> None:
    pools = []
    for name in ("p", "q"):
        mine = {f"{name}-{number}": where for number, (pool, where) in enumerate(hosts) if pool == name}
        pools.append(rdma(name, mine, elastic=f"{name}-e[1-2]" if name == "p" else "", partition="all"))
    found = tree(pools, version)
    nodes = [node for switch in found for node in switch.nodes]
    assert sorted(nodes) == sorted(node for pool in pools for node in pool.names)
    children = [child for switch in found for child in switch.switches]
    assert len(children) == len(set(children))
    assert set(children) <= {switch.name for switch in found}
    assert len({switch.name for switch in found}) == len(found)
    assert all(bool(switch.nodes) != bool(switch.switches) for switch in found), "Slurm refuses both and neither"
    for top in shape(found):
        assert len({node.partition("-")[0] for node in _leaves(top)}) == 1, "no switch is above two pools"


def _leaves(switch: frozenset[Any]) -> list[str]:
    return [node for each in switch for node in (_leaves(each) if isinstance(each, frozenset) else [each])]


# --- Topograph -----
#
# Facts of NVIDIA/topograph at e2b62507, as sets, so that names do not count. Its switches of an input: three tiers from
# core to leaf, and one more switch of hosts without a place, which is connected to nothing. Ours of those hosts is
# below the switch of the pool: they are in its RDMA network, and a job of all nodes runs.


def topograph(model: Mapping[str, Mapping[str, Sequence[str]]]) -> frozenset[Any]:
    return frozenset({frozenset(frozenset(frozenset(nodes) for nodes in leaves.values()) for leaves in model.values())})


#: pkg/providers/oci/provider_sim_test.go, case 5, of hosts with a place.
_SMALL = {"spine": {"tor1": ["node11", "node12"], "tor2": ["node21", "node22"]}}
#: tests/models/large.yaml, with the output in tests/ci/expected.slinky-oci-sim-tree.conf.
_LARGE = {
    f"spine-{spine}": {f"leaf-{spine}-{leaf}": [f"srv{spine}{leaf}0{node}" for node in range(1, 9)] for leaf in (1, 2)}
    for spine in range(1, 7)
}


@pytest.mark.parametrize("model", [_SMALL, _LARGE])
def test_the_switches_are_those_of_topograph(model: dict[str, dict[str, list[str]]]) -> None:
    places = {
        node: Place("core", spine, leaf)
        for spine, leaves in model.items()
        for leaf, nodes in leaves.items()
        for node in nodes
    }
    assert shape(tree([rdma("gpu", places)], OLD)) == topograph(model)


def test_a_host_without_a_place_is_apart_in_topograph_and_connected_here() -> None:
    places = {node: Place("core", "spine", leaf) for leaf, nodes in _SMALL["spine"].items() for node in nodes}
    (core,) = topograph(_SMALL)
    assert shape(tree([rdma("gpu", {**places, "node31": None})], OLD)) == {core | {frozenset({"node31"})}}
