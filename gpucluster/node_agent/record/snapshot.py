"""The counters of this host's network at one moment.

Read in a child process, within a time limit: a driver may answer late or never, and a job waits for this.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable

from gpucluster.node_agent import in_child, rdma_files
from gpucluster.node_agent.exporter.collect.ethtool import Ethtool
from gpucluster.node_agent.exporter.collect.network import chosen
from gpucluster.node_agent.record.difference import ETHERNET, FILES, RDMA

#: Seconds for one snapshot. Only a driver that hangs needs them: a job waits for it. A node on which everything is slow
#: needs some for a new process alone, and its counters would be lost with less.
SECONDS = 2.0
#: Of the kernel, for each interface.
_STATISTICS = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
_NFS = ("read_bytes", "written_bytes")
#: The places of serverreadbytes and serverwritebytes behind the word `bytes:` in /proc/self/mountstats.
_NFS_PLACES = (5, 6)
_MOST_MOUNTSTATS = 4 << 20
# In what is left of the limit the child reports what it has.
_SPARE = 0.25


def take(root: str = "", seconds: float = SECONDS) -> dict[str, Any]:
    """A snapshot: `{"boot", "at", "up", "complete", "rdma": {"mlx5_0/1": {...}}, "ethernet": {...}, "files": {...}}`.

    It never raises an error: where a driver hangs there are no counters, and `complete` is False.

    Args:
        root: in front of /sys and /proc.
    """
    snapshot = _head(root)
    until = time.monotonic() + seconds - _SPARE
    try:
        raw = json.loads(in_child.text_of(lambda: json.dumps(counters(root, until)), seconds))
        if isinstance(raw, dict):
            snapshot.update(raw)
    except (OSError, ValueError):  # TimeoutError is an OSError
        pass
    return snapshot


def _head(root: str) -> dict[str, Any]:
    try:
        boot = rdma_files.text(f"{root}/proc/sys/kernel/random/boot_id")
    except OSError:
        boot = ""
    up = time.clock_gettime(time.CLOCK_BOOTTIME)
    return {"boot": boot, "at": time.time(), "up": up, "complete": False}


def counters(root: str, until: float, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """All counters, as far as they can be read until then. What is quick and tells most comes first."""
    by_kind: dict[str, Any] = {RDMA: {}, ETHERNET: {}, FILES: {}}
    interfaces = _interfaces(f"{root}/sys/class/net")

    def read() -> bool:
        for name in interfaces:
            by_kind[ETHERNET][name] = _statistics(f"{root}/sys/class/net/{name}/statistics")
        by_kind[FILES] = _nfs(f"{root}/proc/self/mountstats")
        for device in rdma_files.devices(f"{root}/sys"):
            for port in rdma_files.ports(device):
                if clock() > until:
                    return False
                by_kind[RDMA][f"{port.device}/{port.number}"] = rdma_files.counters(port).values
        return root != "" or _ethtool(interfaces, by_kind[ETHERNET], lambda: clock() > until)

    by_kind["complete"] = read()
    return by_kind


def _interfaces(folder: str) -> list[str]:
    """Interfaces that are devices. A host that is a container has none of these: then all but the loopback."""
    names = [name for name in rdma_files.names(folder) if name != "lo"]
    return [name for name in names if os.path.exists(f"{folder}/{name}/device")] or names


def _statistics(folder: str) -> dict[str, int]:
    values = {name: rdma_files.number(f"{folder}/{name}") for name in _STATISTICS}
    return {name: value for name, value in values.items() if value is not None}


def _ethtool(interfaces: list[str], into: dict[str, dict[str, int]], late: Callable[[], bool]) -> bool:
    """Add pause frames, discards and errors, which only the driver counts. Whether there was time for all."""
    ethtool = Ethtool()
    try:
        for name in interfaces:
            if late():
                return False
            try:
                count = ethtool.count(name)
                names = ethtool.names(name, count) if count else []
                places = chosen(names)
                values = ethtool.values(name, count, places) if places else []
            except OSError:
                continue  # this driver has no statistics
            for place, value in zip(places, values or []):
                into[name].setdefault(names[place], value)
    finally:
        ethtool.close()
    return True


def _nfs(path: str) -> dict[str, dict[str, int]]:
    """Bytes from and to each file server's export. One that is mounted twice has one set of counters."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_MOUNTSTATS)
    except OSError:
        return {}
    exports: dict[str, dict[str, int]] = {}
    export = ""
    for line in text.splitlines():
        words = line.split()
        if line.startswith("device "):
            # The address of the server stays here: records are sent on.
            is_nfs = "fstype" in words and words[words.index("fstype") + 1 :][:1] in (["nfs"], ["nfs4"])
            export = words[1].rpartition(":")[2] or words[1] if is_nfs else ""
        elif export and words[:1] == ["bytes:"] and len(words) > max(_NFS_PLACES):
            numbers = [words[place] for place in _NFS_PLACES]
            if all(number.isascii() and number.isdigit() for number in numbers):
                exports[export] = dict(zip(_NFS, map(int, numbers)))
    return exports
