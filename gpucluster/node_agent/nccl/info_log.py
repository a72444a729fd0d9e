"""Reads what NCCL logs with NCCL_DEBUG=INFO: channels, connections of ranks, devices, topology.

The formats are those of NVIDIA/nccl from 2.8 to 2.30: src/init.cc (channels, nodes and ranks), src/transport/p2p.cc,
shm.cc, net.cc and generic.cc (connections), net_ib/init.cc (devices), nvls.cc (multicast), src/graph/topo.cc, paths.cc
and search.cc (topology and rings, with NCCL_DEBUG_SUBSYS=GRAPH), src/enqueue.cc (protocols, with TUNING).
"""

from __future__ import annotations

import re
from typing import Callable

from gpucluster.node_agent.nccl.measurement import Line, Log, RankRoute

_INFO = re.compile(r"(?:^|\s)([A-Za-z0-9][\w.-]*):\d+:\d+ \[-?\d+\] NCCL INFO (.*)")
_ROUTE = re.compile(
    r"Channel \d+(?:/\d+)? : (\d+)\[[^]]*\] -> (\d+)\[[^]]*\] (?:\[(?:send|receive)\] )?via (P2P|SHM|NET)/(.*)"
)
_NETWORK = re.compile(r"(.+?)/\d+(?:\(\d+\))?(/GDRDMA)?")
_CHANNELS = re.compile(r"(\d+) coll channels,")
_DEVICE = re.compile(r"([\w.-]+):\d+[:\d]*/(?:RoCE|IB)\b")
_LAYOUT = re.compile(r"comm \S+ rank \d+ nRanks \d+ nNodes (\d+) localRanks (\d+) localRank \d+ MNNVL 0")
_MULTICAST = re.compile(r"NVLS multicast support is (not )?available")
_PROTOCOL = re.compile(r": (\d+) Bytes -> Algo \S+ proto (LL128|LL|SIMPLE|Simple)\b")
#: Pattern 4 is the ring (NCCL_TOPO_PATTERN_RING); the first type is that of the paths within a node.
_RING = re.compile(r"Pattern 4, .*, type ([A-Z0-9]+)/")
#: In NCCL's order, the fastest first (topoPathTypeStr).
_PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
#: Enough to name; a line of an option is as long as NCCL's buffer, and a cluster has thousands of pairs.
_LONGEST, _MOST_PAIRS = 160, 4096


class InfoLog:
    """Collects from the lines of an output. Memory does not grow with repeated lines."""

    def __init__(self) -> None:
        self._log = Log()
        self._routes: dict[RankRoute, dict[tuple[int, int], Line]] = {}
        self._devices: dict[str, tuple[tuple[str, ...], Line]] = {}

    def line(self, line: str) -> None:
        """Read a line that has "NCCL INFO" in it."""
        if not self._log.present:
            self._log = self._log._replace(present=True)
        for mark, read in _READERS:
            if mark in line:
                match = _INFO.search(line)
                if match:
                    read(self, match[2], Line(match[1], match[2][:_LONGEST].strip()))
                return

    def log(self) -> Log:
        """All of it."""
        return self._log._replace(routes=self._routes, devices=self._devices)

    def _route(self, text: str, line: Line) -> None:
        match = _ROUTE.match(text)
        if not match:
            return
        network = _NETWORK.match(match[4]) if match[3] == "NET" else None
        route = RankRoute(match[3], network[1], bool(network[2])) if network else RankRoute(match[3])
        pairs = self._routes.setdefault(route, {})
        if len(pairs) < _MOST_PAIRS:
            pairs.setdefault((int(match[1]), int(match[2])), line)

    def _channels(self, text: str, line: Line) -> None:
        match, known = _CHANNELS.search(text), self._log.channels
        if match and (known is None or int(match[1]) < known[0]):
            self._log = self._log._replace(channels=(int(match[1]), line))

    def _using(self, text: str, line: Line) -> None:
        names = tuple(dict.fromkeys(_DEVICE.findall(text)))
        if names and (line.host not in self._devices or len(names) < len(self._devices[line.host][0])):
            self._devices[line.host] = (names, line)

    def _none_found(self, _text: str, line: Line) -> None:
        self._log = self._log._replace(no_device=self._log.no_device or line)

    def _indirect(self, text: str, line: Line) -> None:
        if "Connected all rings" not in text or text.rstrip().endswith("GDR 0"):
            self._log = self._log._replace(indirect=self._log.indirect or line)

    def _layout(self, text: str, line: Line) -> None:
        match = _LAYOUT.match(text)
        if match and self._log.layout is None:
            self._log = self._log._replace(layout=(int(match[1]), int(match[2]), line))

    def _multicast(self, text: str, line: Line) -> None:
        match, known = _MULTICAST.match(text), self._log.multicast
        if match and (known is None or (known[0] and match[1])):
            self._log = self._log._replace(multicast=(not match[1], line))

    def _switches(self, _text: str, _line: Line) -> None:
        self._log = self._log._replace(switches=True)

    def _ring(self, text: str, line: Line) -> None:
        match, known = _RING.match(text), self._log.ring
        if match and match[1] in _PATHS and (known is None or _PATHS.index(match[1]) > _PATHS.index(known[0])):
            self._log = self._log._replace(ring=(match[1], line))

    def _forbidden(self, _text: str, line: Line) -> None:
        self._log = self._log._replace(forbidden=self._log.forbidden or line)

    def _protocol(self, text: str, line: Line) -> None:
        match, known = _PROTOCOL.search(text), self._log.protocol
        if match and (known is None or int(match[1]) > known[0]):
            self._log = self._log._replace(protocol=(int(match[1]), match[2], line))


_READERS: tuple[tuple[str, Callable[[InfoLog, str, Line], None]], ...] = (
    (" via ", InfoLog._route),
    (" coll channels,", InfoLog._channels),
    ("NET/IB : Using", InfoLog._using),
    ("NET/IB : No device found", InfoLog._none_found),
    ("GPU Direct RDMA Disabled for HCA", InfoLog._indirect),
    ("Connected all rings", InfoLog._indirect),
    (" nNodes ", InfoLog._layout),
    ("NVLS multicast support is", InfoLog._multicast),
    ("- NVS/", InfoLog._switches),
    ("Pattern 4,", InfoLog._ring),
    ("P2P is disabled between connected GPUs", InfoLog._forbidden),
    (" Bytes -> Algo ", InfoLog._protocol),
)
