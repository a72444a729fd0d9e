"""What counters did between two snapshots. Pure.

Counters wrap (at 32 or 64 bits), a reset sets them back, devices come and go, nodes boot again. A difference that one
of these makes meaningless is None, with the reason; it is never negative.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

#: Remarks on a device or a counter.
WRAPPED, RESET, GONE, NEW, REBOOTED, IMPLAUSIBLE = "wrapped", "reset", "gone", "new", "rebooted", "implausible"
#: Classes of counters that show why a job was slow.
RETRANSMITS, PAUSE, CONGESTION, ERRORS = "retransmits", "pause", "congestion", "errors"
#: Kinds of devices.
RDMA, ETHERNET, FILES = "rdma", "ethernet", "files"

_CLASSES = (
    (
        RETRANSMITS,
        re.compile(r"retrans|packet_seq_err|out_of_sequence|local_ack_timeout|rnr_nak|implied_nak|slow_restart"),
    ),
    (PAUSE, re.compile(r"pause|pfc|xoff|xon", re.IGNORECASE)),
    (CONGESTION, re.compile(r"ecn|cnp|xmit_wait|congest", re.IGNORECASE)),
    (
        ERRORS,
        re.compile(r"err|discard|drop|crc|link_down|integrity|overrun|recovery|out_of_buffer|missed", re.IGNORECASE),
    ),
)
# Each program that ends with requests under way makes these: they show nothing of the network.
_HARMLESS = re.compile(r"cqe_flush_err|unread")
_WIDTHS = (32, 64)
# Bytes a second that no device of today carries.
_IMPOSSIBLE = 1e12
_BYTES = re.compile(r"bytes|octets|port_(rcv|xmit)_data", re.IGNORECASE)
_WORD = 4


class Change(NamedTuple):
    """What one counter did.

    Args:
        change: by how much it grew; None if that can't be known.
        remark: "" or why the change is not just the difference.
        group: one of the classes above; "" for a counter of traffic.
    """

    kind: str
    device: str
    counter: str
    before: int | None
    after: int | None
    change: int | None
    remark: str = ""
    group: str = ""


class DeviceDifference(NamedTuple):
    """A device: how many of its counters were compared; or why none were."""

    kind: str
    name: str
    measured: int
    remark: str = ""


class Difference(NamedTuple):
    """Between two snapshots: all devices, and the counters that changed or have a remark."""

    devices: list[DeviceDifference]
    changes: list[Change]
    notes: list[str]


def group_of(counter: str) -> str:
    """The class of a counter by its name; "" for one of traffic."""
    if _HARMLESS.search(counter):
        return ""
    return next((name for name, pattern in _CLASSES if pattern.search(counter)), "")


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Difference:
    """What the counters did between two snapshots (see `snapshot.take`). Anything in them is survived."""
    devices, changes, notes = [], [], []
    rebooted = before.get("boot") != after.get("boot")
    if rebooted:
        notes.append("the node has booted since the job began: what its counters did is not known")
    seconds = _number(after.get("up")) - _number(before.get("up"))
    for name, taken in (("before", before), ("after", after)):
        if taken.get("complete") is not True:
            notes.append(f"not all counters could be read in time {name} the job")
    for kind in (RDMA, ETHERNET, FILES):
        old, new = _devices(before, kind), _devices(after, kind)
        for device in sorted({*old, *new}):
            if rebooted or device not in old or device not in new:
                remark = REBOOTED if rebooted else NEW if device in new else GONE
                devices.append(DeviceDifference(kind, device, 0, remark))
                continue
            device_changes = list(_changes(kind, device, old[device], new[device], seconds))
            devices.append(DeviceDifference(kind, device, len(device_changes)))
            changes += [each for each in device_changes if each.change != 0 or each.remark]
    return Difference(devices, changes, notes)


def _changes(
    kind: str, device: str, old: Mapping[str, int], new: Mapping[str, int], seconds: float
) -> Iterator[Change]:
    for counter in sorted({*old, *new}):
        before, after = old.get(counter), new.get(counter)
        if before is None or after is None:
            # A file that could be read only once shows nothing of the job.
            continue
        change, remark = grown(before, after)
        if change is not None and seconds > 0 and _BYTES.search(counter):
            size = change * (_WORD if counter.startswith("port_") else 1)
            if size > max(seconds, 1.0) * _IMPOSSIBLE:
                change, remark = None, IMPLAUSIBLE
        yield Change(kind, device, counter, before, after, change, remark, group_of(counter))


def grown(before: int, after: int) -> tuple[int | None, str]:
    """By how much a counter grew, and a remark.

    One that is smaller than it was has wrapped if it was in the last quarter of its range and is in the first one;
    else it was set back, and what it counted before that is not known.
    """
    if after >= before:
        return after - before, ""
    for width in _WIDTHS:
        size = 1 << width
        if before < size:
            if before >= size - size // 4 and after < size // 4:
                return after + size - before, WRAPPED
            break
    return None, RESET


def _devices(taken: Mapping[str, Any], kind: str) -> dict[str, dict[str, int]]:
    devices = taken.get(kind)
    if not isinstance(devices, dict):
        return {}
    return {
        str(device): {
            str(name): value
            for name, value in counters.items()
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0
        }
        for device, counters in devices.items()
        if isinstance(counters, dict)
    }


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
