"""What perftest prints: sweeps, other units, and its words where nothing was measured.

The outputs have the form of public reports (linux-rdma/perftest#132, #234, #43, #295); addresses are left out.
"""

from __future__ import annotations

import pytest

from gpucluster.controller.measure.launch import DEVICE
from gpucluster.measuring import perftest

HEAD = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : {device}
 Number of qps   : 1		Transport type : IB
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]
"""
END = "---------------------------------------------------------------------------------------\n"
SWEEP = """\
 2          5000           0.042000            0.041900            2.618750
 65536      5000             390.11             389.95 		   0.743771
 8388608    5000             392.40             392.31 		   0.005846
"""


def table(device: str, rows: str, unit: str = "Gb/sec") -> list[str]:
    return (HEAD.format(device=device, unit=unit) + rows + END).splitlines()


def test_of_a_sweep_the_largest_message_counts() -> None:
    assert perftest.bandwidths(table("mlx5_0", SWEEP)) == {"mlx5_0": 392.31}
    backwards = "".join(reversed(SWEEP.splitlines(keepends=True)))
    assert perftest.bandwidths(table("mlx5_0", backwards)) == {"mlx5_0": 392.31}


def test_each_device_has_its_own_table() -> None:
    small = " 65536      5000             98.10              97.95 		   0.1\n"
    lines = [*table("mlx5_0", SWEEP), *table("mlx5_1", small)]
    assert perftest.bandwidths(lines) == {"mlx5_0": 392.31, "mlx5_1": 97.95}
    # A job itself reports of which device the next output is.
    told = [f"{DEVICE} mlx5_4", *table("mlx5_bond_0", SWEEP), f"{DEVICE} mlx5_5", *table("mlx5_bond_1", small)]
    assert perftest.bandwidths(told) == {"mlx5_4": 392.31, "mlx5_5": 97.95}


def test_the_unit_without_report_gbits_is_read() -> None:
    rows = " 65536      1878430          0.00               11728.47 		   0.187656\n"
    assert perftest.bandwidths(table("mlx5_0", rows, "MB/sec")) == {"mlx5_0": pytest.approx(98.38, abs=0.01)}
    assert perftest.bandwidths(table("mlx5_0", rows, "MiB/day")) == {}


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (
            " Port number 1 state is Down\n Couldn't set the link layer\n Couldn't get context for the device\n",
            "Port number 1 state is Down; Couldn't set the link layer; Couldn't get context for the device",
        ),
        (
            " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0\n",
            "the other side does not answer: its link, the network, or the address (GID) of one of the two; "
            "Completion with error at client; Failed status 12: wr_id 0 syndrom 0x81",
        ),
        (
            "Completion with error at client\nFailed status 10: wr_id 0 syndrom 0x88\n",
            "the other side does not allow access to its memory; Completion with error at client; "
            "Failed status 10: wr_id 0 syndrom 0x88",
        ),
        ("Failed status 99: wr_id 0\n", "Failed status 99: wr_id 0"),
        ("something new\n-------\n", "something new"),
        ("-----\n\n", "it printed nothing"),
    ],
)
def test_the_line_with_the_cause_is_shown(output: str, said: str) -> None:
    assert perftest.cause(output) == said
