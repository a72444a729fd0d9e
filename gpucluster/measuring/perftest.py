"""Parses what ib_write_bw and ib_write_lat of perftest print, and rping of librdmacm: text, which all versions print.

Source: perftest's README and sources (`src/perftest_parameters.h`, the formats RESULT_FMT_G, REPORT_FMT and
RESULT_FMT_LAT): a header such as `#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]`, then one row. A
job prints a line before each device's output (`controller.measure.launch`); without it the device is the one that
perftest names. rping's client prints `ping data: ...` for each message that came back (rdma-core,
`librdmacm/examples/rping.c`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from gpucluster.controller.measure.launch import DEVICE, PING, PINGS, RATE

_HEADER = re.compile(r"^\s*#bytes\s+#iterations\s+BW peak\[(\S+)\]\s+BW average\[(\S+)\]")
_ROW = re.compile(r"^\s*(\d+)\s+\d+\s+([\d.]+)\s+([\d.]+)\s+[\d.]+")
_NAMED = re.compile(r"\sDevice\s+:\s+(\S+)")
# Gb/s in a unit of the header. Without --report_gbits perftest counts in MB of 2^20 bytes (`get_msgrate..`, MBS).
_UNITS = {"Gb/sec": 1.0, "MB/sec": 8 * 2**20 / 1e9}
# What perftest prints when a connection or a device does not work.
_CAUSE = re.compile(r"state is Down|Failed status|Couldn't|Unable to|Failed to|Completion with error|not found", re.I)
_STATUS = re.compile(r"Failed status (\d+)", re.I)
#: What the status of a completion means, which perftest prints as a number. Source: rdma-core, libibverbs/verbs.h,
#: `enum ibv_wc_status`, and its names in ibv_wc_status_str. perftest itself ends with 1 for every fault.
COMPLETIONS: Mapping[int, str] = {
    1: "a message is longer than its buffer",
    2: "the queue pair does not allow the operation",
    4: "local memory is not registered for it",
    5: "the connection had failed before",
    8: "local memory may not be written",
    9: "the other side refused the request",
    10: "the other side does not allow access to its memory",
    11: "the other side could not carry it out",
    12: "the other side does not answer: its link, the network, or the address (GID) of one of the two",
    13: "the other side was not ready to receive",
    20: "the other side did not answer in time",
    21: "the device reports an error",
}
# With a number of iterations eight columns, in duration mode two.
_LATENCY = re.compile(r"^\s*#bytes\s+#iterations\s+(t_\w+\[usec\].*)")
_COLUMN = re.compile(r"(t_\w+)\[usec\]")
_MEAN = "t_avg"


def bandwidths(lines: Iterable[str]) -> dict[str, float]:
    """The average in Gb/s by device, of the largest message. A device without a complete result is not in it."""
    largest: dict[str, tuple[int, float]] = {}
    for device, size, average in _rows(lines):
        if size >= largest.get(device, (0, 0.0))[0]:
            largest[device] = (size, average)
    return {device: average for device, (_size, average) in largest.items()}


def cause(output: str) -> str:
    """The lines that state why there is no result, or the last one; first what the status of a completion means."""
    lines = [line.strip() for line in output.splitlines() if any(map(str.isalnum, line))]
    status = _STATUS.search(output)
    meaning = COMPLETIONS.get(int(status[1]), "") if status else ""
    causes = [line for line in lines if _CAUSE.search(line)] or lines[-1:] or ["it printed nothing"]
    return "; ".join([meaning, *causes] if meaning else causes)[:300]


def _rows(lines: Iterable[str]) -> Iterator[tuple[str, int, float]]:
    device, factor, has_device_line = "", 0.0, False
    for line in lines:
        if line.startswith(DEVICE):
            device, factor, has_device_line = line.removeprefix(DEVICE).strip(), 0.0, True
            continue
        named = _NAMED.search(line)
        if named and not has_device_line:
            device, factor = named[1], 0.0
        if line.lstrip().startswith("#bytes"):
            # That of ib_write_lat, too.
            header = _HEADER.match(line)
            factor = _UNITS.get(header[1], 0.0) if header is not None and header[1] == header[2] else 0.0
        row = _ROW.match(line) if device and factor else None
        if row and (average := _number(row[3])) is not None:
            yield device, int(row[1]), average * factor


def latencies(lines: Iterable[str]) -> dict[str, float]:
    """The mean latency of ib_write_lat in microseconds by device. A device without a complete result is not in it."""
    by_device: dict[str, float] = {}
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
                by_device[device] = mean
            column = -1
    return by_device


def rates(lines: Iterable[str]) -> dict[str, float]:
    """The rate of each device's link in Gb/s, where the kernel of the node has reported it."""
    by_device: dict[str, float] = {}
    for line in lines:
        if line.startswith(RATE):
            device, _space, text = line.removeprefix(RATE).strip().partition(" ")
            rate = _number(text)
            if rate:
                by_device[device] = rate
    return by_device


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
