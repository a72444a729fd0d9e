"""Parses what ib_write_bw and ib_write_lat of perftest print, and rping of librdmacm: text, which all versions print.

Source: perftest's README and sources (`src/perftest_parameters.h`, the formats RESULT_FMT_G, REPORT_FMT and
RESULT_FMT_LAT): a header such as `#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]`, then one row. A
job prints a line before each device's output (`agent.measure.launch`); without it the device is the one that perftest
names. rping's client prints `ping data: ...` for each message that came back (rdma-core,
`librdmacm/examples/rping.c`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from gpucluster.agent.measure.launch import DEVICE, PING, PINGS, RATE

_HEADER = re.compile(r"^\s*#bytes\s+#iterations\s+BW peak\[(\S+)\]\s+BW average\[(\S+)\]")
_ROW = re.compile(r"^\s*\d+\s+\d+\s+([\d.]+)\s+([\d.]+)\s+[\d.]+")
_NAMED = re.compile(r"\sDevice\s+:\s+(\S+)")
_UNIT = "Gb/sec"
# With a number of iterations eight columns, in duration mode two.
_LATENCY = re.compile(r"^\s*#bytes\s+#iterations\s+(t_\w+\[usec\].*)")
_COLUMN = re.compile(r"(t_\w+)\[usec\]")
_MEAN = "t_avg"


def bandwidths(lines: Iterable[str]) -> dict[str, float]:
    """The average in Gb/s by device. A device without a complete result, or in another unit, is not in it."""
    return dict(_found(lines))


def _found(lines: Iterable[str]) -> Iterator[tuple[str, float]]:
    device, in_table = "", False
    for line in lines:
        if line.startswith(DEVICE):
            device, in_table = line.removeprefix(DEVICE).strip(), False
            continue
        named = _NAMED.search(line)
        if named and not device:
            device, in_table = named[1], False
        if line.lstrip().startswith("#bytes"):
            # That of ib_write_lat, too.
            header = _HEADER.match(line)
            in_table = header is not None and header[1] == header[2] == _UNIT
        row = _ROW.match(line) if device and in_table else None
        if row:
            average = _number(row[2])
            if average is None:
                continue
            yield device, average
            device, in_table = "", False


def latencies(lines: Iterable[str]) -> dict[str, float]:
    """The mean latency of ib_write_lat in microseconds by device. A device without a complete result is not in it."""
    found: dict[str, float] = {}
    device, column = "", -1
    for line in lines:
        named = _NAMED.search(line)
        header = _LATENCY.match(line)
        if line.startswith(DEVICE):
            device, column = line.removeprefix(DEVICE).strip(), -1
        elif named:
            device = named[1]
        elif header:
            names = _COLUMN.findall(header[1])
            # Behind the size and the iterations.
            column = names.index(_MEAN) + 2 if _MEAN in names else -1
        elif column > 0 and device and line.split()[:1] and line.split()[0].isdigit():
            words = line.split()
            mean = _number(words[column]) if len(words) > column else None
            if mean is not None:
                found[device] = mean
            column = -1
    return found


def rates(lines: Iterable[str]) -> dict[str, float]:
    """The rate of each device's link in Gb/s, where the kernel of the node has said it."""
    found: dict[str, float] = {}
    for line in lines:
        if line.startswith(RATE):
            device, _space, said = line.removeprefix(RATE).strip().partition(" ")
            rate = _number(said)
            if rate:
                found[device] = rate
    return found


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


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
