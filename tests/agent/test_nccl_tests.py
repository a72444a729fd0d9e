"""What is made of the output of nccl-tests. The rows are those of the seeds and of NVIDIA's own format."""

from __future__ import annotations

import pytest

from gpucluster.agent import nccl_tests

HEADER = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
TUNED = "10737418240 2684354560 float sum -1  89649  119.77  224.57      0  89528  119.93  224.87      0\n"
MISTUNED = "8589934592 2147483648 float sum -1  225100   38.16   71.56      0  225000   38.18   71.58      0\n"
ALONE = "10737418240 2684354560 float sum -1  81000  132.59  232.04      0  81100  132.31  231.54      0\n"


def output(*rows: str, ranks: int = 16, tables: int = 1, end: str = "# Out of bounds values : 0 OK\n") -> list[str]:
    devices = [
        f"#  Rank {rank:2} Group  0 Pid {rank} on node device  {rank % 8} [0000:0f:00] GPU\n" for rank in range(ranks)
    ]
    return [*devices, *([HEADER] * tables), *rows, end, "# Avg bus bandwidth    : 24.2\n"]


@pytest.mark.parametrize(("row", "ranks"), [(TUNED, 16), (MISTUNED, 16), (ALONE, 8)])
def test_the_number_of_ranks_is_in_the_numbers(row: str, ranks: int) -> None:
    read = nccl_tests.parse(output(row, ranks=ranks))
    assert round(nccl_tests.ranks_of(read.rows[0].out_of_place)) == ranks
    told, faults = nccl_tests.evaluate(read, ranks, 0)
    assert not faults
    assert f"busbw {row.split()[7]} GB/s" in told[1]
    others = [number for number in (1, 2, 4, 8, 16, 32) if number != ranks]
    assert all(any("took part" in fault for fault in nccl_tests.evaluate(read, number, 0)[1]) for number in others)


def test_a_slow_fabric_is_told_by_what_is_expected() -> None:
    assert nccl_tests.evaluate(nccl_tests.parse(output(TUNED)), 16, 185)[1] == []
    assert nccl_tests.evaluate(nccl_tests.parse(output(MISTUNED)), 16, 185)[1] == ["busbw 71.58 GB/s is below 185"]


def test_singletons_are_found() -> None:
    """srun without working PMI: sixteen worlds, each with a table of its own and a busbw of 0."""
    row = TUNED.replace("224.57", "0.00").replace("224.87", "0.00")
    faults = nccl_tests.evaluate(nccl_tests.parse(output(*[row] * 16, tables=16, ranks=1)), 16, 0)[1]
    assert "the ranks did not find each other" in faults[0]
    assert "1 ranks took part" in " ".join(nccl_tests.evaluate(nccl_tests.parse(output(row)), 16, 0)[1])


def test_the_row_of_the_largest_message_counts() -> None:
    small = "1048576 262144 float sum -1 60.1 17.45 32.72 0 59.8 17.53 32.88 0\n"
    told, faults = nccl_tests.evaluate(nccl_tests.parse(output(TUNED, small)), 16, 185)
    assert not faults
    assert "10737418240 bytes" in told[0]
    assert told[1].startswith("busbw 224.57 GB/s")


def test_wrong_results_fail_however_fast() -> None:
    row = TUNED.replace("  224.57      0", "  224.57      3")
    assert "results were wrong" in nccl_tests.evaluate(nccl_tests.parse(output(row)), 16, 0)[1][0]
    bounds = output(TUNED, end="# Out of bounds values : 2 FAILED\n")
    assert "results were wrong" in nccl_tests.evaluate(nccl_tests.parse(bounds), 16, 0)[1][0]


def test_other_words_between_do_not_disturb() -> None:
    lines = [
        "node:12:12 [0] NCCL INFO Using network IB\n", "[1,0]<stdout>:" + HEADER,
        " 3: " + TUNED.replace(" 0\n", " N/A\n"), "[node:00012] UCX  ERROR something\n", "1234 5678 no row of ours\n",
    ]  # fmt: skip
    read = nccl_tests.parse(lines)
    assert (len(read.rows), read.tables, read.rows[0].in_place.wrong) == (1, 1, None)
    assert nccl_tests.evaluate(read, 16, 0)[1] == []
    fallen_back = nccl_tests.evaluate(
        nccl_tests.parse([*lines, "node:12:12 [0] NCCL INFO Using network Socket\n"]), 16, 0
    )[1]
    assert "sockets" in fallen_back[0]


def test_nothing_measured_is_no_success() -> None:
    assert "no row" in nccl_tests.evaluate(nccl_tests.parse(["srun: error: it broke\n"]), 16, 0)[1][0]
