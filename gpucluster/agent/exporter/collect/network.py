"""Network interfaces: what their drivers count of pause frames, discards and errors."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Callable, NamedTuple

from gpucluster.agent import rdma_files
from gpucluster.agent.exporter.collect import Place
from gpucluster.agent.exporter.collect.ethtool import Ethtool
from gpucluster.agent.exporter.exposition import sample

# A driver such as mlx5 has thousands of statistics. Kept are those that say why a network is slow: frames that stop the
# sender (802.3x and by priority), packets that were thrown away, and errors; and the events of congestion of RoCE.
_KEPT = re.compile(
    r"pause|pfc|x(on|off)|discard|drop|err|crc|out_of_buffer|no_(buff|dma)|missed|timeout|link_down|corrected_bits"
    r"|ecn|cnp|stall|congest",
    re.IGNORECASE,
)
# One for each queue, channel or ring: a large host has a hundred of them, and their sum is in the others.
_OF_A_QUEUE = re.compile(
    r"^(rx|tx|ch|q|rxq|txq)[_-]?\d+[_.:-]|queue|\[|ring|_q\d+_|^ptp_|xsk|xdp|tls|macsec|ipsec", re.IGNORECASE
)
#: Of one interface.
MOST = 128
_NAMES_AGE_S = 600.0


class _Known(NamedTuple):
    total: int
    places: list[int]
    names: list[str]
    until: float


class Network:
    """The statistics of the interfaces that are devices: no bridges, no tunnels, no containers' interfaces."""

    def __init__(
        self, place: Place, ethtool: Ethtool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place, self._clock = place, clock
        self._ethtool = ethtool or Ethtool()
        self._known: dict[str, _Known] = {}
        self._faults: dict[str, int] = {}

    def subjects(self) -> list[str]:
        """The names of the interfaces."""
        folder = f"{self._place.sysfs}/class/net"
        return [name for name in rdma_files.names(folder) if os.path.exists(f"{folder}/{name}/device")]

    def samples(self, subject: str) -> Iterator[str]:
        """The lines of one interface; only how often it failed, where its driver has no statistics."""
        try:
            for name, value in self._read(subject):
                yield sample("gpucluster_network_counter_total", value, interface=subject, counter=name)
        except OSError:
            self._known.pop(subject, None)
            self._faults[subject] = self._faults.get(subject, 0) + 1
        yield sample("gpucluster_network_read_errors_total", self._faults.get(subject, 0), interface=subject)

    def close(self) -> None:
        """Close the socket."""
        self._ethtool.close()

    def _read(self, interface: str) -> list[tuple[str, int]]:
        """Names and values. The names are asked for now and then: they are most of the work."""
        known = self._known.get(interface)
        if known is None or self._clock() >= known.until:
            count = self._ethtool.count(interface)
            names = self._ethtool.names(interface, count) if count else []
            places = chosen(names)
            known = _Known(count, places, [names[at] for at in places], self._clock() + _NAMES_AGE_S)
            self._known[interface] = known
        if not known.places:
            return []
        values = self._ethtool.values(interface, known.total, known.places)
        if values is None:
            # The driver has other statistics than before. They are read with the next scrape.
            del self._known[interface]
            return []
        return list(zip(known.names, values))


def chosen(names: list[str]) -> list[int]:
    """The places of the statistics that are kept."""
    kept = [at for at, name in enumerate(names) if name and _KEPT.search(name) and not _OF_A_QUEUE.search(name)]
    return kept[:MOST]
