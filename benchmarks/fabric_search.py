"""How many measurements the search for bad nodes needs, whether it finds all, and what planning a step costs."""

from __future__ import annotations

import random
import statistics
import time

from gpucluster.fabric.diagnosis import advance
from gpucluster.fabric.model import Fabric, FabricVerdict, Results
from tests.fabric.simulator import RAIL, WHOLE, Fault, Network, diagnose, difference, random_network

#: What a published search needs for 232 nodes: when all are healthy, and with five bad ones.
PUBLISHED = {0: 28, 5: 55}


def _blocks(count: int, size: int) -> list[tuple[str, ...]]:
    names = [f"gpu-{number:05}" for number in range(count)]
    return [tuple(names[begin : begin + size]) for begin in range(0, count, size)]


def _search(count: int, bad: int, seed: int) -> FabricVerdict:
    blocks = _blocks(count, 16)
    nodes = random.Random(seed).sample([node for block in blocks for node in block], bad)
    network = Network(blocks, [Fault("node", (node,), 0.6) for node in nodes], seed=seed)
    verdict = diagnose(network, Fabric(tuple(blocks), 0, WHOLE))
    assert verdict.nodes == tuple(sorted(nodes))
    return verdict


def _slowest_step(count: int, bad: int) -> float:
    """Seconds of the slowest step of one search."""
    blocks = _blocks(count, 16)
    nodes = random.Random(1).sample([node for block in blocks for node in block], bad)
    network = Network(blocks, [Fault("node", (node,), 0.6) for node in nodes], seed=1)
    fabric = Fabric(tuple(blocks), 0, WHOLE)
    rounds: list[Results] = []
    slowest = 0.0
    while True:
        begin = time.perf_counter()
        step = advance(fabric, rounds)
        slowest = max(slowest, time.perf_counter() - begin)
        if isinstance(step, FabricVerdict):
            return slowest
        rounds.append(network.answers(step))


def main(cases: int) -> None:
    """Print the figures."""
    for bad, published in PUBLISHED.items():
        found = [_search(232, bad, seed) for seed in range(100)]
        measurements = statistics.median(each.measurements for each in found)
        rounds = statistics.median(each.rounds for each in found)
        print(f"232 nodes, {bad} bad: {measurements:.0f} measurements in {rounds:.0f} rounds")
        print(f"  measurements / those of a published search: {measurements / published:.2f}")
    wrong = 0
    for seed in range(cases):
        network = random_network(seed)
        blocks = tuple(tuple(block) for block in network.blocks)
        wrong += bool(difference(network, diagnose(network, Fabric(blocks, network.rails, WHOLE, RAIL))))
    print(f"{cases} networks with planted faults, noise of 3 %: {wrong} verdicts are not exactly what was planted")
    steps = [_slowest_step(4096, 5) for _ in range(3)]
    print(f"4,096 nodes, 5 bad: the slowest step is planned in {statistics.median(steps) * 1000:.0f} ms")
