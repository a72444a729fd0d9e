"""Parses what ib_write_bw of perftest prints with `--report_gbits`, and rping of librdmacm: text, which all versions
print.

Source: perftest's README and sources (`src/perftest_resources.c`, the formats RESULT_FMT_G and REPORT_FMT): a header
`#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]`, then one row. The job prints a line before each
device's output (`agent.measure.launch`). rping's client prints `ping data: ...` for each message that came back
(rdma-core, `librdmacm/examples/rping.c`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from gpucluster.agent.measure.launch import DEVICE, PING, PINGS

_HEADER = re.compile(r"^\s*#bytes\s+#iterations\s+BW peak\[(\S+)\]\s+BW average\[(\S+)\]")
_ROW = re.compile(r"^\s*\d+\s+\d+\s+([\d.]+)\s+([\d.]+)\s+[\d.]+")
_UNIT = "Gb/sec"


def bandwidths(lines: Iterable[str]) -> dict[str, float]:
    """The average in Gb/s by device. A device without a complete result, or in another unit, is not in it."""
    return dict(_found(lines))


def _found(lines: Iterable[str]) -> Iterator[tuple[str, float]]:
    device, in_table = "", False
    for line in lines:
        if line.startswith(DEVICE):
            device, in_table = line.removeprefix(DEVICE).strip(), False
            continue
        header = _HEADER.match(line)
        if header:
            in_table = header[1] == header[2] == _UNIT
        row = _ROW.match(line) if device and in_table else None
        if row:
            try:
                average = float(row[2])
            except ValueError:
                continue
            if math.isfinite(average):
                yield device, average
            device, in_table = "", False


#: Of `timeout`: the program gave no answer.
_SILENT = "124"
_DATA = re.compile(r"^ping data: ")


def connections(lines: Iterable[str]) -> dict[str, bool]:
    """Whether every message came back, by device. A device without an answer is not in it."""
    counts: dict[str, int] = {}
    device = ""
    for line in lines:
        if line.startswith(PING):
            device, _space, status = line.removeprefix(PING).strip().partition(" ")
            if status == _SILENT or not status.isdigit():
                device = ""
            else:
                counts[device] = 0
        elif line.startswith(DEVICE):
            device = ""
        elif device and _DATA.match(line):
            counts[device] += 1
    return {name: count >= PINGS for name, count in counts.items()}
