"""What a bandwidth is compared with: for whole nodes, some of their GPUs, pairs, and GPUs of an unknown shape."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.nccl import limits
from gpucluster.node_agent.nccl.limits import DEFAULT, FAULT_SHARE, NVLINK_SHARE, RING, RING_SHARE, SAME_SHARE
from gpucluster.node_agent.nccl.shape_limits import SHAPES, ShapeLimits

#: A shape with figures that are easy to follow.
SHAPE = ShapeLimits(
    "BM.X.8", 8, "x100", 200.0, ("mlx5_0",), 450.0, {(1, DEFAULT): 430, (2, RING): 180, (2, DEFAULT): 190}, {}, {}
)
BARE = SHAPE._replace(nvlink=0.0, busbw={}, wire=0.0)


def good(
    shape: ShapeLimits | None, operation: str, algorithm: str, nodes: int, gpus: int
) -> tuple[float, float] | None:
    limit = limits.choose(shape, operation, algorithm, nodes, gpus)
    return None if limit is None else (round(limit.good, 3), round(limit.fault, 3))


@pytest.mark.parametrize(
    ("operation", "algorithm", "nodes", "gpus", "expected"),
    [
        # A whole node: the published limit, below which is a fault.
        ("all_reduce", DEFAULT, 1, 8, (430.0, 430.0)),
        # Some of its GPUs, or a forced ring without a figure: a share of NVLink.
        ("all_reduce", DEFAULT, 1, 4, (NVLINK_SHARE * 450, FAULT_SHARE * 450)),
        ("all_reduce", RING, 1, 8, (NVLINK_SHARE * 450, FAULT_SHARE * 450)),
        ("all_gather", DEFAULT, 1, 8, (NVLINK_SHARE * 450, FAULT_SHARE * 450)),
        # One rank uses no link, and more GPUs than there are is another machine.
        ("all_reduce", DEFAULT, 1, 1, None),
        ("all_reduce", DEFAULT, 1, 16, None),
        # Pairs have figures of their own; of more nodes that of a ring of two holds.
        ("all_reduce", DEFAULT, 2, 8, (190.0, 190.0)),
        ("all_reduce", RING, 2, 8, (180.0, 180.0)),
        ("all_reduce", DEFAULT, 4, 8, (180.0, 180.0)),
        ("all_reduce", DEFAULT, 2, 4, None),
    ],
)
def test_the_limit_is_that_of_the_run(
    operation: str, algorithm: str, nodes: int, gpus: int, expected: tuple[float, float] | None
) -> None:
    assert good(SHAPE, operation, algorithm, nodes, gpus) == expected


def test_without_a_published_figure_the_wires_are_compared_with() -> None:
    ring = limits.choose(SHAPE._replace(busbw={}), "all_reduce", RING, 2, 8)
    assert ring is not None
    assert ring.fault / ring.good == pytest.approx(FAULT_SHARE / RING_SHARE)
    assert "the wires of BM.X.8" in ring.why
    # No figure is published for what is not a ring: nothing is a fault.
    other = limits.choose(SHAPE, "alltoall", DEFAULT, 2, 8)
    assert other is not None
    assert other.fault == 0.0


def test_what_others_have_measured_counts_where_nothing_is_published() -> None:
    shape = BARE._replace(measured={(1, DEFAULT): 100.0})
    limit = limits.choose(shape, "all_reduce", DEFAULT, 1, 8)
    assert limit is not None
    assert (limit.good, limit.fault, limit.of_a_node) == (SAME_SHARE * 100, FAULT_SHARE * 100, True)
    assert limits.choose(shape, "all_reduce", DEFAULT, 1, 4) is None


def test_reaching_the_limit_of_all_reduce_is_good_for_what_is_slower() -> None:
    limit = limits.choose(BARE._replace(busbw={(1, RING): 100}), "alltoall", DEFAULT, 1, 8)
    assert limit is not None
    assert (limit.good, limit.fault) == (100, 0.0)


def test_a_ring_that_nvlink_makes_faster_than_the_figure_keeps_the_figure_as_the_fault() -> None:
    limit = limits.choose(SHAPE._replace(busbw={(1, DEFAULT): 300}), "all_reduce", DEFAULT, 1, 8)
    assert limit is not None
    assert (limit.good, limit.fault) == (NVLINK_SHARE * 450, 300)
    assert limit.why_fault == "the published limit of 1 x BM.X.8"


@pytest.mark.parametrize("name", SHAPES)
def test_a_fault_is_never_above_what_is_good(name: str) -> None:
    shape = SHAPES[name]
    for operation in ("all_reduce", "all_gather", "alltoall", "sendrecv"):
        for nodes, gpus in ((1, 2), (1, shape.gpus), (2, shape.gpus), (8, shape.gpus)):
            limit = limits.choose(shape, operation, DEFAULT, nodes, gpus)
            assert limit is None or 0 <= limit.fault <= limit.good


def test_gpus_of_an_unknown_shape_are_known_by_their_names() -> None:
    switched = limits.of_names(["NVIDIA H100 80GB HBM3"] * 2, "all_reduce", 2, switches=True)
    direct = limits.of_names(["NVIDIA H100 80GB HBM3"] * 2, "all_reduce", 2, switches=False)
    assert switched is not None
    assert direct is not None
    assert (switched.good, switched.fault) == (NVLINK_SHARE * 450, FAULT_SHARE * 450)
    # Two of four GPUs without a switch have a third of the links.
    assert direct.good == switched.good
    assert direct.fault == pytest.approx(switched.fault / 3)
    assert limits.of_names(["NVIDIA H100 80GB HBM3"], "all_reduce", 1, switches=True) is None
    assert limits.of_names(["NVIDIA T4"] * 2, "all_reduce", 2, switches=True) is None
    assert limits.of_names(["NVIDIA H100 80GB HBM3"] * 2, "alltoall", 2, switches=True) is None


def test_without_a_shape_there_is_no_limit_and_the_reason_says_what_to_give() -> None:
    assert limits.choose(None, "all_reduce", DEFAULT, 1, 8) is None
    assert "give --shape or --expect" in limits.missing(None, "all_reduce", 1, 8)
    assert "does not show what the network carries" in limits.missing(None, "all_reduce", 2, 8)
    assert limits.missing(SHAPE, "alltoall", 1, 4) == (
        "no figure is published for 1 x BM.X.8 with 4 GPUs each; give --expect"
    )
    assert "its GPUs are not known to have" in limits.missing(BARE, "all_reduce", 1, 4)
    assert "no switch joins its GPUs" in limits.missing(BARE._replace(measured={(1, RING): 1.0}), "all_reduce", 1, 4)
