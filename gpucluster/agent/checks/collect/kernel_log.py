"""The kernel's log since the boot: Xids of NVIDIA's driver, with their age by the clock that never jumps."""

from __future__ import annotations

import re
from typing import Any

from gpucluster.agent.checks.collect.place import Host, Unmeasured

_LINE = re.compile(r"\s*\[\s*(\d+\.\d+)\]\s?(.*)")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+)(?:,\s*(.*))?")
#: A log that begins this long after the boot, in seconds, still has everything that devices say: drivers load later.
_FIRST_LINES_S = 5.0
#: Lines of the journal that are read; a log that is longer was flooded.
_LINES = 20000
_TEXT = 160


def kernel_log(host: Host, seconds: float) -> dict[str, Any]:
    """Xids by number and device, how far back the log reaches in seconds, and whether that is the boot.

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
    found = max((log for log in (first, second) if log), key=lambda log: log["covers_s"], default=None)
    if found is None:
        raise Unmeasured("the kernel log is empty")
    return found


def _parse(text: str, now: float) -> dict[str, Any] | None:
    """None where there is no line with a time."""
    oldest: float | None = None
    xids: dict[tuple[int, str], dict[str, Any]] = {}
    for line in text.splitlines():
        found = _LINE.match(line)
        if not found:
            continue
        at = float(found[1])
        oldest = at if oldest is None else min(oldest, at)
        event = _XID.search(found[2])
        if event:
            key = (int(event[2]), event[1])
            before = xids.get(key, {"count": 0})
            xids[key] = {
                "xid": key[0],
                "pci": key[1],
                "count": before["count"] + 1,
                "age_s": round(max(0.0, now - at), 3),
                "text": (event[3] or "")[:_TEXT],
            }
    if oldest is None:
        return None
    covers = max(0.0, now - oldest)
    return {"covers_s": round(covers, 3), "whole": oldest <= _FIRST_LINES_S, "xids": list(xids.values())}
