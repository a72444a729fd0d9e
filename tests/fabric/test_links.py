"""The search between nodes none of which is bad in itself, on a simulated network: uplinks, links, pairs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpucluster.fabric.links import Links, search
from gpucluster.fabric.measuring import Scale
from gpucluster.fabric.model import FabricMeasurement
from tests.fabric.simulator import RAIL, WHOLE, Fault, Network

BLOCKS = tuple(tuple(f"gpu-{block}-{node}" for node in range(4)) for block in range(5))


def searched(*faults: Fault, dead: frozenset[str] = frozenset()) -> tuple[Links, int]:
    """What the search finds among all nodes of these blocks, and in how many measurements."""
    network = Network(BLOCKS, faults, noise=0.0, dead=dead)
    part = search(Scale(WHOLE, RAIL), BLOCKS, frozenset(node for block in BLOCKS for node in block))
    asked: Sequence[FabricMeasurement] = next(part)
    while True:
        try:
            asked = part.send(network.answers(asked))
        except StopIteration as end:
            links: Links = end.value
            return links, network.asked


def test_a_healthy_network_is_measured_once() -> None:
    links, measurements = searched()
    assert (links, len(links), measurements) == (Links(), 0, 1)


@pytest.mark.parametrize(
    ("fault", "links"),
    [
        (Fault("uplink", ("3",), 0.5), Links(uplinks={3})),
        (Fault("link", ("1", "4"), 0.5), Links(links={(1, 4)})),
        (Fault("pair", ("gpu-0-1", "gpu-4-2"), 0.5), Links(pairs={("gpu-0-1", "gpu-4-2")})),
        (Fault("pair", ("gpu-2-3", "gpu-2-0"), 0.5), Links(pairs={("gpu-2-0", "gpu-2-3")})),
    ],
)
def test_a_fault_is_found_at_its_place(fault: Fault, links: Links) -> None:
    assert searched(fault)[0] == links


def test_several_faults_are_found_one_after_the_other() -> None:
    faults = (Fault("uplink", ("0",), 0.5), Fault("link", ("1", "2"), 0.5), Fault("pair", ("gpu-3-0", "gpu-4-0"), 0.5))
    links, _ = searched(*faults)
    assert links == Links(uplinks={0}, links={(1, 2)}, pairs={("gpu-3-0", "gpu-4-0")})
    assert len(links) == 3


def test_a_search_ends_where_a_network_has_too_many_faults() -> None:
    every = tuple(node for block in BLOCKS for node in block)
    pairs = [Fault("pair", (one, other), 0.5) for one in every[:8] for other in every[8:16]]
    links, measurements = searched(*pairs)
    assert 0 < len(links) <= 20
    assert measurements < 1000


def test_a_node_without_a_result_ends_the_search_and_is_not_blamed() -> None:
    links, _ = searched(Fault("uplink", ("0",), 0.5), dead=frozenset({"gpu-1-1"}))
    assert len(links) == 0
    assert links.unfinished.startswith("a measurement had no result: ")
