"""The kernel's log since the boot: what NVIDIA's driver logs of GPUs and NVSwitches.

The age of each message is by the clock that never jumps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gpucluster.node_agent.checks.collect.place import MeasuredHost, Unmeasured

_LINE = re.compile(r"\s*\[\s*(\d+\.\d+)\]\s?(.*)")
# A message of several lines has its time in the first; the others are indented by the width of the time.
_MORE = re.compile(r"\s{10,}(\S.*)")
_ADDRESS = r"(?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-9A-Fa-f])?)"
# `(PCI:0000:07:00 GPU-I:05)` and `(... GPU-I:01 GPU-CI:02)`: an instance of a GPU that is divided (MIG).
_XID = re.compile(rf"NVRM: Xid \({_ADDRESS}((?: GPU-C?I:\d+)*)\): (\d+)(?:,\s*(.*))?")
_SXID = re.compile(rf"nvidia-nvswitch\d+: SXid \({_ADDRESS}\): (\d+)(?:,\s*(.*))?")
_FATAL = re.compile(r"(?<!non-)(?<!non )\bfatal\b|\bD?-?RST: Yes", re.IGNORECASE)
_WITHOUT_XID = re.compile(rf"NVRM: .*?\b{_ADDRESS}.*?\b(fallen off the bus|RmInitAdapter failed)", re.IGNORECASE)
#: A log that begins this long after the boot, in seconds, still has all messages of devices: drivers load later.
_FIRST_LINES_S = 5.0
#: Lines of the journal that are read; a log that is longer was flooded.
_LINES = 20000
_TEXT = 160
_LONGEST_MESSAGE = 2000


def kernel_log(host: MeasuredHost, seconds: float) -> dict[str, Any]:
    """What the driver said, how far back the log reaches in seconds, and whether that is the boot.

    `xids` has those of GPUs, `sxids` those of NVSwitches, `faults` what the driver logs of a GPU without a number.

    The kernel's own buffer comes first: it needs no disk. Where it has lost its beginning, the journal may have it.
    """
    now = host.monotonic()
    first = _parse(host.output(["dmesg"], seconds / 3), now)
    if first is not None and first["whole"]:
        return first
    journal = ["journalctl", "--dmesg", "--boot=0", "--output=short-monotonic", "--no-hostname"]
    try:
        text = host.output([*journal, "--no-pager", "--quiet", f"--lines={_LINES}"], seconds / 2)
        second = _parse(text, now)
    except Unmeasured:
        second = None
    longest_log = max((log for log in (first, second) if log), key=lambda log: log["covers_s"], default=None)
    if longest_log is None:
        raise Unmeasured("the kernel log is empty")
    return longest_log


def _parse(text: str, now: float) -> dict[str, Any] | None:
    """None where there is no line with a time."""
    oldest: float | None = None
    seen: dict[str, dict[tuple[object, ...], dict[str, Any]]] = {"xids": {}, "sxids": {}, "faults": {}}
    for at, message in _messages(text):
        oldest = at if oldest is None else min(oldest, at)
        entry = _event(message)
        if entry:
            kind, event, event_text = entry
            of_kind = seen[kind]
            # Of one event the latest text counts: that of Xid 154 names the present action.
            key = tuple(event.values())
            count = of_kind.get(key, {"count": 0})["count"] + 1
            of_kind[key] = {**event, "count": count, "age_s": round(max(0.0, now - at), 3), "text": event_text[:_TEXT]}
    if oldest is None:
        return None
    covers = max(0.0, now - oldest)
    events = {kind: list(of_kind.values()) for kind, of_kind in seen.items()}
    return {"covers_s": round(covers, 3), "whole": oldest <= _FIRST_LINES_S, **events}


def _messages(text: str) -> Iterator[tuple[float, str]]:
    """Time since the boot and text of each message, which may have several lines."""
    at, message = None, ""
    for line in text.splitlines():
        match, more = _LINE.match(line), _MORE.match(line)
        if match:
            if at is not None:
                yield at, message
            at, message = float(match[1]), match[2]
        elif more and at is not None and len(message) < _LONGEST_MESSAGE:
            message += f" {more[1].replace('NVRM:', '').strip()}"
    if at is not None:
        yield at, message


def _event(message: str) -> tuple[str, dict[str, Any], str] | None:
    """The kind of an event, which one it is and of which device, and its text."""
    if match := _XID.search(message):
        text = match[4] or ""
        return "xids", {"xid": int(match[3]), "pci": f"{match[1]}{match[2]}", "fatal": _is_fatal(text)}, text
    if match := _SXID.search(message):
        return "sxids", {"sxid": int(match[2]), "pci": match[1], "fatal": _is_fatal(match[3] or "")}, match[3] or ""
    if match := _WITHOUT_XID.search(message):
        return "faults", {"fault": match[2].lower(), "pci": match[1]}, message
    return None


def _is_fatal(text: str) -> bool:
    """Whether the message itself has it: `NETIR_LINK_EVT Fatal`, `Fatal, Link 30 LTSSM Fault Up`, `RST: Yes`."""
    return bool(_FATAL.search(text))
