"""The search on a simulated network with planted faults: all are found, and no other node is blamed."""

from __future__ import annotations

import pytest

from gpucluster.fabric.diagnosis import advance, screening_groups
from gpucluster.fabric.model import Fabric, FabricMeasurement, FabricVerdict
from tests.fabric.simulator import RAIL, WHOLE, Fault, Network, diagnose, difference, random_network


def blocks(count: int, size: int) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(f"gpu-{block:02}-{node:02}" for node in range(size)) for block in range(count))


def fabric(network: Network, *, known: bool = True, rails: int = 4) -> Fabric:
    figures = (WHOLE, RAIL) if known else (None, None)
    return Fabric(tuple(tuple(block) for block in network.blocks), rails, *figures)


# The benchmark does the same with 10,000.
@pytest.mark.parametrize(
    "first", [0, 50, *(pytest.param(first, marks=pytest.mark.slow) for first in range(100, 500, 50))]
)
def test_what_was_planted_is_found_and_nothing_else(first: int) -> None:
    for seed in range(first, first + 50):
        network = random_network(seed)
        assert difference(network, diagnose(network, fabric(network))) == {}, (seed, network.faults)


@pytest.mark.slow
def test_without_a_published_figure_no_healthy_node_is_accused() -> None:
    for seed in range(1000, 1100):
        network = random_network(seed)
        found = diagnose(network, fabric(network, known=False))
        below = {
            node for fault in network.faults if fault.kind == "switch" for node in network.blocks[int(fault.ends[0])]
        }
        bad = {fault.ends[0] for fault in network.faults if fault.kind in ("node", "rail")} | below
        assert bad.issuperset({*found.nodes, *found.rails}), (seed, network.faults)


def test_a_healthy_network_costs_few_measurements() -> None:
    network = Network(blocks(15, 16), noise=0.0)
    found = diagnose(network, fabric(network))
    assert found.healthy
    # 232 nodes: a published search needs 28.
    assert (found.measurements, found.rounds) == (16, 2)


def test_five_bad_nodes_cost_at_most_half_as_much_again_as_a_published_search() -> None:
    places = blocks(15, 16)
    bad = ["gpu-00-01", "gpu-03-07", "gpu-07-15", "gpu-11-00", "gpu-14-08"]
    network = Network(places, [Fault("node", (node,), 0.5) for node in bad], noise=0.0)
    found = diagnose(network, fabric(network, rails=0))
    assert found.nodes == tuple(bad)
    assert found.measurements <= 1.5 * 55


def test_nothing_is_known_of_the_switches() -> None:
    """One block: nodes behind a bad uplink are good among themselves, so none of them is a bad node."""
    names = tuple(f"gpu-{number:02}" for number in range(32))
    behind = names[4:7]
    hidden = Network((behind, tuple(node for node in names if node not in behind)), [Fault("uplink", ("0",), 0.5)])
    found = diagnose(hidden, Fabric((names,), 0, WHOLE))
    assert (found.nodes, found.apart) == ((), behind)
    alone = Network((names,), [Fault("node", (names[5],), 0.0), Fault("pair", (names[1], names[20]), 0.5)])
    found = diagnose(alone, Fabric((names,), 0, WHOLE))
    assert (found.nodes, found.pairs) == ((names[5],), ((names[1], names[20]),))


def test_a_node_that_can_not_be_measured_is_accused_of_nothing() -> None:
    dead = frozenset({"gpu-01-02"})
    network = Network(blocks(4, 4), [Fault("node", ("gpu-02-00",), 0.4)], dead=dead)
    found = diagnose(network, fabric(network))
    assert (found.nodes, tuple(found.unknown)) == (("gpu-02-00",), tuple(dead))


def test_a_node_that_dies_in_the_middle_blames_no_node() -> None:
    """Whenever it happens: nodes that are measured with it have no result, and that is not held against them."""
    for seed in range(60):
        network = Network(blocks(4, 4), [Fault("node", ("gpu-02-00",), 0.4)] * (seed % 2), seed=seed)
        rounds: list[dict[FabricMeasurement, float | None]] = []
        step = advance(fabric(network), rounds)
        while not isinstance(step, FabricVerdict):
            if len(rounds) == seed % 7:
                network.dead = frozenset({"gpu-01-02"})
            rounds.append(dict(network.answers(step)))
            step = advance(fabric(network), rounds)
        assert set(step.nodes) <= {"gpu-02-00"}, seed
        between = (step.rails, step.pairs, step.switches, step.uplinks, step.links, step.apart)
        assert not any(between), (seed, step)


@pytest.mark.parametrize("known", [True, False])
def test_where_nothing_works_the_measurement_is_at_fault(known: bool) -> None:
    every = Network(blocks(4, 4), dead=frozenset(node for block in blocks(4, 4) for node in block))
    found = diagnose(every, fabric(every, known=known))
    assert (found.nodes, bool(found.reason), found.healthy) == ((), True, False)
    slow = Network(blocks(4, 4), [Fault("switch", tuple(str(n) for n in range(4)), 0.5)])
    found = diagnose(slow, fabric(slow))
    assert (found.nodes, bool(found.reason)) == ((), True)


@pytest.mark.parametrize("count", [0, 1])
def test_a_network_needs_two_nodes(count: int) -> None:
    found = advance(Fabric((tuple(f"gpu-{number}" for number in range(count)),)), [])
    assert isinstance(found, FabricVerdict)
    assert not found.healthy


def test_a_node_in_two_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="exactly one block"):
        advance(Fabric((("a", "b"), ("b", "c"))), [])


def test_a_result_that_never_comes_ends_the_search() -> None:
    found = advance(Fabric((("a", "b", "c", "d"),), 0, WHOLE), [{}] * 40)
    assert isinstance(found, FabricVerdict)
    assert (found.nodes, found.healthy) == ((), False)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 5), (2,), (3,), (1, 1, 1), (7, 1, 2), (100,), (30, 30, 3)])
def test_every_node_is_in_one_group_and_no_group_is_a_node_alone(sizes: tuple[int, ...]) -> None:
    places = tuple(tuple(f"{block}-{node}" for node in range(size)) for block, size in enumerate(sizes))
    groups = screening_groups(Fabric(places))
    assert sorted(node for group in groups for node in group) == sorted(node for block in places for node in block)
    assert min(len(group) for group in groups) > 1


def test_the_same_results_give_the_same_next_step() -> None:
    """A search that was interrupted goes on with the results that it has."""
    network = random_network(7)
    first = advance(fabric(network), [])
    assert isinstance(first, tuple)
    results = [network.answers(first)]
    assert advance(fabric(network), results) == advance(fabric(network), results)
    assert FabricMeasurement.of({"b", "a"}) == FabricMeasurement(("a", "b"))
