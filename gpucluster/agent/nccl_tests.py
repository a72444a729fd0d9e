"""Evaluates the output of nccl-tests: which row counts, and whether the ranks really measured together.

A wrong launch can look right: without working PMI each task is alone, prints a good table and never uses the network.
The ratio of the two bandwidths shows how many ranks there really were.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: The label that `srun --label` and mpirun write in front of a line.
_LABEL = re.compile(r"^\s*(?:\d+:\s|\[\d+,\d+\]<std(?:out|err)>:\s*)")
_DATA = re.compile(r"^\s*\d+\s+\d+\s+[a-z]\w*\s+[a-z]\w*\s+-?\d+\s+\S")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\b")
_TABLE = re.compile(r"^#\s+size\s+count\s+type\b")
_SOCKET = re.compile(r"NCCL INFO.*Using network Socket")
_NUMBERS = 8


class Half(NamedTuple):
    """One half of a row. Bandwidths in GB/s as printed; `wrong` (wrong results) is None where it was not checked."""

    algorithm: str
    bus: str
    wrong: int | None


class Row(NamedTuple):
    """One row: the size of the message in bytes, and the results out of place and in place."""

    size: int
    out_of_place: Half
    in_place: Half


class Output(NamedTuple):
    """The parsed output."""

    rows: list[Row]
    tables: int
    devices: set[int]
    in_bounds: bool | None
    sockets: bool


def parse(lines: Iterable[str]) -> Output:
    """Parse an output; lines of other programs are skipped."""
    rows: list[Row] = []
    devices: set[int] = set()
    tables, in_bounds, sockets = 0, None, False
    for raw in lines:
        line = _LABEL.sub("", raw.rstrip())
        rank = _RANK.match(line)
        if rank:
            devices.add(int(rank[1]))
        elif _TABLE.match(line):
            tables += 1
        elif line.startswith("# Out of bounds values"):
            in_bounds = line.rstrip().endswith("OK")
        elif _SOCKET.search(line):
            sockets = True
        elif _DATA.match(line):
            words = line.split()
            if len(words) >= 5 + _NUMBERS:
                rows.append(Row(int(words[0]), _half(words[5:9]), _half(words[9:13])))
    return Output(rows, tables, devices, in_bounds, sockets)


def _half(words: list[str]) -> Half:
    return Half(words[1], words[2], None if words[3] == "N/A" else int(float(words[3])))


def ranks_of(half: Half) -> float:
    """How many ranks took part: for all_reduce, busbw / algbw is 2 (n - 1) / n."""
    algorithm, bus = float(half.algorithm), float(half.bus)
    if algorithm <= 0 or bus <= 0:
        return 1.0
    return 2 / max(2 - bus / algorithm, 1e-9)


def fits(half: Half, ranks: int) -> bool:
    """Whether the bandwidths are those of so many ranks, as exactly as they are printed."""
    algorithm, bus = float(half.algorithm), float(half.bus)
    if algorithm <= 0:
        return False
    slack = _last_digit(half.bus) / algorithm + _last_digit(half.algorithm) * bus / algorithm**2
    return abs(bus / algorithm - 2 * (ranks - 1) / ranks) <= slack


def _last_digit(number: str) -> float:
    return 10.0 ** -len(number.partition(".")[2])


def evaluate(output: Output, ranks: int, expect: float) -> tuple[list[str], list[str]]:
    """Lines for the user, and the faults.

    Args:
        ranks: how many there should be.
        expect: busbw in GB/s below which it is too slow; 0 accepts any.
    """
    if not output.rows:
        return [], ["there is no row with results: the program ended before; see the output above"]
    last = max(output.rows, key=lambda row: row.size)
    bus = max(float(last.out_of_place.bus), float(last.in_place.bus))
    lines = [
        f"The result is the row of the largest message, {last.size} bytes:",
        f"busbw {last.out_of_place.bus} GB/s out of place, {last.in_place.bus} GB/s in place.",
        "The average of all sizes (Avg bus bandwidth) is no measure: latency dominates with small messages.",
    ]
    faults = []
    if output.tables > 1:
        faults.append(
            f"{output.tables} tables were printed: the ranks did not find each other, and each measured itself. "
            "Try another MPI_TYPE (pmix, pmi2), or build nccl-tests with MPI=1"
        )
    elif not fits(last.out_of_place, ranks):
        faults.append(
            f"busbw / algbw shows that {ranks_of(last.out_of_place):.0f} ranks took part, and not {ranks}: they did "
            "not all find each other"
        )
    if output.devices and len(output.devices) != ranks:
        faults.append(f"{len(output.devices)} ranks name their GPU, and not {ranks}")
    if output.in_bounds is False or any(half.wrong for row in output.rows for half in row[1:]):
        faults.append("results were wrong: this is a fault of a GPU or of the network, however fast it was")
    if output.sockets:
        faults.append("NCCL used sockets and not RDMA; is /etc/nccl.conf in the container?")
    if bus < expect:
        faults.append(f"busbw {bus:.2f} GB/s is below {expect:g}")
    return lines, faults


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate a file; returns 1 if there is a fault."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent nccl-tests", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", help="the output of all_reduce_perf")
    parser.add_argument("--ranks", type=int, required=True, help="how many there should be")
    parser.add_argument("--expect", type=float, default=0.0, help="GB/s below which the result is a fault")
    options = parser.parse_args(argv)
    with open(options.file, errors="replace") as file:
        lines, faults = evaluate(parse(file), options.ranks, options.expect)
    sys.stdout.write("\n".join(["", *lines, *(f"WRONG: {fault}." for fault in faults), ""]))
    return 1 if faults else 0
